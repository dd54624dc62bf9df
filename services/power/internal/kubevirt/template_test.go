//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	engine "kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

const patience = 3 * time.Minute

// operated is a machine of the cluster with an engine that operates it.
type operated struct {
	*testing.T
	*cluster
	engine *engine.Engine
	ref    hypervisor.Ref
	// before is the machine's spec as KubeVirt has completed it.
	before kvv1.VirtualMachineSpec
}

func operate(t *testing.T, c *cluster, vm *kvv1.VirtualMachine) *operated {
	t.Helper()
	o := &operated{T: t, cluster: c, ref: c.add(t, vm)}
	o.engine = engine.New(engine.Config{Hypervisor: c.Hypervisor, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	o.until("completed by KubeVirt", func(m *hypervisor.Machine) bool { return m.Firmware.UUID != "" })
	o.before = o.spec()
	return o
}

func (o *operated) spec() kvv1.VirtualMachineSpec {
	o.Helper()
	vm, err := o.client.VirtualMachines(o.ref.Namespace).Get(o.Context(), o.ref.Name, metav1.GetOptions{})
	if err != nil {
		o.Fatal(err)
	}
	return vm.Spec
}

func (o *operated) until(what string, is func(*hypervisor.Machine) bool) *hypervisor.Machine {
	o.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		m, err := o.Get(o.ref)
		if err != nil {
			o.Fatal(err)
		}
		if is(m) {
			return m
		}
		if time.Now().After(end) {
			o.Fatalf("not %s: %+v, instance %+v", what, m, m.Instance)
		}
	}
}

func (o *operated) do(action transition.Action) *hypervisor.Machine {
	o.Helper()
	status, err := o.engine.Transition(o.Context(), o.ref, action, patience)
	if err != nil {
		o.Fatalf("%s: %v", action, err)
	}
	if op := status.Operation; op.Phase != record.Succeeded {
		o.Fatalf("%s ended %s: %s", action, op.Phase, op.Message)
	}
	m, err := o.Get(o.ref)
	if err != nil {
		o.Fatal(err)
	}
	return m
}

func (o *operated) override(override record.Override) {
	o.Helper()
	if err := o.engine.SetOverride(o.Context(), o.ref, override); err != nil {
		o.Fatalf("set %+v: %v", override, err)
	}
}

// restored waits until the machine's spec is what it was, run strategy apart.
func (o *operated) restored() {
	o.Helper()
	var diff string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		now := o.spec()
		now.RunStrategy = o.before.RunStrategy
		if diff = cmp.Diff(o.before, now); diff == "" {
			return
		}
	}
	o.Fatalf("the machine's spec did not come back (-before +now):\n%s", diff)
}

// first is the device that an instance boots from first.
func first(m *hypervisor.Machine) string {
	for name, order := range m.Instance.BootOrder {
		if order == 1 {
			return name
		}
	}
	return ""
}

// implicit is a machine whose template names volumes and nothing else.
func implicit(strategy kvv1.VirtualMachineRunStrategy) *kvv1.VirtualMachine {
	vm := machine(contract.Spec{RunStrategy: hypervisor.RunStrategy(strategy)})
	template := &vm.Spec.Template.Spec
	template.Domain.Devices = kvv1.Devices{}
	template.Networks = nil
	template.Volumes = []kvv1.Volume{drive("root"), drive("data")}
	return vm
}

// TestDevices_that_KubeVirt_adds boots from a disk and from an interface that
// the template does not name.
func TestDevices_that_KubeVirt_adds(t *testing.T) {
	t.Parallel()
	o := operate(t, open(t), implicit(kvv1.RunStrategyHalted))
	o.override(record.Override{Persistence: record.Once, Target: record.TargetHDD})
	if m := o.do(transition.ActionOn); first(m) != "root" {
		t.Errorf("the instance boots by %v", m.Instance.BootOrder)
	}
	o.restored()
	// The first instance has shown how the pod's network is attached.
	o.override(record.Override{Persistence: record.Once, Target: record.TargetPXE})
	if m := o.do(transition.ActionForceRestart); first(m) != "default" {
		t.Errorf("the instance boots by %v", m.Instance.BootOrder)
	}
	o.restored()
	m := o.do(transition.ActionForceRestart)
	if len(m.Instance.BootOrder) != 0 {
		t.Errorf("after the override the instance boots by %v", m.Instance.BootOrder)
	}
	if got := m.Hardware.Interfaces; len(got) != 1 || got[0].MAC == "" {
		t.Errorf("the running machine has interfaces %+v", got)
	}
}

// TestInstancetype is about machines that get CPU, memory, firmware and disk bus
// from an instance type and a preference.
func TestInstancetype(t *testing.T) {
	t.Parallel()
	c := open(t)
	for _, object := range []struct{ resource, kind, name, spec string }{
		{"virtualmachineinstancetypes", "VirtualMachineInstancetype", "small", `{"cpu":{"guest":2},"memory":{"guest":"96Mi"}}`},
		{
			"virtualmachinepreferences", "VirtualMachinePreference", "efi",
			`{"firmware":{"preferredEfi":{"secureBoot":false}},"devices":{"preferredDiskBus":"scsi"},"cpu":{"preferredCPUTopology":"cores"}}`,
		},
	} {
		path := "/apis/instancetype.kubevirt.io/v1beta1/namespaces/" + c.namespace + "/" + object.resource
		body := fmt.Sprintf(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":%q,"metadata":{"name":%q},"spec":%s}`, object.kind, object.name, object.spec)
		if err := c.client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
			t.Fatalf("create %s: %v", object.kind, err)
		}
	}
	vm := implicit(kvv1.RunStrategyHalted)
	vm.Spec.Template.Spec.Domain.Memory = nil
	vm.Spec.Template.Spec.Domain.Resources = kvv1.ResourceRequirements{}
	vm.Spec.Instancetype = &kvv1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"}
	vm.Spec.Preference = &kvv1.PreferenceMatcher{Name: "efi", Kind: "VirtualMachinePreference"}
	o := operate(t, c, vm)

	m := o.until("read", func(m *hypervisor.Machine) bool { return m.Hardware.Sockets > 0 })
	if h := m.Hardware; h.Sockets != 1 || h.CoresPerSocket != 2 || h.MemoryBytes != 96<<20 || h.Disks[0].Bus != "scsi" {
		t.Errorf("a machine that never ran has %+v", h)
	}
	if diff := cmp.Diff([]hypervisor.FirmwareMode{hypervisor.FirmwareUEFI}, m.Firmware.Modes); diff != "" || m.Firmware.Mode != hypervisor.FirmwareUEFI {
		t.Errorf("firmware is %+v", m.Firmware)
	}
	err := o.engine.SetOverride(t.Context(), o.ref, record.Override{Persistence: record.Once, Target: record.TargetPXE, Mode: hypervisor.FirmwareBIOS})
	if !errors.Is(err, engine.ErrBootMode) {
		t.Errorf("a mode that the preference rules out: got %v, want %v", err, engine.ErrBootMode)
	}
	o.override(record.Override{Persistence: record.Once, Target: record.TargetPXE})
	m = o.do(transition.ActionOn)
	if first(m) != "default" || m.Instance.Mode != hypervisor.FirmwareUEFI {
		t.Errorf("the instance boots by %v in %s mode", m.Instance.BootOrder, m.Instance.Mode)
	}
	if h := m.Hardware; h.Sockets != 1 || h.CoresPerSocket != 2 || h.MemoryBytes != 96<<20 {
		t.Errorf("the running machine has %+v", h)
	}
	o.restored()
}

// TestFirmwareMode_of_an_override starts a machine once in another mode, and
// then changes its mode for good.
func TestFirmwareMode_of_an_override(t *testing.T) {
	t.Parallel()
	o := operate(t, open(t), machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual}))
	if m := o.do(transition.ActionOn); m.Instance.Mode != hypervisor.FirmwareBIOS {
		t.Fatalf("the instance has mode %s", m.Instance.Mode)
	}
	o.override(record.Override{Persistence: record.Once, Target: record.TargetPXE, Mode: hypervisor.FirmwareUEFI})
	m := o.do(transition.ActionForceRestart)
	if first(m) != "nic" || m.Instance.Mode != hypervisor.FirmwareUEFI {
		t.Errorf("the instance boots by %v in %s mode", m.Instance.BootOrder, m.Instance.Mode)
	}
	o.restored()
	if m := o.do(transition.ActionForceRestart); first(m) != "disk" || m.Instance.Mode != hypervisor.FirmwareBIOS {
		t.Errorf("then the instance boots by %v in %s mode", m.Instance.BootOrder, m.Instance.Mode)
	}
	for _, mode := range []hypervisor.FirmwareMode{hypervisor.FirmwareUEFI, hypervisor.FirmwareBIOS} {
		if err := o.engine.SetFirmwareMode(t.Context(), o.ref, mode); err != nil {
			t.Fatal(err)
		}
		if m := o.do(transition.ActionPowerCycle); m.Instance.Mode != mode {
			t.Errorf("the instance has mode %s, want %s", m.Instance.Mode, mode)
		}
	}
	o.restored()
}

// TestKernelBoot: past the boot order there is nothing to choose.
func TestKernelBoot(t *testing.T) {
	t.Parallel()
	vm := machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted})
	vm.Spec.Template.Spec.Domain.Firmware = &kvv1.Firmware{KernelBoot: &kvv1.KernelBoot{
		Container: &kvv1.KernelBootContainer{Image: "kernel:1", KernelPath: "/vmlinuz"},
	}}
	o := operate(t, open(t), vm)
	for _, target := range []record.Target{record.TargetPXE, record.TargetHDD, record.TargetCD} {
		err := o.engine.SetOverride(t.Context(), o.ref, record.Override{Persistence: record.Once, Target: target})
		if !errors.Is(err, engine.ErrKernelBoot) {
			t.Errorf("%s: got %v, want %v", target, err, engine.ErrKernelBoot)
		}
	}
	status, err := o.engine.BootStatus(o.ref)
	if err != nil || len(status.Targets) != 1 {
		t.Errorf("targets are %v, %v", status.Targets, err)
	}
	o.restored()
}
