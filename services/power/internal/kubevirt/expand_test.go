// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// typedVM is a machine that names nothing but an instance type, a preference
// and a volume.
func typedVM() *kvv1.VirtualMachine {
	vm := implicitVM()
	vm.Generation = 1
	vm.Spec.Instancetype = &kvv1.InstancetypeMatcher{Name: "small"}
	vm.Spec.Preference = &kvv1.PreferenceMatcher{Name: "efi"}
	vm.Spec.Template.Spec.Architecture = "amd64"
	vm.Spec.Template.Spec.Volumes = []kvv1.Volume{{Name: "root"}}
	return vm
}

// expandSpec does what KubeVirt does for the machine of typedVM.
func expandSpec(vm *kvv1.VirtualMachine) *kvv1.VirtualMachine {
	memory := resource.MustParse("64Mi")
	whole := vm.DeepCopy()
	whole.Spec.Instancetype, whole.Spec.Preference = nil, nil
	spec := &whole.Spec.Template.Spec
	spec.Domain.CPU = &kvv1.CPU{Sockets: 1, Cores: 2, Threads: 1}
	spec.Domain.Memory = &kvv1.Memory{Guest: &memory}
	spec.Domain.Machine = &kvv1.Machine{Type: "q35"}
	if spec.Domain.Firmware == nil {
		spec.Domain.Firmware = &kvv1.Firmware{Bootloader: &kvv1.Bootloader{EFI: &kvv1.EFI{SecureBoot: pointer(false)}}}
	}
	spec.Domain.Devices.Disks = []kvv1.Disk{{Name: "root", DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{Bus: "scsi"}}}}
	spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: podInterface, Model: "e1000e", InterfaceBindingMethod: bridged}}
	spec.Networks = []kvv1.Network{*kvv1.DefaultPodNetwork()}
	return whole
}

// TestHypervisor_reads_instance_types: a machine that never ran has what its
// instance type and preference give it, and no read costs a request.
func TestHypervisor_reads_instance_types(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(typedVM())
	h := started(t, api)
	m := func() *hypervisor.Machine {
		m, err := h.Get(ref)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if got := m(); got.Hardware.Sockets != 0 || got.Firmware.Mode != "" {
		t.Errorf("before anything is known: %+v, %+v", got.Hardware, got.Firmware)
	}
	// An instance type that can't be read is tried again.
	api.mu.Lock()
	api.expand = expandSpec
	api.mu.Unlock()
	within(t, "read", func() bool { return m().Hardware.Sockets > 0 })
	api.mu.Lock()
	requests := len(api.requests)
	api.mu.Unlock()

	got := m()
	if diff := cmp.Diff(hypervisor.Firmware{Mode: hypervisor.FirmwareUEFI, Modes: []hypervisor.FirmwareMode{hypervisor.FirmwareUEFI}}, got.Firmware); diff != "" {
		t.Errorf("firmware mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(hypervisor.Hardware{
		Sockets: 1, CoresPerSocket: 2, ThreadsPerCore: 1, Architecture: "amd64", MemoryBytes: 64 << 20, MachineType: "q35",
		Manufacturer: "KubeVirt", Product: "VirtualMachine", SerialConsole: true,
		Interfaces: []hypervisor.Interface{{Name: podInterface, Model: "e1000e"}},
		Disks:      []hypervisor.Disk{{Name: "root", Bus: "scsi"}},
	}, got.Hardware); diff != "" {
		t.Errorf("hardware mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]hypervisor.BootDevice{
		{Name: "root", Kind: hypervisor.DeviceDisk, Volume: "root"}, {Name: podInterface, Kind: hypervisor.DeviceInterface},
	}, got.Devices); diff != "" {
		t.Errorf("devices mismatch (-want +got):\n%s", diff)
	}
	for range 100 {
		m()
	}
	api.mu.Lock()
	if len(api.requests) != requests {
		t.Errorf("reads cost %d requests", len(api.requests)-requests)
	}
	api.mu.Unlock()

	// Another preference of the same machine is read in its turn.
	changed := typedVM()
	changed.Generation = 2
	changed.Spec.Preference.Name = "bios"
	api.mu.Lock()
	api.expand = func(vm *kvv1.VirtualMachine) *kvv1.VirtualMachine {
		whole := expandSpec(vm)
		whole.Spec.Template.Spec.Domain.Firmware = nil
		return whole
	}
	api.mu.Unlock()
	api.put(changed)
	within(t, "read again", func() bool { return m().Firmware.Mode == hypervisor.FirmwareBIOS })
	if got := m().Firmware.Modes; len(got) != 2 {
		t.Errorf("where nobody has chosen a mode the machine can have %v", got)
	}
}

// TestHypervisor_orders_devices_that_KubeVirt_adds goes through the API.
func TestHypervisor_orders_devices_that_KubeVirt_adds(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(typedVM())
	api.expand = expandSpec
	h := started(t, api)
	get := func() *hypervisor.Machine {
		m, err := h.Get(ref)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	within(t, "read", func() bool { return len(get().Devices) == 2 })
	for _, orders := range []map[string]int{{"root": 2, podInterface: 1}, {"root": 0, podInterface: 0}} {
		if err := h.SetBoot(t.Context(), ref, get().ResourceVersion, orders, ""); err != nil {
			t.Fatal(err)
		}
		for _, d := range get().Devices {
			if d.Order != orders[d.Name] {
				t.Errorf("%s has order %d, want %d", d.Name, d.Order, orders[d.Name])
			}
		}
	}
	vm, _ := h.objects(ref)
	if diff := cmp.Diff(trimVM(typedVM()).Spec, vm.Spec); diff != "" {
		t.Errorf("the template did not come back (-want +got):\n%s", diff)
	}
}

// TestHypervisor_failed_expansion_backs_off: a machine that changes all the time
// is not asked about more often than the back-off says.
func TestHypervisor_failed_expansion_backs_off(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(typedVM())
	h := started(t, api)
	asked := func() int {
		api.mu.Lock()
		defer api.mu.Unlock()
		n := 0
		for _, request := range api.requests {
			if strings.HasSuffix(request, "/expand-spec") {
				n++
			}
		}
		return n
	}
	within(t, "asked", func() bool { return asked() > 0 && h.expansions.NumRequeues(ref) > 0 })
	const changes = 100
	for n := range changes {
		vm := typedVM()
		vm.Status.PrintableStatus = kvv1.VirtualMachinePrintableStatus(strconv.Itoa(n))
		before, _ := h.objects(ref)
		api.put(vm)
		within(t, "seen", func() bool {
			now, _ := h.objects(ref)
			return now.ResourceVersion != before.ResourceVersion
		})
	}
	if n := asked(); n > changes/5 {
		t.Errorf("%d changes have cost %d requests", changes, n)
	}
}
