// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// expandOver expands as KubeVirt does: what the template says wins, and is in
// the answer.
func expandOver(vm *kvv1.VirtualMachine) *kvv1.VirtualMachine {
	whole := vm.DeepCopy()
	whole.Spec.Instancetype, whole.Spec.Preference = nil, nil
	spec := &whole.Spec.Template.Spec
	spec.Domain.CPU = &kvv1.CPU{Sockets: 1, Cores: 2, Threads: 1}
	for _, name := range implicitDisks(spec) {
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kvv1.Disk{Name: name})
	}
	if len(spec.Domain.Devices.Interfaces) == 0 {
		spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: podInterface, InterfaceBindingMethod: bridged}}
		spec.Networks = []kvv1.Network{*kvv1.DefaultPodNetwork()}
	}
	return whole
}

// operated is a server with a machine, and an engine that operates it.
func operated(t *testing.T, vm *kvv1.VirtualMachine) (*fakeAPI, *Hypervisor, *machine.Engine) {
	t.Helper()
	api := newFakeAPI(t)
	api.put(vm)
	api.expand = expandOver
	h := started(t, api)
	engine := machine.New(machine.Config{Hypervisor: h, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	waitExpanded(t, h)
	return api, h, engine
}

func waitExpanded(t *testing.T, h *Hypervisor) {
	t.Helper()
	within(t, "expanded", func() bool {
		vm, _ := h.objects(ref)
		return vm != nil && expanded(vm, h.sighting(ref))
	})
}

func set(t *testing.T, engine *machine.Engine, o record.Override) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := engine.SetOverride(ctx, ref, o); err != nil {
		t.Fatalf("set %s %s: %v", o.Persistence, o.Target, err)
	}
}

var cleared = record.Override{Persistence: record.Disabled, Target: record.TargetNone}

// TestOverride_of_an_expanded_machine comes and goes while the expansion that is
// known is of the template with the override in it.
func TestOverride_of_an_expanded_machine(t *testing.T) {
	t.Parallel()
	for name, override := range map[string]record.Override{
		"firmware mode": {Persistence: record.Continuous, Target: record.TargetHDD, Mode: hypervisor.FirmwareUEFI},
		"interface":     {Persistence: record.Continuous, Target: record.TargetPXE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := typedVM()
			vm.Spec.Template.Spec.Domain.Firmware = &kvv1.Firmware{UUID: "uuid"} // As KubeVirt fills it in.
			api, h, engine := operated(t, vm)
			before, _ := h.objects(ref)
			set(t, engine, override)
			waitExpanded(t, h)
			api.mu.Lock()
			api.expand = nil // The next one does not come.
			api.mu.Unlock()
			set(t, engine, cleared)
			after, _ := h.objects(ref)
			if diff := cmp.Diff(before.Spec, after.Spec); diff != "" {
				t.Errorf("the template did not come back (-want +got):\n%s", diff)
			}
			for _, key := range []string{bootloaderAnnotation, devicesAnnotation} {
				if value, ok := after.Annotations[key]; ok {
					t.Errorf("annotation %s is still there: %s", key, value)
				}
			}
		})
	}
}

// TestSetBoot_knows_an_instance_that_came_first: at a start the instance may be
// seen before its machine.
func TestSetBoot_knows_an_instance_that_came_first(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	h := started(t, api)
	vm := implicitVM()
	vmi := testVMI("vmi", kvv1.Running)
	vmi.Spec = *vm.Spec.Template.Spec.DeepCopy()
	vmi.Spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: podInterface, InterfaceBindingMethod: bridged}}
	api.put(vmi)
	within(t, "seen", func() bool { return len(h.of(ref.Namespace).vmis.GetIndexer().List()) == 1 })
	api.put(vm)
	var m *hypervisor.Machine
	within(t, "there", func() bool {
		found, err := h.Get(ref)
		m = found
		return err == nil && found.Instance != nil
	})
	if err := h.SetBoot(t.Context(), ref, m.ResourceVersion, map[string]int{podInterface: 1, "root": 2}, ""); err != nil {
		t.Fatal(err)
	}
}

// TestOverride_waits_for_a_late_watch in place of sending what is refused again
// and again.
func TestOverride_waits_for_a_late_watch(t *testing.T) {
	t.Parallel()
	vm := implicitVM()
	api, h, engine := operated(t, vm)
	set(t, engine, record.Override{Persistence: record.Continuous, Target: record.TargetHDD})
	m, err := h.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	api.mu.Lock()
	api.lag = 500 * time.Millisecond
	object := api.objects[key(resourceVMs, ref.Namespace, ref.Name)]
	changed := map[string]any{"status": map[string]any{"printableStatus": "Stopped"}}
	for k, v := range object {
		if k != "status" {
			changed[k] = v
		}
	}
	api.store(resourceVMs, changed)
	before := len(api.requests)
	api.mu.Unlock()
	for { // As an engine does that sees the old version.
		err = h.SetBoot(t.Context(), ref, m.ResourceVersion, map[string]int{"root": 5}, "")
		if err == nil {
			break
		}
		if m, err = h.Get(ref); err != nil {
			t.Fatal(err)
		}
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	patches := 0
	for _, request := range api.requests[before:] {
		if strings.HasPrefix(request, "PATCH") {
			patches++
		}
	}
	if patches > 3 {
		t.Errorf("%d patches while the watch was late", patches)
	}
}

// TestTransition_waits_for_a_late_watch: what another process has written is
// waited for, not fought for.
func TestTransition_waits_for_a_late_watch(t *testing.T) {
	t.Parallel()
	api, _, engine := operated(t, testVM(off))
	changed := testVM(off)
	changed.Annotations = map[string]string{stateAnnotation: `{"media":{}}`}
	api.mu.Lock()
	api.lag = time.Second
	api.mu.Unlock()
	api.put(changed)
	api.mu.Lock()
	before := len(api.requests)
	api.mu.Unlock()
	status, err := engine.Transition(t.Context(), ref, transition.ActionOn, 0)
	if err != nil {
		t.Fatal(err)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	patches := 0
	for _, request := range api.requests[before:] {
		if strings.HasPrefix(request, "PATCH") {
			patches++
		}
	}
	if !status.Operation.Active() || patches > 4 {
		t.Errorf("%d patches for %+v", patches, status.Operation)
	}
}
