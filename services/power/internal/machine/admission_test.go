// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// admitting runs a test with a webhook that gives instances their overrides.
func admitting(t *testing.T, spec simulator.Spec, f func(b *bed)) {
	t.Helper()
	bubble(t, spec, func(b *bed) {
		b.admits = true
		b.simulator.SetAdmission(true)
		f(b)
	})
}

// armed expects what the webhook is told.
func (b *bed) armed(want hypervisor.DeviceKind) {
	b.Helper()
	got, err := bootoverride.FromState(b.get().State)
	switch {
	case err != nil:
		b.Fatal(err)
	case want == "" && got != nil:
		b.Fatalf("%+v is armed, want nothing", got)
	case want != "" && (got == nil || got.Device != want):
		b.Fatalf("%+v is armed, want %s", got, want)
	}
}

// untouched expects a template that nobody has written to.
func (b *bed) untouched() {
	b.Helper()
	b.orders(own)
	if n := b.count(simulator.VerbSetBoot); n > 0 {
		b.Fatalf("the template was written %d times", n)
	}
}

// missesOne has the webhook miss the next instance.
func (b *bed) missesOne() (cancel func()) {
	b.simulator.SetAdmission(false)
	return b.simulator.Subscribe(func(hypervisor.Ref) {
		if m, err := b.simulator.Get(ref); err == nil && m.Instance != nil {
			b.simulator.SetAdmission(true)
		}
	})
}

func TestAdmission_onceBootsOnceAndNeverTouchesTheTemplate(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual, hypervisor.RunStrategyHalted,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			admitting(t, simulator.Spec{RunStrategy: strategy, Trays: withISO.Trays}, func(b *bed) {
				b.do(transition.ActionOn)
				b.bootedFrom("rootdisk")
				b.arm(record.Once, record.TargetPXE)
				b.override(record.Once)
				b.armed(hypervisor.DeviceInterface)
				b.settle()
				b.override(record.Once)
				b.do(transition.ActionForceRestart)
				b.bootedFrom("default")
				b.override(record.Disabled)
				b.armed("")
				// The instance has the override's order for good.
				b.do(transition.ActionForceRestart)
				b.bootedFrom("rootdisk")
				b.untouched()
			})
		})
	}
}

func TestAdmission_secondOneReplacesTheFirst(t *testing.T) {
	t.Parallel()
	admitting(t, withISO, func(b *bed) {
		b.arm(record.Once, record.TargetPXE)
		b.arm(record.Once, record.TargetCD)
		b.armed(hypervisor.DeviceCDROM)
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
		b.override(record.Disabled)
		b.untouched()
	})
}

func TestAdmission_cleared(t *testing.T) {
	t.Parallel()
	admitting(t, withISO, func(b *bed) {
		b.arm(record.Once, record.TargetPXE)
		b.arm(record.Disabled, record.TargetNone)
		b.override(record.Disabled)
		b.armed("")
		b.do(transition.ActionOn)
		b.bootedFrom("rootdisk")
		b.untouched()
	})
}

func TestAdmission_failedStartDoesNotUseIt(t *testing.T) {
	t.Parallel()
	admitting(t, withISO, func(b *bed) {
		if err := b.simulator.FailStarts(ref, 1); err != nil {
			b.Fatal(err)
		}
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
		b.override(record.Disabled)
		b.untouched()
	})
}

// A persistent override is the template's; a one-time one after it has the
// template restored first, and one before it goes.
func TestAdmission_besideAPersistentOne(t *testing.T) {
	t.Parallel()
	admitting(t, withISO, func(b *bed) {
		b.arm(record.Continuous, record.TargetCD)
		b.armed("")
		b.orders(map[string]int{"rootdisk": 2, "cdrom": 1, "default": 3})
		b.arm(record.Once, record.TargetPXE)
		b.armed(hypervisor.DeviceInterface)
		b.orders(own)
		b.arm(record.Continuous, record.TargetCD)
		b.armed("")
		b.arm(record.Once, record.TargetPXE)
		b.do(transition.ActionOn)
		b.bootedFrom("default")
		b.override(record.Disabled)
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("rootdisk")
		b.orders(own)
	})
}

func TestAdmission_firmwareMode(t *testing.T) {
	t.Parallel()
	admitting(t, bothModes, func(b *bed) {
		b.ok(b.engine.SetOverride(b.Context(), ref, record.Override{
			Persistence: record.Once, Target: record.TargetPXE, Mode: hypervisor.FirmwareUEFI,
		}))
		b.do(transition.ActionOn)
		b.modes(hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI, hypervisor.FirmwareBIOS)
		// The machine's own mode changes under an override that waits.
		b.arm(record.Once, record.TargetPXE)
		b.ok(b.engine.SetFirmwareMode(b.Context(), ref, hypervisor.FirmwareUEFI))
		b.override(record.Once)
		if got := b.get().Firmware.Mode; got != hypervisor.FirmwareUEFI {
			b.Errorf("the machine's own mode is %s", got)
		}
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("default")
		b.override(record.Disabled)
	})
}

// TestAdmission_bypassed: a machine that starts without its override is made anew
// at once, and the action that has started it succeeds with the second instance.
func TestAdmission_bypassed(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			admitting(t, simulator.Spec{RunStrategy: strategy, Trays: withISO.Trays}, func(b *bed) {
				b.do(transition.ActionOn)
				b.do(transition.ActionForceOff)
				b.arm(record.Once, record.TargetPXE)
				defer b.missesOne()()
				b.do(transition.ActionOn)
				b.bootedFrom("default")
				b.override(record.Disabled)
				if got := b.get().RunStrategy; got != strategy {
					b.Errorf("run strategy is %s, want %s", got, strategy)
				}
				b.untouched()
			})
		})
	}
}

// TestAdmission_startedByOthers: also without an action of ours.
func TestAdmission_startedByOthers(t *testing.T) {
	t.Parallel()
	admitting(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual, Trays: withISO.Trays}, func(b *bed) {
		b.arm(record.Once, record.TargetPXE)
		time.Sleep(2 * time.Second)
		defer b.missesOne()()
		b.ok(b.simulator.Start(b.Context(), ref))
		b.bootedFrom("default")
		b.override(record.Disabled)
		b.untouched()
	})
}

// TestAdmission_bypassedForGood: a webhook that stays away makes the override
// fail, and the machine is not made anew for ever.
func TestAdmission_bypassedForGood(t *testing.T) {
	t.Parallel()
	admitting(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyAlways, Trays: withISO.Trays}, func(b *bed) {
		b.do(transition.ActionOn)
		b.do(transition.ActionForceOff)
		b.simulator.SetAdmission(false)
		b.arm(record.Once, record.TargetPXE)
		b.do(transition.ActionOn)
		b.settle()
		b.override(record.Disabled)
		b.armed("")
		b.bootedFrom("rootdisk")
		rec, err := record.Parse(b.get().State)
		if err != nil || rec.Bypassed == nil || rec.Bypassed.ID == "" {
			b.Errorf("nothing tells of the override that failed: %v, %v", rec, err)
		}
		if len(b.troubles) != 2 || !strings.Contains(b.troubles[0][1], "made anew") || !strings.Contains(b.troubles[1][1], "given up") {
			b.Errorf("told of %q", b.troubles)
		}
		if n := b.count(simulator.VerbStop); n != 2 {
			b.Errorf("the machine was stopped %d times, want once to be off and once for the override", n)
		}
		// One that works makes up for it.
		b.simulator.SetAdmission(true)
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("cdrom")
		if rec, err := record.Parse(b.get().State); err != nil || rec.Bypassed != nil {
			b.Errorf("it is still told of: %v, %v", rec, err)
		}
	})
}

// TestAdmission_lostAnswers leave the override that stood before.
func TestAdmission_lostAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before  func(b *bed)
		wanted  record.Override
		armed   hypervisor.DeviceKind
		inForce record.Persistence
	}{
		"over none": {func(*bed) {}, record.Override{Persistence: record.Once, Target: record.TargetCD}, "", record.Disabled},
		"over one of its kind": {
			func(b *bed) { b.arm(record.Once, record.TargetPXE) },
			record.Override{Persistence: record.Once, Target: record.TargetCD},
			hypervisor.DeviceInterface, record.Once,
		},
		"over a persistent one": {
			func(b *bed) { b.arm(record.Continuous, record.TargetPXE) },
			record.Override{Persistence: record.Once, Target: record.TargetCD},
			"", record.Continuous,
		},
		"a persistent one over it": {
			func(b *bed) { b.arm(record.Once, record.TargetPXE) },
			record.Override{Persistence: record.Continuous, Target: record.TargetCD},
			hypervisor.DeviceInterface, record.Once,
		},
		"that clears it": {
			func(b *bed) { b.arm(record.Once, record.TargetPXE) },
			record.Override{Persistence: record.Disabled, Target: record.TargetNone},
			hypervisor.DeviceInterface, record.Once,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admitting(t, withISO, func(b *bed) {
				test.before(b)
				before := b.get().Devices
				d := b.onDoubtful()
				d.answer.Store(&errLost)
				if err := b.engine.SetOverride(b.Context(), ref, test.wanted); !errors.Is(err, hypervisor.ErrUnavailable) {
					b.Fatalf("got error %v, want %v", err, hypervisor.ErrUnavailable)
				}
				b.settle()
				b.override(test.inForce)
				b.armed(test.armed)
				if diff := cmp.Diff(before, b.get().Devices); diff != "" {
					b.Errorf("devices mismatch (-before +after):\n%s", diff)
				}
			})
		})
	}
}

// TestAdmission_otherProcess: a process that comes after the one that armed the
// override sees that it was used.
func TestAdmission_otherProcess(t *testing.T) {
	t.Parallel()
	admitting(t, withISO, func(b *bed) {
		b.arm(record.Once, record.TargetPXE)
		b.kill()
		if err := b.simulator.SetRunStrategy(b.Context(), ref, b.get().RunStrategy, hypervisor.RunStrategyAlways); err != nil {
			b.Fatal(err)
		}
		b.settle()
		b.start(b.simulator, "other")
		b.settle()
		b.bootedFrom("default")
		b.override(record.Disabled)
		b.armed("")
		b.untouched()
	})
}
