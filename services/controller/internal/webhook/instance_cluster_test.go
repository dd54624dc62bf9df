//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func ref(s *site, machine string) hypervisor.Ref {
	return hypervisor.Ref{Namespace: s.namespace, Name: machine}
}

// arm writes an override into the state of the machine's BMC, as the power service
// does.
func (s *site) arm(vm *kvv1.VirtualMachine, armed *bootoverride.Armed) {
	s.Helper()
	state, err := json.Marshal(map[string]any{bootoverride.StateKey: armed})
	if err != nil {
		s.Fatal(err)
	}
	s.eventually("armed", func() error {
		of := s.store.Of(ref(s, vm.Name))
		if of == nil {
			return fmt.Errorf("no BMC of %s is known yet", vm.Name)
		}
		return s.store.SetState(s.Context(), ref(s, vm.Name), string(vm.UID), bmcresource.State(of, string(vm.UID)), state)
	})
}

// instanceOf is an instance that is not made yet, as KubeVirt makes it.
func (s *site) instanceOf(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstance {
	order := func(n uint) *uint { return &n }
	memory := resource.MustParse("64Mi")
	return &kvv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Name: vm.Name, Namespace: s.namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kvv1.VirtualMachineGroupVersionKind)},
		},
		Spec: kvv1.VirtualMachineInstanceSpec{Domain: kvv1.DomainSpec{
			Memory: &kvv1.Memory{Guest: &memory},
			Devices: kvv1.Devices{
				Disks: []kvv1.Disk{
					{Name: "root", BootOrder: order(1), DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{}}},
					{Name: "cd", DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}},
				},
				Interfaces: []kvv1.Interface{{Name: "nic", BootOrder: order(2)}},
			},
		}},
	}
}

// alone skips a test whose instances KubeVirt's own webhooks and controllers would
// have a say in: it is for clusters with KubeVirt's definitions alone. On KubeVirt
// itself the tests of processes do the same.
func (s *site) alone() {
	s.Helper()
	var nodes corev1.NodeList
	if err := s.List(s.Context(), &nodes); err != nil || len(nodes.Items) > 0 {
		s.Skip("KubeVirt runs on this cluster and would refuse such instances; make test-integration runs this on level api")
	}
}

// bootsBy writes down by what an instance boots, and the override's ID.
func bootsBy(vmi *kvv1.VirtualMachineInstance) string {
	var list []string
	note := func(name string, order *uint) {
		if order != nil {
			name = fmt.Sprintf("%s=%d", name, *order)
		}
		list = append(list, name)
	}
	for _, disk := range vmi.Spec.Domain.Devices.Disks {
		note(disk.Name, disk.BootOrder)
	}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		note(nic.Name, nic.BootOrder)
	}
	if id, ok := vmi.Annotations[bootoverride.InstanceAnnotation]; ok {
		list = append(list, "by "+id)
	}
	return strings.Join(list, " ")
}

const own = "root=1 cd nic=2"

// TestInstance: the API server asks at the creation of an instance, and gets what
// is armed at that moment.
func TestInstance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.alone()
	stop := s.serve()
	vm := s.machine("vm")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.create(s.bmc("bmc", "vm", "good"))
	want := func(what, want string, edit func(*kvv1.VirtualMachineInstance), options ...client.CreateOption) {
		t.Helper()
		vmi := s.instanceOf(vm)
		if edit != nil {
			edit(vmi)
		}
		if err := s.Create(t.Context(), vmi, options...); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := bootsBy(vmi); got != want {
			t.Errorf("%s: boots by %s, want %s", what, got, want)
		}
		if len(options) == 0 {
			s.remove(vmi)
		}
	}
	forge := func(vmi *kvv1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{bootoverride.InstanceAnnotation: "forged"}
	}
	want("nothing is armed", own, nil)
	want("nothing is armed, forged", own, forge)
	s.arm(vm, &bootoverride.Armed{ID: "one", Device: hypervisor.DeviceCDROM})
	want("a dry run", "root=2 cd=1 nic=3 by one", nil, client.DryRunAll)
	want("armed", "root=2 cd=1 nic=3 by one", nil)
	want("until it is seen to be used", "root=2 cd=1 nic=3 by one", forge)
	s.arm(vm, &bootoverride.Armed{ID: "two", Device: hypervisor.DeviceInterface})
	want("armed anew", "root=3 cd=4 nic=2 by two", nil)
	want("nobody's instance", own, func(vmi *kvv1.VirtualMachineInstance) { vmi.OwnerReferences = nil })
	want("an instance that another kind owns", own, func(vmi *kvv1.VirtualMachineInstance) {
		vmi.OwnerReferences[0].Kind = "VirtualMachinePool"
	})
	want("an instance that it does not control", own, func(vmi *kvv1.VirtualMachineInstance) { vmi.OwnerReferences[0].Controller = nil })
	want("a machine of another UID", own, func(vmi *kvv1.VirtualMachineInstance) { vmi.OwnerReferences[0].UID = "earlier" })
	s.warned()
	want("no such device", "root=1 nic=2", func(vmi *kvv1.VirtualMachineInstance) {
		s.arm(vm, &bootoverride.Armed{ID: "three", Device: hypervisor.DeviceCDROM})
		vmi.Spec.Domain.Devices.Disks = vmi.Spec.Domain.Devices.Disks[:1]
	})
	if got := s.warned(); !strings.Contains(got, "the machine has no cdrom") {
		t.Errorf("warned of %q", got)
	}
	// A BMC whose state nobody can read.
	s.arm(vm, &bootoverride.Armed{})
	want("a state that is broken", own, nil)
	if got := s.warned(); !strings.Contains(got, "it has no ID") {
		t.Errorf("warned of %q", got)
	}
	s.arm(vm, &bootoverride.Armed{ID: "four", Device: hypervisor.DeviceCDROM})
	if counts := s.counts(); counts["applied"] != 3 || counts["nothing_armed"] != 3 || counts["impossible"] != 1 || counts["failed"] != 1 {
		t.Errorf("counted %v", counts)
	}
	stop()
	want("nobody answers", own, nil)
}

// counts are the answers, by result.
func (s *site) counts() map[string]float64 {
	s.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "vbmc_controller_instance_admissions_total" {
			for _, metric := range family.GetMetric() {
				counts[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

// TestInstance_machineMadeAnew: what was armed for a machine is not for another
// one of its name.
func TestInstance_machineMadeAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.alone()
	s.serve()
	vm := s.machine("vm")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.create(s.bmc("bmc", "vm", "good"))
	s.arm(vm, &bootoverride.Armed{ID: "one", Device: hypervisor.DeviceCDROM})
	s.remove(vm)
	again := s.machine("vm")
	vmi := s.instanceOf(again)
	s.create(vmi)
	if got := bootsBy(vmi); got != own {
		t.Errorf("boots by %s", got)
	}
}

// TestInstance_severalBMCs: of two BMCs that name a machine the older has it.
func TestInstance_severalBMCs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.alone()
	s.serve()
	vm, other := s.machine("vm"), s.machine("other")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.create(s.bmc("a", "vm", "good"))
	s.arm(vm, &bootoverride.Armed{ID: "one", Device: hypervisor.DeviceCDROM})
	s.create(s.bmc("b", "other", "good"))
	s.arm(other, &bootoverride.Armed{ID: "two", Device: hypervisor.DeviceCDROM})
	for vm, want := range map[*kvv1.VirtualMachine]string{vm: "by one", other: "by two"} {
		vmi := s.instanceOf(vm)
		s.create(vmi)
		if got := bootsBy(vmi); !strings.HasSuffix(got, want) {
			t.Errorf("%s boots %s, want %s", vm.Name, got, want)
		}
	}
}

// TestInstance_changedAfterwards: a webhook behind ours that adds a device, with a
// number that is taken, has ours asked again.
func TestInstance_changedAfterwards(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.alone()
	s.serve()
	vm := s.machine("vm")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.create(s.bmc("bmc", "vm", "good"))
	s.arm(vm, &bootoverride.Armed{ID: "one", Device: hypervisor.DeviceCDROM})
	s.adder()
	vmi := s.instanceOf(vm)
	s.eventually("the other webhook is asked", func() error {
		vmi = s.instanceOf(vm)
		if err := s.Create(t.Context(), vmi, client.DryRunAll); err != nil {
			return err
		}
		if len(vmi.Spec.Domain.Devices.Disks) != 3 {
			return fmt.Errorf("%d disks", len(vmi.Spec.Domain.Devices.Disks))
		}
		return nil
	})
	if got, want := bootsBy(vmi), "root=3 cd=1 added=2 nic=4 by one"; got != want {
		t.Errorf("boots by %s, want %s", got, want)
	}
}

// adder is a webhook behind ours that adds a disk with a number that is taken.
func (s *site) adder() {
	s.Helper()
	target := s.target
	target.Name, target.Namespace = "zz-"+s.target.Name, "adder"
	s.answer(&target, admission.HandlerFunc(func(_ context.Context, request admission.Request) admission.Response {
		var vmi kvv1.VirtualMachineInstance
		if err := json.Unmarshal(request.Object.Raw, &vmi); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if len(vmi.Spec.Domain.Devices.Disks) > 2 {
			return admission.Allowed("")
		}
		return admission.Patched("", jsonpatch.NewOperation("add", "/spec/domain/devices/disks/-", map[string]any{
			"name": "added", "bootOrder": 1, "disk": map[string]any{},
		}))
	}))
}
