// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// ofEarlier are the orders that an earlier version gave the template for the network.
var ofEarlier = map[string]int{"default": 1, "rootdisk": 2, "cdrom": 3}

// leave writes an override of an earlier version to the template, and what the
// controller found of it to the state.
func (b *bed) leave(mode hypervisor.FirmwareMode) {
	b.Helper()
	m := b.get()
	left := &bootoverride.Leftover{ID: "left", Orders: map[string]int{"disk:rootdisk": 1, "cdrom:cdrom": 0, "interface:default": 2}}
	if m.Instance != nil {
		left.InstanceUID = m.Instance.UID
	}
	if mode != "" {
		left.Mode = m.Firmware.Mode
	}
	b.ok(b.simulator.SetBoot(b.Context(), ref, m.ResourceVersion, ofEarlier, mode))
	m = b.get()
	state, err := bootoverride.AddLeftover(m.State, left)
	b.ok(err)
	b.ok(b.simulator.SetState(b.Context(), ref, m.State, state))
}

// wantAdopted waits until the leftover is in the record of the power service.
func (b *bed) wantAdopted() {
	b.Helper()
	b.settle()
	view, _, err := bootoverride.ViewOf(b.get().State)
	b.ok(err)
	if view == nil || view.ID != "left" || view.Device != hypervisor.DeviceInterface || view.ByAdmission {
		b.Errorf("override %+v", view)
	}
	if strings.Contains(string(b.get().State), bootoverride.LeftoverKey+`":`) {
		b.Errorf("the leftover is there still: %s", b.get().State)
	}
}

// TestEngine_leftover: an override that an earlier version has left is used once, and
// the template is restored.
func TestEngine_leftover(t *testing.T) {
	t.Parallel()
	for name, admits := range map[string]bool{"template": false, "admission": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				b.admits = admits
				if mode := b.get().Firmware.Mode; mode != hypervisor.FirmwareUEFI {
					b.Fatalf("the machine's own firmware is %s", mode)
				}
				b.leave(hypervisor.FirmwareBIOS)
				b.wantAdopted()
				b.override(record.Once)
				b.orders(ofEarlier)
				b.do(transition.ActionOn)
				b.bootedFrom("default")
				if mode := b.get().Instance.Mode; mode != hypervisor.FirmwareBIOS {
					b.Errorf("the instance has firmware %s", mode)
				}
				b.override(record.Disabled)
				b.orders(own)
				if mode := b.get().Firmware.Mode; mode != hypervisor.FirmwareUEFI {
					b.Errorf("the template is left with firmware %s", mode)
				}
			})
		})
	}
}

// TestEngine_leftoverWaits: the instance that there was when it was armed does not
// use it.
func TestEngine_leftoverWaits(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.do(transition.ActionOn)
		b.bootedFrom("rootdisk")
		b.leave("")
		b.wantAdopted()
		b.orders(ofEarlier)
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("default")
		b.override(record.Disabled)
		b.orders(own)
	})
}

// TestEngine_leftoverUsed: an instance has used it before, and nobody has restored
// the template since.
func TestEngine_leftoverUsed(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		m := b.get()
		b.ok(b.simulator.SetBoot(b.Context(), ref, m.ResourceVersion, ofEarlier, ""))
		b.do(transition.ActionOn)
		b.bootedFrom("default")
		state, err := bootoverride.AddLeftover(nil, &bootoverride.Leftover{ID: "left", Orders: map[string]int{"disk:rootdisk": 1, "cdrom:cdrom": 0, "interface:default": 2}})
		b.ok(err)
		rest, err := record.Parse(b.get().State)
		b.ok(err)
		left, err := record.Parse(state)
		b.ok(err)
		rest.Leftover = left.Leftover
		state, err = rest.Document()
		b.ok(err)
		b.ok(b.simulator.SetState(b.Context(), ref, b.get().State, state))
		b.settle()
		b.override(record.Disabled)
		b.orders(own)
	})
}

// TestEngine_leftoverRestored: where the earlier version has restored the template
// itself, nothing is left to do.
func TestEngine_leftoverRestored(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		state, err := bootoverride.AddLeftover(nil, &bootoverride.Leftover{ID: "left", Orders: map[string]int{"disk:rootdisk": 1, "cdrom:cdrom": 0, "interface:default": 2, "disk:gone": 4}})
		b.ok(err)
		b.ok(b.simulator.SetState(b.Context(), ref, nil, state))
		b.settle()
		b.override(record.Disabled)
		if state := b.get().State; state != nil {
			b.Errorf("the state is %s", state)
		}
		b.orders(own)
	})
}

// TestEngine_leftoverReplaced: what a client arms takes its place, and what is
// restored in the end is the template's own.
func TestEngine_leftoverReplaced(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		admits  bool
		persist record.Persistence
	}{
		"once, by the template": {false, record.Once},
		"once, at admission":    {true, record.Once},
		"continuous":            {false, record.Continuous},
		"taken back":            {false, record.Disabled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				b.admits = tc.admits
				b.leave("")
				target := record.TargetCD
				if tc.persist == record.Disabled {
					target = record.TargetNone
				}
				b.arm(tc.persist, target)
				b.settle()
				b.override(tc.persist)
				if tc.admits || tc.persist == record.Disabled {
					b.orders(own)
				}
				b.arm(record.Disabled, record.TargetNone)
				b.settle()
				b.orders(own)
			})
		})
	}
}

// TestEngine_leftoverComesLate: a client has armed an override before the controller
// found the leftover.
func TestEngine_leftoverComesLate(t *testing.T) {
	t.Parallel()
	for name, admits := range map[string]bool{"template": false, "admission": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				b.admits = admits
				b.ok(b.simulator.SetBoot(b.Context(), ref, b.get().ResourceVersion, ofEarlier, ""))
				b.arm(record.Once, record.TargetCD)
				b.settle()
				rec, err := record.Parse(b.get().State)
				b.ok(err)
				rec.Leftover = &bootoverride.Leftover{ID: "left", Orders: map[string]int{"disk:rootdisk": 1, "cdrom:cdrom": 0, "interface:default": 2}}
				state, err := rec.Document()
				b.ok(err)
				b.ok(b.simulator.SetState(b.Context(), ref, b.get().State, state))
				b.settle()
				b.override(record.Once)
				b.arm(record.Disabled, record.TargetNone)
				b.settle()
				b.orders(own)
			})
		})
	}
}
