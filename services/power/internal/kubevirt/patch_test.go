// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	kvv1 "kubevirt.io/api/core/v1"

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
			p, err := ordersPatch(&testVM(off).Spec.Template.Spec, c.orders)
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
			_, err := ordersPatch(&testVM(off).Spec.Template.Spec, orders)
			if _, ok := errors.AsType[*hypervisor.InvalidError](err); !ok {
				t.Errorf("got %v, want it to be invalid", err)
			}
		})
	}
}

func TestOrdersPatch_interface_with_the_name_of_a_disk(t *testing.T) {
	t.Parallel()
	spec := &testVM(off).Spec.Template.Spec
	spec.Domain.Devices.Interfaces[0].Name = "root"
	if diff := cmp.Diff(map[string]int{"root": 1, "interface/root": 2}, hypervisor.BootOrder(devices(spec))); diff != "" {
		t.Errorf("boot order mismatch (-want +got):\n%s", diff)
	}
	p, err := ordersPatch(spec, map[string]int{"interface/root": 3})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"op":"add","path":"/spec/template/spec/domain/devices/interfaces/0/bootOrder","value":3}`}
	if diff := cmp.Diff(want, document(t, p)); diff != "" {
		t.Errorf("patch mismatch (-want +got):\n%s", diff)
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
	p, err := modePatch(vm, mode)
	if err != nil {
		t.Fatal(err)
	}
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
	patched, err := applyPatch(fields, body)
	if err != nil {
		t.Fatalf("apply %s: %v", body, err)
	}
	source, err = json.Marshal(patched)
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
