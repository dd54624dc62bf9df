// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
)

// crashes is about a process that is killed between the steps of a power cycle
// under Always, where the run strategy has to be put back, and about the one
// that goes on: the same anew, or another one.
var crashes = func() map[string]func(*bed) {
	tests := map[string]func(*bed){
		"old instance gone, the same anew":    func(b *bed) { diesWhen(b, "one", noInstance) },
		"new instance starting, another one":  func(b *bed) { diesWhen(b, "two", another) },
		"boot override not written":           func(b *bed) { diesArming(b, "before set boot 1") },
		"boot override written, not answered": func(b *bed) { diesArming(b, "after set boot 1") },
	}
	// Either successor after every other step: what they find is the same.
	for n, step := range [][2]string{
		{"accepted", "after set state 1"},
		{"stop written", "after set state 2"},
		{"stop not sent", "before stop 1"},
		{"stop sent", "after stop 1"},
		{"strategy not restored", "before set run strategy 1"},
		{"strategy restored", "after set run strategy 1"},
	} {
		if n%2 == 0 {
			tests[step[0]+", the same anew"] = func(b *bed) { diesAt(b, "one", step[1]) }
		} else {
			tests[step[0]+", another one"] = func(b *bed) { diesAt(b, "two", step[1]) }
		}
	}
	return tests
}()

func noInstance(m *hypervisor.Machine, _ string) bool { return m.Instance == nil }

func another(m *hypervisor.Machine, old string) bool {
	return m.Instance != nil && m.Instance.UID != old
}

// diesAt kills a process at one of its requests.
func diesAt(b *bed, holder, at string) {
	ref, instance := b.on(always.spec)
	victim := b.start("one")
	b.stop()
	victim.view.dieAt = at
	seen, cancel := b.instances(ref)
	defer cancel()
	answers := b.client(victim, ref, powerCycle)
	<-victim.view.died
	victim.kill()
	<-answers
	b.goesOn(ref, holder, instance)
	if got := seen(); got != 2 {
		b.Errorf("there were %d instances, want the old one and a new one", got)
	}
}

// diesWhen kills a process when the machine is in a state.
func diesWhen(b *bed, holder string, when func(m *hypervisor.Machine, old string) bool) {
	ref, instance := b.on(always.spec)
	seen, cancel := b.instances(ref)
	defer cancel()
	b.ask(ref, powerCycle)
	changed := make(chan struct{}, 1)
	unsubscribe := b.Hypervisor.Subscribe(func(r hypervisor.Ref) {
		if r == ref {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	for !when(b.get(ref), instance) {
		<-changed
	}
	unsubscribe()
	b.kill()
	b.goesOn(ref, holder, instance)
	if got := seen(); got != 2 {
		b.Errorf("there were %d instances, want the old one and a new one", got)
	}
}

// goesOn starts the next process and expects it to finish the cycle.
func (b *bed) goesOn(ref hypervisor.Ref, holder, old string) {
	b.Helper()
	b.process = b.start(holder)
	now := b.ended(ref)
	if op := now.GetOperation(); op.GetAction() != powerCycle || op.GetPhase() != succeeded {
		b.Fatalf("the cycle ended as %s", op)
	}
	if !isOn(now) || now.GetInstanceId() == old {
		b.Fatalf("the cycle has left %s", now)
	}
	b.strategy(ref, hypervisor.RunStrategyAlways)
	b.stays(ref, "on", live(now.GetInstanceId()))
}

// diesArming kills a process while it writes a boot override. Its client does
// not hear that the override is set, but it is recorded: the next process
// finishes it, and takes it back as well as its own.
func diesArming(b *bed, at string) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Devices: devices()})
	before := b.template(ref)
	b.view.dieAt = at
	_, err := b.boot.SetBootOverride(b.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc(ref), Override: oncePXE})
	if err == nil {
		b.Fatal("a process that died has answered")
	}
	b.kill()
	b.process = b.start("two")
	for end := time.Now().Add(b.Timeout); b.override(ref).GetPersistence() != persistOnce || b.get(ref).Devices[0].Order == 1; b.rest() {
		if time.Now().After(end) {
			b.Fatalf("the override is %s, the devices are %v", b.override(ref), b.get(ref).Devices)
		}
	}
	b.clear(ref)
	b.same(ref, before)
}
