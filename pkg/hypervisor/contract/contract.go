// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package contract is the test suite that every hypervisor.Hypervisor has to
// pass. It states what the power and media services rely on, in terms of
// KubeVirt's behaviour: so it runs against the simulator and against the real
// KubeVirt, and what holds in one and not in the other is a defect of the
// simulator.
package contract

import (
	"context"
	"errors"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Bench is a hypervisor to test and what the suite needs besides it.
type Bench struct {
	// Name of the hypervisor, for tables.
	Name       string
	Hypervisor hypervisor.Hypervisor
	// NewMachine makes a machine and returns its name. It goes away at the end
	// of the test.
	NewMachine func(t *testing.T, spec Spec) hypervisor.Ref
	// DeleteMachine deletes a machine as a user does, its instance with it, and
	// does not wait.
	DeleteMachine func(ref hypervisor.Ref) error
	// Template returns all that a user can write of a machine, as text to be
	// compared.
	Template func(ref hypervisor.Ref) (string, error)
	// Migrate moves a running machine to another node and waits until it is there;
	// nil where there is no other.
	Migrate func(hypervisor.Ref) error
	// Guest controls the guests; a nil function is something that this bench
	// can't do, and its tests are skipped.
	Guest Guest
	// Timeout is how long a machine may take to start or stop.
	Timeout time.Duration
	// Quiet is how long the suite watches that nothing happens.
	Quiet time.Duration
	// ShortGrace is a grace period that expires soon and can be told from none.
	ShortGrace time.Duration
	// Isolate runs a test on another bench, as in simulated time; nil: on this
	// one.
	Isolate func(t *testing.T, test func(*testing.T, Bench))
	// Update rewrites the table of verbs that is on record in place of comparing
	// with it.
	Update bool
	// ImageURL is an image that can be inserted, ImageURL2 another one; empty:
	// this bench has no media.
	ImageURL, ImageURL2 string
}

// Spec is a machine that the suite wants. The zero Spec is one disk with boot
// order 1 and one interface with 2.
type Spec struct {
	RunStrategy hypervisor.RunStrategy
	// Running asks for KubeVirt's deprecated spec.running in place of a run
	// strategy: true means Always, false Halted.
	Running *bool
	// Name is that of an earlier machine, which is gone; empty: a new one.
	Name string
	// GracePeriod is what the guest may take to shut down; the bench's own when
	// 0.
	GracePeriod time.Duration
	// Agent asks for a guest that runs the guest agent.
	Agent bool
	// NoMAC asks for interfaces that have no address before an instance has one.
	NoMAC bool
	// KernelBoot asks for a machine that boots a kernel past the boot order.
	KernelBoot bool
	// Devices are the boot devices; a cdrom with a volume has a medium of
	// somebody else in its tray.
	Devices []hypervisor.BootDevice
	// IgnoreACPI asks for a guest that does not react to shutdown requests.
	IgnoreACPI bool
	// NoSerialConsole asks for a machine without serial port.
	NoSerialConsole bool
}

// Guest is what a bench can do from within a machine.
type Guest struct {
	// PowerOff has the guest switch itself off.
	PowerOff func(hypervisor.Ref) error
	// Crash makes the guest's process fail.
	Crash func(hypervisor.Ref) error
	// Reboot has the guest reboot itself.
	Reboot func(hypervisor.Ref) error
	// BootedFrom returns the name of the device that the running guest was
	// started from.
	BootedFrom func(hypervisor.Ref) (string, error)
	// Echoes tells that the guest echoes what is typed at its serial console.
	Echoes bool
}

// Devices is the boot devices of the zero Spec.
func Devices() []hypervisor.BootDevice {
	return []hypervisor.BootDevice{
		{Name: "disk", Kind: hypervisor.DeviceDisk, Order: 1, Volume: "disk"},
		{Name: "nic", Kind: hypervisor.DeviceInterface, Order: 2},
	}
}

// Run runs the suite. Each test gets a bench of its own.
func Run(t *testing.T, newBench func(t *testing.T) Bench) {
	t.Helper()
	t.Run("verbs by run strategy", func(t *testing.T) {
		t.Parallel()
		verbTable(newBed(t, newBench(t)))
	})
	for _, group := range []struct {
		name string
		test func(*bed)
	}{
		{"machine that does not exist", noMachine},
		{"machine without instance", noInstance},
		{"pause and unpause", pause},
		{"reset and soft reboot keep the instance", resets},
		{"stop at once works on a paused guest", stopPaused},
		{"stop while starting", stopStarting},
		{"start at once after stop", startDying},
		{"start twice", startTwice},
		{"stop again with a shorter grace period", escalate},
		{"grace period that expires", graceExpires},
		{"run strategy is compared and swapped", runStrategy},
		{"instance is deleted by UID", deleteInstance},
		{"restart that a stop overtakes", restartOvertaken},
		{"machine is deleted", deleteMachine},
		{"guest switches itself off", guestPowerOff},
		{"guest crashes", guestCrash},
		{"guest reboots", guestReboot},
		{"boot order counts from the next instance on", bootOrder},
		{"boot order is checked", bootOrderRefused},
		{"state is compared and swapped", state},
		{"state under several writers", stateWriters},
		{"subscribers hear of the last state", subscribe},
		{"console", console},
		{"machine without console", noConsole},
		{"migration", migrates},
		{"media", withMedia(media)},
		{"media of somebody else", withMedia(foreignMedia)},
		{"inventory", inventory},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			group.test(newBed(t, newBench(t)))
		})
	}
}

// bed is one test on its bench.
type bed struct {
	*testing.T
	Bench
}

func newBed(t *testing.T, bench Bench) *bed {
	bench.Hypervisor = Insistent(bench.Hypervisor)
	return &bed{T: t, Bench: bench}
}

// sub runs a part of a test on the same bench.
func (b *bed) sub(name string, f func(*bed)) {
	b.Helper()
	b.Run(name, func(t *testing.T) { f(&bed{T: t, Bench: b.Bench}) })
}

// machine makes a machine.
func (b *bed) machine(strategy hypervisor.RunStrategy) hypervisor.Ref {
	b.Helper()
	return b.NewMachine(b.T, Spec{RunStrategy: strategy})
}

func (b *bed) get(ref hypervisor.Ref) *hypervisor.Machine {
	b.Helper()
	m, err := b.Hypervisor.Get(ref)
	if err != nil {
		b.Fatalf("get %s: %v", ref, err)
	}
	return m
}

// until waits until the machine is as wanted.
func (b *bed) until(ref hypervisor.Ref, what string, is func(*hypervisor.Machine) bool) *hypervisor.Machine {
	b.Helper()
	changed := make(chan struct{}, 1)
	cancel := b.Hypervisor.Subscribe(func(r hypervisor.Ref) {
		if r == ref {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	defer cancel()
	timeout := time.After(b.Timeout)
	for {
		if m := b.get(ref); is(m) {
			return m
		}
		select {
		case <-changed:
		case <-timeout:
			b.Fatalf("%s: not %s after %s: %s", ref, what, b.Timeout, describe(b.get(ref)))
		}
	}
}

// stays watches that the machine stays as it is for a while.
func (b *bed) stays(ref hypervisor.Ref, what string, is func(*hypervisor.Machine) bool) {
	b.Helper()
	for end := time.Now().Add(b.Quiet); time.Now().Before(end); time.Sleep(b.Quiet / 20) {
		if m := b.get(ref); !is(m) {
			b.Fatalf("%s: no longer %s: %s", ref, what, describe(m))
		}
	}
}

func describe(m *hypervisor.Machine) string {
	text := "run strategy " + string(m.RunStrategy)
	if m.StartQueued {
		text += ", start queued"
	}
	if m.StopQueued {
		text += ", stop queued"
	}
	i := m.Instance
	if i == nil {
		return text + ", no instance"
	}
	text += ", instance " + i.UID + " " + string(i.Phase)
	if i.Paused {
		text += ", paused"
	}
	if i.Deleting {
		text += ", being deleted"
	}
	return text
}

func running(m *hypervisor.Machine) bool {
	return m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning && !m.Instance.Deleting
}

func absent(m *hypervisor.Machine) bool { return m.Instance == nil }

// off: no guest runs, and none is on its way.
func off(m *hypervisor.Machine) bool {
	return (m.Instance == nil || m.Instance.Phase.Final()) && !m.StartQueued
}

// newInstance tells of a running instance other than uid.
func newInstance(uid string) func(*hypervisor.Machine) bool {
	return func(m *hypervisor.Machine) bool { return running(m) && m.Instance.UID != uid }
}

// started makes a machine that runs.
func (b *bed) started(spec Spec) (hypervisor.Ref, *hypervisor.Machine) {
	b.Helper()
	ref := b.NewMachine(b.T, spec)
	b.running(ref)
	return ref, b.get(ref)
}

func (b *bed) ok(verb string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", verb, err)
	}
}

func (b *bed) is(verb string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Errorf("%s: got error %v, want %v", verb, err, want)
	}
}

func (b *bed) conflict(verb string, err error) {
	b.Helper()
	if _, ok := errors.AsType[*hypervisor.ConflictError](err); !ok {
		b.Errorf("%s: got error %v, want a conflict", verb, err)
	}
}

func (b *bed) invalid(verb string, err error) {
	b.Helper()
	if _, ok := errors.AsType[*hypervisor.InvalidError](err); !ok {
		b.Errorf("%s: got error %v, want it to be invalid", verb, err)
	}
}

// retry calls a verb until it is accepted, as KubeVirt's refusals in passing
// want it.
func (b *bed) retry(verb string, call func(context.Context) error) {
	b.Helper()
	for end := time.Now().Add(b.Timeout); ; time.Sleep(b.Quiet / 20) {
		err := call(b.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%s: still refused after %s: %v", verb, b.Timeout, err)
		}
	}
}

func grace(d time.Duration) *time.Duration { return &d }
