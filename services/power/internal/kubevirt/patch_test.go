// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// document is a patch as it goes to the API server.
func document(t *testing.T, p patch) []string {
	t.Helper()
	var lines []string
	for _, o := range p {
		line, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	return lines
}

func TestOrdersPatch(t *testing.T) {
	t.Parallel()
	const devices = "/spec/template/spec/domain/devices/"
	for name, c := range map[string]struct {
		orders map[string]int
		want   []string
	}{
		"only what is named is changed": {
			orders: map[string]int{"cd": 3},
			want:   []string{`{"op":"add","path":"` + devices + `disks/1/bootOrder","value":3}`},
		},
		"orders are exchanged in one patch": {
			orders: map[string]int{"root": 2, "default": 1},
			want: []string{
				`{"op":"add","path":"` + devices + `disks/0/bootOrder","value":2}`,
				`{"op":"add","path":"` + devices + `interfaces/0/bootOrder","value":1}`,
			},
		},
		"0 takes an order away": {
			orders: map[string]int{"root": 0, "cd": 1},
			want: []string{
				`{"op":"remove","path":"` + devices + `disks/0/bootOrder"}`,
				`{"op":"add","path":"` + devices + `disks/1/bootOrder","value":1}`,
			},
		},
		"what is so already is left alone": {
			orders: map[string]int{"root": 1, "cd": 0, "default": 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _, err := ordersPatch(testVM(off), &sighting{}, c.orders)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, document(t, p)); diff != "" {
				t.Errorf("patch mismatch (-want +got):\n%s", diff)
			}
		})
	}
	for name, orders := range map[string]map[string]int{
		"unknown device": {"floppy": 1},
		"negative order": {"root": -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := ordersPatch(testVM(off), &sighting{}, orders)
			if _, ok := errors.AsType[*hypervisor.InvalidError](err); !ok {
				t.Errorf("got %v, want it to be invalid", err)
			}
		})
	}
}

func TestOrdersPatch_interface_with_the_name_of_a_disk(t *testing.T) {
	t.Parallel()
	vm := testVM(off)
	spec := &vm.Spec.Template.Spec
	spec.Domain.Devices.Interfaces[0].Name = "root"
	if diff := cmp.Diff(map[string]int{"root": 1, "interface/root": 2}, hypervisor.BootOrder(devices(spec))); diff != "" {
		t.Errorf("boot order mismatch (-want +got):\n%s", diff)
	}
	p, _, err := ordersPatch(vm, &sighting{}, map[string]int{"interface/root": 3})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"op":"add","path":"/spec/template/spec/domain/devices/interfaces/0/bootOrder","value":3}`}
	if diff := cmp.Diff(want, document(t, p)); diff != "" {
		t.Errorf("patch mismatch (-want +got):\n%s", diff)
	}
}

// implicitVM is a machine of which KubeVirt makes two disks and an interface
// that its template does not name.
func implicitVM() *kvv1.VirtualMachine {
	vm := testVM(off)
	template := &vm.Spec.Template.Spec
	template.Domain.Devices = kvv1.Devices{}
	template.Volumes = []kvv1.Volume{{Name: "root"}, {Name: "data"}}
	return vm
}

var bridged = kvv1.InterfaceBindingMethod{Bridge: &kvv1.InterfaceBridge{}}

// TestOrdersPatch_implicit_devices gives orders to devices that the template
// does not name, and takes them away again.
func TestOrdersPatch_implicit_devices(t *testing.T) {
	t.Parallel()
	seen := &sighting{owner: "vm-uid", podInterface: &kvv1.Interface{Name: podInterface, InterfaceBindingMethod: bridged}}
	order := func(t *testing.T, vm *kvv1.VirtualMachine, orders map[string]int) *kvv1.VirtualMachine {
		t.Helper()
		p, annotations, err := ordersPatch(vm, seen, orders)
		if err != nil {
			t.Fatal(err)
		}
		return patched(t, vm, append(p, annotationsPatch(vm, annotations)...))
	}
	explicit := implicitVM()
	explicit.Spec.Template.Spec.Domain.Devices.Disks = []kvv1.Disk{{Name: "data", DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{}}}}
	noted := implicitVM()
	noted.Annotations = map[string]string{"note": "mine"}
	for name, vm := range map[string]*kvv1.VirtualMachine{"no device named": implicitVM(), "one disk named": explicit, "other annotations": noted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := order(t, vm, map[string]int{"root": 2, "data": 0, "default": 1})
			if diff := cmp.Diff(map[string]int{"root": 2, "default": 1}, hypervisor.BootOrder(devices(&there.Spec.Template.Spec))); diff != "" {
				t.Errorf("orders mismatch (-want +got):\n%s", diff)
			}
			spec := there.Spec.Template.Spec
			if diff := cmp.Diff([]kvv1.Network{*kvv1.DefaultPodNetwork()}, spec.Networks); diff != "" {
				t.Errorf("networks mismatch (-want +got):\n%s", diff)
			}
			if got := spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod; !cmp.Equal(got, bridged) {
				t.Errorf("the interface is bound by %+v, KubeVirt binds it by %+v", got, bridged)
			}
			// Changed once more, in between, and then taken away.
			there = order(t, there, map[string]int{"root": 1, "data": 2, "default": 3})
			back := order(t, there, map[string]int{"root": 0, "data": 0, "default": 0})
			if diff := cmp.Diff(vm.Spec, back.Spec); diff != "" {
				t.Errorf("the template did not come back (-want +got):\n%s", diff)
			}
			if got := back.Annotations[devicesAnnotation]; got != "" {
				t.Errorf("the annotation is still there: %s", got)
			}
		})
	}
}

// TestOrdersPatch_added_devices_of_a_changed_machine: what a user has built upon
// an added device stays.
func TestOrdersPatch_added_devices_of_a_changed_machine(t *testing.T) {
	t.Parallel()
	vm := implicitVM()
	vm.Annotations = map[string]string{devicesAnnotation: `["default","root"]`}
	spec := &vm.Spec.Template.Spec
	one := uint(1)
	spec.Domain.Devices.Interfaces = []kvv1.Interface{
		{Name: "default", InterfaceBindingMethod: bridged, BootOrder: &one},
		{Name: "second", InterfaceBindingMethod: bridged},
	}
	spec.Networks = []kvv1.Network{*kvv1.DefaultPodNetwork(), {Name: "second"}}
	p, annotations, err := ordersPatch(vm, &sighting{}, map[string]int{"root": 0, "default": 0})
	if err != nil {
		t.Fatal(err)
	}
	back := patched(t, vm, append(p, annotationsPatch(vm, annotations)...))
	spec.Domain.Devices.Interfaces[0].BootOrder = nil
	if diff := cmp.Diff(vm.Spec, back.Spec); diff != "" {
		t.Errorf("template mismatch (-want +got):\n%s", diff)
	}
}

// TestOrdersPatch_edited_devices: what a user has made of an added device stays.
func TestOrdersPatch_edited_devices(t *testing.T) {
	t.Parallel()
	seen := &sighting{owner: "vm-uid", podInterface: &kvv1.Interface{Name: podInterface, InterfaceBindingMethod: bridged}}
	vm := implicitVM()
	p, annotations, err := ordersPatch(vm, seen, map[string]int{"root": 2, "data": 3, "default": 1})
	if err != nil {
		t.Fatal(err)
	}
	edited := patched(t, vm, append(p, annotationsPatch(vm, annotations)...))
	devices := &edited.Spec.Template.Spec.Domain.Devices
	devices.Disks[0].Cache = kvv1.CacheNone
	devices.Interfaces[0].MacAddress = "02:00:00:00:00:01"
	p, annotations, err = ordersPatch(edited, seen, map[string]int{"root": 0, "data": 0, "default": 0})
	if err != nil {
		t.Fatal(err)
	}
	back := patched(t, edited, append(p, annotationsPatch(edited, annotations)...))
	want := kvv1.Devices{
		Disks:      []kvv1.Disk{{Name: "root", Cache: kvv1.CacheNone}},
		Interfaces: []kvv1.Interface{{Name: "default", InterfaceBindingMethod: bridged, MacAddress: "02:00:00:00:00:01"}},
	}
	if diff := cmp.Diff(want, back.Spec.Template.Spec.Domain.Devices); diff != "" {
		t.Errorf("devices mismatch (-want +got):\n%s", diff)
	}
	if got := back.Annotations[devicesAnnotation]; got != "" {
		t.Errorf("the annotation is still there: %s", got)
	}
}

// TestModePatch_there_and_back applies the patches as the API server does.
func TestModePatch_there_and_back(t *testing.T) {
	t.Parallel()
	for name, fw := range map[string]*kvv1.Firmware{
		"no firmware":    nil,
		"no boot loader": {UUID: "uuid"},
		"BIOS":           {Bootloader: &kvv1.Bootloader{BIOS: &kvv1.BIOS{UseSerial: pointer(true)}}},
		"EFI with persistent variables": {Bootloader: &kvv1.Bootloader{
			EFI: &kvv1.EFI{SecureBoot: pointer(true), Persistent: pointer(true)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := testVM(off)
			vm.Spec.Template.Spec.Domain.Firmware = fw
			before := templateMode(vm, &sighting{})
			other := hypervisor.FirmwareUEFI
			if before == other {
				other = hypervisor.FirmwareBIOS
			}
			changed := applied(t, vm, other)
			if got := templateMode(changed, &sighting{}); got != other {
				t.Fatalf("mode is %s, want %s", got, other)
			}
			if secureBoot(changed.Spec.Template.Spec.Domain.Firmware.Bootloader) {
				t.Error("Secure Boot is on")
			}
			back := applied(t, changed, before)
			if got := templateMode(back, &sighting{}); got != before {
				t.Fatalf("mode is %s, want %s", got, before)
			}
			got, want := back.Spec.Template.Spec.Domain.Firmware, fw
			if want == nil {
				want = &kvv1.Firmware{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the template's own settings did not come back (-want +got):\n%s", diff)
			}
			if _, ok := back.Annotations[bootloaderAnnotation]; ok {
				t.Error("the annotation is still there")
			}
		})
	}
}

func applied(t *testing.T, vm *kvv1.VirtualMachine, mode hypervisor.FirmwareMode) *kvv1.VirtualMachine {
	t.Helper()
	p, annotations, err := modePatch(vm, mode)
	if err != nil {
		t.Fatal(err)
	}
	return patched(t, vm, append(p, annotationsPatch(vm, annotations)...))
}

// patched applies a patch as the API server does.
func patched(t *testing.T, vm *kvv1.VirtualMachine, p patch) *kvv1.VirtualMachine {
	t.Helper()
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	source, err := json.Marshal(vm)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(source, &fields); err != nil {
		t.Fatal(err)
	}
	fields, err = applyPatch(fields, body)
	if err != nil {
		t.Fatalf("apply %s: %v", body, err)
	}
	source, err = json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	var out kvv1.VirtualMachine
	if err := json.Unmarshal(source, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestRunStrategyPatch(t *testing.T) {
	t.Parallel()
	strategy := func(s kvv1.VirtualMachineRunStrategy) kvv1.VirtualMachineSpec {
		return kvv1.VirtualMachineSpec{RunStrategy: &s}
	}
	running := func(r bool) kvv1.VirtualMachineSpec { return kvv1.VirtualMachineSpec{Running: &r} }
	for name, c := range map[string]struct {
		spec kvv1.VirtualMachineSpec
		to   hypervisor.RunStrategy
		want []string
	}{
		"runStrategy": {
			spec: strategy(kvv1.RunStrategyHalted), to: hypervisor.RunStrategyRerunOnFailure,
			want: []string{
				`{"op":"test","path":"/spec/runStrategy","value":"Halted"}`,
				`{"op":"replace","path":"/spec/runStrategy","value":"RerunOnFailure"}`,
			},
		},
		"running keeps its field": {
			spec: running(false), to: hypervisor.RunStrategyAlways,
			want: []string{
				`{"op":"test","path":"/spec/running","value":false}`,
				`{"op":"replace","path":"/spec/running","value":true}`,
			},
		},
		"running can't say Manual": {
			spec: running(true), to: hypervisor.RunStrategyManual,
			want: []string{
				`{"op":"test","path":"/spec/running","value":true}`,
				`{"op":"remove","path":"/spec/running"}`,
				`{"op":"add","path":"/spec/runStrategy","value":"Manual"}`,
			},
		},
		"neither": {
			to: hypervisor.RunStrategyAlways,
			want: []string{
				`{"op":"test","path":"/spec/runStrategy","value":null}`,
				`{"op":"test","path":"/spec/running","value":null}`,
				`{"op":"add","path":"/spec/runStrategy","value":"Always"}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := &kvv1.VirtualMachine{Spec: c.spec}
			if diff := cmp.Diff(c.want, document(t, runStrategyPatch(vm, runStrategy(vm), c.to))); diff != "" {
				t.Errorf("patch mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatePatch(t *testing.T) {
	t.Parallel()
	const path = "/metadata/annotations/bmc.kubevirt.io~1state"
	some := map[string]string{}
	for name, c := range map[string]struct {
		annotations map[string]string
		old, state  []byte
		want        []string
	}{
		"first annotation of all": {
			state: []byte(`{}`),
			want: []string{
				`{"op":"test","path":"/metadata/annotations","value":null}`,
				`{"op":"add","path":"/metadata/annotations","value":{"bmc.kubevirt.io/state":"{}"}}`,
			},
		},
		"first state": {
			annotations: some, state: []byte(`{}`),
			want: []string{
				`{"op":"test","path":"` + path + `","value":null}`,
				`{"op":"add","path":"` + path + `","value":"{}"}`,
			},
		},
		"next state": {
			annotations: some, old: []byte(`a`), state: []byte(`b`),
			want: []string{
				`{"op":"test","path":"` + path + `","value":"a"}`,
				`{"op":"replace","path":"` + path + `","value":"b"}`,
			},
		},
		"no state": {
			annotations: some, old: []byte(`a`),
			want: []string{
				`{"op":"test","path":"` + path + `","value":"a"}`,
				`{"op":"remove","path":"` + path + `"}`,
			},
		},
		"none as before": {annotations: some},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := &kvv1.VirtualMachine{}
			vm.Annotations = c.annotations
			if diff := cmp.Diff(c.want, document(t, statePatch(vm, c.old, c.state))); diff != "" {
				t.Errorf("patch mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOrdersPatch_interface_with_the_name_of_a_volume: the disk that KubeVirt
// makes of the volume has that name among the devices.
func TestOrdersPatch_interface_with_the_name_of_a_volume(t *testing.T) {
	t.Parallel()
	vm := testVM(off)
	spec := &vm.Spec.Template.Spec
	spec.Domain.Devices.Interfaces[0].Name = "seed"
	want := map[string]int{"root": 3, "cd": 0, "seed": 2, "interface/seed": 1}
	p, _, err := ordersPatch(vm, &sighting{}, want)
	if err != nil {
		t.Fatal(err)
	}
	there := patched(t, vm, p)
	if diff := cmp.Diff(want, bootorder.Orders(snapshot(there, nil, nil).Devices)); diff != "" {
		t.Errorf("orders mismatch (-want +got):\n%s", diff)
	}
}

// TestOrdersPatch_high_orders are the owner's like others.
func TestOrdersPatch_high_orders(t *testing.T) {
	t.Parallel()
	vm := testVM(off)
	*vm.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder = 5_000_000
	own := bootorder.Orders(snapshot(vm, nil, nil).Devices)
	p, _, err := ordersPatch(vm, &sighting{}, map[string]int{"root": 2, "default": 1})
	if err != nil {
		t.Fatal(err)
	}
	there := patched(t, vm, p)
	if p, _, err = ordersPatch(there, &sighting{}, own); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(vm.Spec, patched(t, there, p).Spec); diff != "" {
		t.Errorf("the template did not come back (-want +got):\n%s", diff)
	}
}
