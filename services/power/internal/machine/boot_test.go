// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

func (b *bed) arm(persistence record.Persistence, target record.Target) {
	b.Helper()
	if err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: persistence, Target: target}); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) override(want record.Persistence) {
	b.Helper()
	status, err := b.engine.BootStatus(ref)
	if err != nil {
		b.Fatal(err)
	}
	got := record.Disabled
	if status.Override != nil {
		got = status.Override.Persistence
	}
	if got != want {
		b.Fatalf("override is %s, want %s", got, want)
	}
}

func (b *bed) orders(want map[string]int) {
	b.Helper()
	if diff := cmp.Diff(want, bootorder.Orders(b.get().Devices)); diff != "" {
		b.Fatalf("orders in the template mismatch (-want +got)\n%s", diff)
	}
}

// bootedFrom waits for the guest's firmware and expects it to choose a device.
func (b *bed) bootedFrom(want string) {
	b.Helper()
	b.settle()
	if got := b.simulator.BootedFrom(ref); got != want {
		b.Fatalf("guest was booted from %q, want %q", got, want)
	}
}

var own = map[string]int{"rootdisk": 1, "cdrom": 0, "default": 2}

// withISO is a machine with a medium in its tray.
var withISO = simulator.Spec{Trays: []simulator.TraySpec{{Name: "cdrom", Volume: "iso"}}}

func TestEngine_onceBootsOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.arm(record.Once, record.TargetPXE)
		b.override(record.Once)
		b.orders(map[string]int{"rootdisk": 2, "cdrom": 3, "default": 1})
		b.do(transition.ActionOn)
		b.override(record.Disabled)
		b.bootedFrom("default")
		b.orders(own)
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("rootdisk")
	})
}

// TestEngine_viewOfOwnOrders: readers of the record learn the template's own orders,
// with the kinds of the devices, for as long as an override is in its place.
func TestEngine_viewOfOwnOrders(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		want := func(want []hypervisor.BootDevice) {
			b.Helper()
			view, _, err := bootoverride.ViewOf(b.get().State)
			if err != nil {
				b.Fatal(err)
			}
			var got []hypervisor.BootDevice
			if view != nil {
				got = view.Own
			}
			slices.SortFunc(got, func(a, b hypervisor.BootDevice) int { return strings.Compare(a.Name, b.Name) })
			if diff := cmp.Diff(want, got); diff != "" {
				b.Errorf("own orders in view mismatch (-want +got)\n%s", diff)
			}
		}
		devices := []hypervisor.BootDevice{
			{Name: "cdrom", Kind: hypervisor.DeviceCDROM},
			{Name: "default", Kind: hypervisor.DeviceInterface, Order: 2},
			{Name: "rootdisk", Kind: hypervisor.DeviceDisk, Order: 1},
		}
		want(nil)
		b.arm(record.Once, record.TargetPXE)
		want(devices)
		b.arm(record.Continuous, record.TargetCD)
		want(devices)
		b.arm(record.Disabled, record.TargetNone)
		want(nil)
	})
}

func TestEngine_onceWhileRunning(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string][]transition.Action{
		"off and on":       {transition.ActionForceOff, transition.ActionOn},
		"shutdown and on":  {transition.ActionGracefulShutdown, transition.ActionOn},
		"force restart":    {transition.ActionForceRestart},
		"graceful restart": {transition.ActionGracefulRestart},
		"power cycle":      {transition.ActionPowerCycle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				first := b.do(transition.ActionOn).InstanceUID
				b.bootedFrom("rootdisk")
				b.arm(record.Once, record.TargetCD)
				b.settle()
				if got := b.get().Instance.UID; got != first {
					b.Fatalf("arming replaced the instance")
				}
				b.override(record.Once)
				for _, action := range restart {
					b.do(action)
				}
				b.override(record.Disabled)
				b.bootedFrom("cdrom")
				b.orders(own)
				// The instance has the override's order for good: the next
				// restart needs a new one.
				b.do(transition.ActionForceRestart)
				b.bootedFrom("rootdisk")
			})
		})
	}
}

func TestEngine_onceSurvivesOffSetOn(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.do(transition.ActionOn)
		b.ask(transition.ActionForceOff)
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
		b.override(record.Disabled)
	})
}

func TestEngine_guestRebootDoesNotUseAnOverride(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.do(transition.ActionOn)
		b.arm(record.Once, record.TargetCD)
		if err := b.simulator.RebootGuest(ref); err != nil {
			b.Fatal(err)
		}
		b.bootedFrom("rootdisk")
		b.override(record.Once)
	})
}

func TestEngine_failedStartDoesNotUseAnOverride(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		if err := b.simulator.FailStarts(ref, 1); err != nil {
			b.Fatal(err)
		}
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
		b.override(record.Disabled)
	})
}

func TestEngine_continuousStaysUntilCleared(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.arm(record.Continuous, record.TargetCD)
		for range 2 {
			b.do(transition.ActionOn)
			b.bootedFrom("cdrom")
			b.do(transition.ActionForceOff)
			b.override(record.Continuous)
		}
		b.arm(record.Once, record.TargetPXE)
		b.do(transition.ActionOn)
		b.bootedFrom("default")
		b.orders(own)
		b.arm(record.Continuous, record.TargetCD)
		b.arm(record.Disabled, record.TargetNone)
		b.override(record.Disabled)
		b.orders(own)
	})
}

func TestEngine_userEditsAreKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit, want map[string]int
	}{
		"another order for one device": {map[string]int{"cdrom": 9}, map[string]int{"rootdisk": 1, "cdrom": 9, "default": 2}},
		"an order taken away":          {map[string]int{"default": 0}, map[string]int{"rootdisk": 1, "cdrom": 0, "default": 0}},
		"an order that another device gets back": {
			map[string]int{"cdrom": 4, "rootdisk": 3, "default": 2},
			map[string]int{"rootdisk": 3, "cdrom": 4, "default": 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				b.arm(record.Once, record.TargetCD)
				b.orders(map[string]int{"rootdisk": 2, "cdrom": 1, "default": 3})
				if err := b.simulator.SetBoot(b.Context(), ref, b.get().ResourceVersion, test.edit, ""); err != nil {
					b.Fatal(err)
				}
				b.settle()
				b.arm(record.Disabled, record.TargetNone)
				b.orders(test.want)
			})
		})
	}
}

func TestEngine_overrideRefusals(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{Trays: []simulator.TraySpec{}}, func(b *bed) {
		for name, test := range map[string]struct {
			wanted record.Override
			err    error
		}{
			"no such device": {record.Override{Persistence: record.Once, Target: record.TargetCD}, machine.ErrNoBootDevice},
			"other mode":     {record.Override{Persistence: record.Once, Target: record.TargetPXE, Mode: hypervisor.FirmwareBIOS}, machine.ErrBootMode},
		} {
			if err := b.engine.SetOverride(b.Context(), ref, test.wanted); !errors.Is(err, test.err) {
				b.Errorf("%s: got %v, want %v", name, err, test.err)
			}
		}
		b.arm(record.Once, record.TargetPXE)
		if err := b.simulator.FailNext(ref, simulator.VerbSetBoot, hypervisor.ErrUnavailable); err != nil {
			b.Fatal(err)
		}
		err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Disabled})
		if !errors.Is(err, hypervisor.ErrUnavailable) {
			b.Fatalf("got %v, want %v", err, hypervisor.ErrUnavailable)
		}
		b.settle()
		b.override(record.Once)
		b.do(transition.ActionOn)
		b.bootedFrom("default")
	})
	bubble(t, simulator.Spec{KernelBoot: true}, func(b *bed) {
		err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Once, Target: record.TargetPXE})
		if !errors.Is(err, machine.ErrKernelBoot) {
			b.Errorf("got %v, want %v", err, machine.ErrKernelBoot)
		}
	})
}

func TestEngine_flagsAreKeptVerbatim(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		flags := []byte{0xa0, 0x04, 0, 0, 0}
		wanted := record.Override{Persistence: record.Disabled, Flags: flags}
		if err := b.engine.SetOverride(b.Context(), ref, wanted); err != nil {
			b.Fatal(err)
		}
		status, err := b.engine.BootStatus(ref)
		if err != nil {
			b.Fatal(err)
		}
		if diff := cmp.Diff(flags, status.Override.Flags); diff != "" {
			b.Errorf("flags mismatch (-want +got)\n%s", diff)
		}
		b.orders(own)
	})
}

// dying is a hypervisor whose client is killed in the middle of a request: it
// carries the request out and never answers, and neither does it answer later
// ones.
type dying struct {
	*simulator.Simulator
	verb  simulator.Verb
	after bool
	dead  chan struct{}
}

func (d *dying) die(verb simulator.Verb, request func() error) error {
	select {
	case <-d.dead:
		return hypervisor.ErrUnavailable
	default:
	}
	if verb != d.verb {
		return request()
	}
	if d.after {
		_ = request()
	}
	close(d.dead)
	return hypervisor.ErrUnavailable
}

func TestEngine_killedProcessIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, holder := range []string{"holder", "another"} {
		for name, test := range map[string]struct {
			action transition.Action
			verb   simulator.Verb
			after  bool
		}{
			"on, before the strategy is set":   {transition.ActionOn, simulator.VerbSetRunStrategy, false},
			"on, after the strategy is set":    {transition.ActionOn, simulator.VerbSetRunStrategy, true},
			"cycle, before the stop":           {transition.ActionPowerCycle, simulator.VerbStop, false},
			"cycle, after the stop":            {transition.ActionPowerCycle, simulator.VerbStop, true},
			"cycle, before the start":          {transition.ActionPowerCycle, simulator.VerbStart, false},
			"cycle, after the start":           {transition.ActionPowerCycle, simulator.VerbStart, true},
			"off, before the stop":             {transition.ActionForceOff, simulator.VerbStop, false},
			"off, after the stop":              {transition.ActionForceOff, simulator.VerbStop, true},
			"shutdown, after the stop":         {transition.ActionGracefulShutdown, simulator.VerbStop, true},
			"restart, after the reset":         {transition.ActionForceRestart, simulator.VerbReset, true},
			"restart, before the reset":        {transition.ActionForceRestart, simulator.VerbReset, false},
			"graceful restart, after the call": {transition.ActionGracefulRestart, simulator.VerbSoftReboot, true},
		} {
			t.Run(name+"/"+holder, func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{}, func(b *bed) {
					var first string
					if test.action != transition.ActionOn {
						first = b.do(transition.ActionOn).InstanceUID
						b.settle()
					}
					b.kill()
					d := &dying{Simulator: b.simulator, verb: test.verb, after: test.after, dead: make(chan struct{})}
					b.start(&dyingHypervisor{dying: d}, "holder")
					b.ask(test.action)
					<-d.dead
					b.kill()
					before := b.get()

					b.start(b.simulator, holder)
					b.settle()
					status, err := b.engine.Status(ref)
					if err != nil {
						b.Fatal(err)
					}
					m := b.get()
					if test.verb == simulator.VerbReset || test.verb == simulator.VerbSoftReboot {
						// Nothing shows whether it happened: not done again.
						if status.Operation.Phase != record.Failed {
							b.Errorf("operation is %s, want it to be reported as failed", status.Operation.Phase)
						}
						want := 0
						if test.after {
							want = 1
						}
						if got := b.count(test.verb); got != want {
							b.Errorf("%s was sent %d times, want %d", test.verb, got, want)
						}
						return
					}
					if status.Operation.Phase != record.Succeeded {
						b.Fatalf("operation is %s: %s", status.Operation.Phase, status.Operation.Message)
					}
					if got := b.count(test.verb); test.verb != simulator.VerbStart && got != 1 {
						b.Errorf("%s was accepted %d times, want 1: %v", test.verb, got, b.simulator.Done(ref))
					}
					switch test.action {
					case transition.ActionOn:
						b.state(transition.Running)
					case transition.ActionPowerCycle:
						b.state(transition.Running)
						if m.Instance.UID == first {
							b.Errorf("the instance was not replaced")
						}
						if i := before.Instance; i != nil && i.UID != first && i.UID != m.Instance.UID {
							b.Errorf("the machine was cycled twice")
						}
					default:
						if m.Instance != nil {
							b.Errorf("the machine is on")
						}
					}
				})
			})
		}
	}
}

func TestEngine_killedWhileArming(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		bubble(t, withISO, func(b *bed) {
			b.kill()
			d := &dying{Simulator: b.simulator, verb: simulator.VerbSetBoot, after: after, dead: make(chan struct{})}
			b.start(&dyingHypervisor{dying: d}, "holder")
			_ = b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Once, Target: record.TargetCD})
			b.kill()
			b.start(b.simulator, "another")
			b.do(transition.ActionOn)
			b.bootedFrom("cdrom")
			b.override(record.Disabled)
			b.orders(own)
		})
	}
}

func TestEngine_killedWhileRestoring(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		bubble(t, withISO, func(b *bed) {
			b.arm(record.Once, record.TargetCD)
			b.kill()
			d := &dying{Simulator: b.simulator, verb: simulator.VerbSetBoot, after: after, dead: make(chan struct{})}
			b.start(&dyingHypervisor{dying: d}, "holder")
			b.ask(transition.ActionOn)
			<-d.dead
			b.override(record.Disabled)
			b.kill()
			b.start(b.simulator, "another")
			synctest.Wait()
			b.bootedFrom("cdrom")
			b.override(record.Disabled)
			b.orders(own)
			time.Sleep(time.Hour)
			b.orders(own)
		})
	}
}

// late carries SetBoot out and answers once that it can't tell.
type late struct {
	*simulator.Simulator
	once atomic.Bool
}

func (l *late) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	err := l.Simulator.SetBoot(ctx, ref, resourceVersion, orders, mode)
	if err == nil && l.once.CompareAndSwap(true, false) {
		return fmt.Errorf("%w: the answer was lost", hypervisor.ErrUnavailable)
	}
	return err
}

// lateBubble runs a test on a machine that may have an override; the next
// SetBoot is carried out and reported as failed.
func lateBubble(t *testing.T, earlier record.Target, f func(b *bed)) {
	t.Helper()
	bubble(t, withISO, func(b *bed) {
		b.kill()
		l := &late{Simulator: b.simulator}
		b.start(l, "holder")
		if earlier != "" {
			b.arm(record.Once, earlier)
		}
		l.once.Store(true)
		f(b)
	})
}

func (b *bed) failsToSet(persistence record.Persistence, target record.Target) {
	b.Helper()
	err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: persistence, Target: target})
	if !errors.Is(err, hypervisor.ErrUnavailable) {
		b.Fatalf("got error %v, want %v", err, hypervisor.ErrUnavailable)
	}
	b.settle()
}

func TestEngine_failedOverrideLeavesNothing(t *testing.T) {
	t.Parallel()
	lateBubble(t, "", func(b *bed) {
		b.failsToSet(record.Once, record.TargetPXE)
		b.override(record.Disabled)
		b.orders(own)
	})
}

func TestEngine_failedOverrideLeavesTheEarlierOne(t *testing.T) {
	t.Parallel()
	for name, wanted := range map[string]record.Override{
		"replaced": {Persistence: record.Once, Target: record.TargetPXE},
		"cleared":  {Persistence: record.Disabled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lateBubble(t, record.TargetCD, func(b *bed) {
				b.failsToSet(wanted.Persistence, wanted.Target)
				b.override(record.Once)
				b.do(transition.ActionOn)
				b.bootedFrom("cdrom")
				b.override(record.Disabled)
				b.orders(own)
			})
		})
	}
}

// An override is used also where the user has changed another device's order
// since.
func TestEngine_onceIsUsedInSpiteOfAnEdit(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.arm(record.Once, record.TargetCD)
		if err := b.simulator.SetBoot(b.Context(), ref, b.get().ResourceVersion, map[string]int{"default": 9}, ""); err != nil {
			b.Fatal(err)
		}
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
		b.settle()
		b.override(record.Disabled)
		b.do(transition.ActionPowerCycle)
		b.bootedFrom("rootdisk")
	})
}

// bothModes is a machine whose owner has not settled its firmware mode.
var bothModes = simulator.Spec{
	Mode:  hypervisor.FirmwareBIOS,
	Modes: []hypervisor.FirmwareMode{hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI},
	Trays: []simulator.TraySpec{{Name: "cdrom", Volume: "iso"}},
}

func (b *bed) set(o record.Override) {
	b.Helper()
	if err := b.engine.SetOverride(b.Context(), ref, o); err != nil {
		b.Fatal(err)
	}
}

// modes expects the mode of the template, of the running instance, and the one
// that clients see as the machine's own.
func (b *bed) modes(template, instance, own hypervisor.FirmwareMode) {
	b.Helper()
	b.settle()
	m := b.get()
	status, err := b.engine.BootStatus(ref)
	if err != nil {
		b.Fatal(err)
	}
	got := [3]hypervisor.FirmwareMode{m.Firmware.Mode, "", status.Mode}
	if m.Instance != nil {
		got[1] = m.Instance.Mode
	}
	if want := [3]hypervisor.FirmwareMode{template, instance, own}; got != want {
		b.Fatalf("template, instance and own mode are %v, want %v", got, want)
	}
}

func TestEngine_firmwareModeOnce(t *testing.T) {
	t.Parallel()
	const bios, uefi = hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI
	for name, target := range map[string]record.Target{"with a device": record.TargetCD, "alone": record.TargetNone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, bothModes, func(b *bed) {
				b.do(transition.ActionOn)
				b.set(record.Override{Persistence: record.Once, Target: target, Mode: uefi})
				b.override(record.Once)
				b.modes(uefi, bios, bios)
				b.do(transition.ActionForceRestart)
				b.override(record.Disabled)
				b.modes(bios, uefi, bios)
				b.orders(own)
				b.do(transition.ActionForceRestart)
				b.modes(bios, bios, bios)
				b.bootedFrom("rootdisk")
			})
		})
	}
}

func TestEngine_firmwareModeContinuous(t *testing.T) {
	t.Parallel()
	const bios, uefi = hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI
	bubble(t, bothModes, func(b *bed) {
		b.set(record.Override{Persistence: record.Continuous, Target: record.TargetCD, Mode: uefi})
		for range 2 {
			b.do(transition.ActionOn)
			b.modes(uefi, uefi, bios)
			b.do(transition.ActionForceOff)
		}
		// Another override over it, which has no mode: the machine's own comes back.
		b.set(record.Override{Persistence: record.Once, Target: record.TargetPXE})
		b.modes(bios, "", bios)
		b.do(transition.ActionOn)
		b.bootedFrom("default")
		b.orders(own)
		b.set(record.Override{Persistence: record.Continuous, Target: record.TargetHDD, Mode: uefi})
		b.arm(record.Disabled, record.TargetNone)
		b.modes(bios, bios, bios)
		b.orders(own)
	})
}

func TestEngine_firmwareModeOfItsOwn(t *testing.T) {
	t.Parallel()
	const bios, uefi = hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI
	mode := func(b *bed, mode hypervisor.FirmwareMode) {
		b.Helper()
		if err := b.engine.SetFirmwareMode(b.Context(), ref, mode); err != nil {
			b.Fatal(err)
		}
	}
	bubble(t, bothModes, func(b *bed) {
		b.do(transition.ActionOn)
		mode(b, uefi)
		b.modes(uefi, bios, uefi)
		b.do(transition.ActionForceRestart)
		b.modes(uefi, uefi, uefi)
		// It stays when an override comes and goes.
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionForceRestart)
		b.modes(uefi, uefi, uefi)
		b.orders(own)
		// An override under way takes it too.
		b.set(record.Override{Persistence: record.Continuous, Target: record.TargetCD, Mode: uefi})
		mode(b, bios)
		b.modes(bios, uefi, bios)
		status, err := b.engine.BootStatus(ref)
		if err != nil || status.Override.Mode != bios {
			b.Fatalf("the override has mode %s (%v), want %s", status.Override.Mode, err, bios)
		}
		b.arm(record.Disabled, record.TargetNone)
		b.modes(bios, uefi, bios)
		b.orders(own)
		// Clearing an override can set it, and so can clearing none.
		b.set(record.Override{Persistence: record.Continuous, Target: record.TargetCD})
		b.set(record.Override{Persistence: record.Disabled, Target: record.TargetNone, Mode: uefi})
		b.modes(uefi, uefi, uefi)
		b.orders(own)
		b.set(record.Override{Persistence: record.Disabled, Target: record.TargetNone, Mode: bios})
		b.modes(bios, uefi, bios)
		b.override(record.Disabled)
	})
}

func TestEngine_firmwareModeRefused(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		version := b.get().ResourceVersion
		err := b.engine.SetOverride(b.Context(), ref, record.Override{
			Persistence: record.Once, Target: record.TargetCD, Mode: hypervisor.FirmwareBIOS,
		})
		if !errors.Is(err, machine.ErrBootMode) {
			b.Errorf("override: got error %v, want %v", err, machine.ErrBootMode)
		}
		if err := b.engine.SetFirmwareMode(b.Context(), ref, hypervisor.FirmwareBIOS); !errors.Is(err, machine.ErrBootMode) {
			b.Errorf("mode: got error %v, want %v", err, machine.ErrBootMode)
		}
		if got := b.get().ResourceVersion; got != version {
			b.Error("what was refused has changed the machine")
		}
	})
}
