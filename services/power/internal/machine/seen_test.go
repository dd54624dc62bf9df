// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"slices"
	"testing"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// forgetful is a hypervisor that knows MAC addresses and the sizes of disks only
// while there is an instance, as KubeVirt does where the template is silent.
type forgetful struct{ *simulator.Simulator }

func (f forgetful) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	m, err := f.Simulator.Get(ref)
	if err != nil || m.Instance != nil {
		return m, err
	}
	blank := *m
	blank.Hardware.Interfaces = slices.Clone(m.Hardware.Interfaces)
	blank.Hardware.Disks = slices.Clone(m.Hardware.Disks)
	blank.Hardware.Interfaces[0].MAC = ""
	blank.Hardware.Disks[0].CapacityBytes = 0
	return &blank, nil
}

func TestEngine_hardwareIsRememberedByTheNextProcess(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bed){
		"switched off by an action":       func(b *bed) { b.do(transition.ActionForceOff) },
		"switched off by somebody else":   func(b *bed) { b.ok(b.simulator.Stop(b.Context(), ref, nil)) },
		"read once, and the process died": func(b *bed) { b.kill(); b.ok(b.simulator.Stop(b.Context(), ref, nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
				b.kill()
				b.start(forgetful{b.simulator}, "first")
				hardware := func() hypervisor.Hardware {
					b.Helper()
					m, err := b.engine.Machine(ref)
					if err != nil {
						b.Fatal(err)
					}
					return m.Hardware
				}
				if h := hardware(); h.Interfaces[0].MAC != "" || h.Disks[0].CapacityBytes != 0 {
					b.Fatalf("a machine that never ran has %+v", h)
				}
				b.ok(b.simulator.Start(b.Context(), ref))
				b.settle()
				want := hardware()
				b.settle()
				end(b)
				b.settle()
				b.kill()
				b.start(forgetful{b.simulator}, "second")
				b.state(transition.Absent)
				got := hardware()
				if got.Interfaces[0].MAC != want.Interfaces[0].MAC || got.Disks[0].CapacityBytes != want.Disks[0].CapacityBytes {
					b.Errorf("the machine has %+v, had %+v", got, want)
				}
			})
		})
	}
}

func TestEngine_hardwareOfAnotherMachineIsNotRemembered(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.kill()
		b.start(forgetful{b.simulator}, "first")
		b.do(transition.ActionOn)
		b.do(transition.ActionForceOff)
		state := b.get().State
		b.ok(b.simulator.DeleteMachine(ref))
		b.ok(b.simulator.AddMachine(simulator.Spec{Ref: ref}))
		b.ok(b.simulator.SetState(b.Context(), ref, nil, state))
		m, err := b.engine.Machine(ref)
		if err != nil {
			b.Fatal(err)
		}
		if got := m.Hardware.Interfaces[0].MAC; got != "" {
			b.Errorf("a new machine has the address %s of an earlier one", got)
		}
	})
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
