// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"maps"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// races is about actions that meet other actions.
var races = func() map[string]func(*bed) {
	tests := map[string]func(*bed){
		"off replaced by on":              func(b *bed) { replaced(b, forceOff, on, isOn) },
		"on replaced by off":              func(b *bed) { replaced(b, powerCycle, forceOff, isOff) },
		"opposites at once":               opposites,
		"the same twice":                  sameTwice,
		"off and on, often":               flapping,
		"two processes":                   twoProcesses,
		"one process of many":             oneOfMany,
		"off during a restart by virtctl": offDuringRestart,
	}
	for _, strategy := range []runStrategy{always, rerun, manual, halted, once, running} {
		tests["off, then on at once, under "+strategy.name] = func(b *bed) { offThenOn(b, strategy) }
	}
	// The others are in the table.
	for _, strategy := range []runStrategy{rerun, once} {
		tests["off while starting, under "+strategy.name] = func(b *bed) { offWhileStarting(b, strategy) }
	}
	return tests
}()

// offThenOn: KubeVirt loses a start that meets the dying instance.
func offThenOn(b *bed, strategy runStrategy) {
	ref, instance := b.on(strategy.spec)
	want := b.get(ref).RunStrategy
	b.ask(ref, forceOff)
	b.ask(ref, on)
	now := b.ended(ref)
	if !isOn(now) || now.GetInstanceId() == instance || now.GetOperation().GetPhase() != succeeded {
		b.Fatalf("off and on have left %s", now)
	}
	b.strategy(ref, want)
	b.stays(ref, "on", live(now.GetInstanceId()))
}

func offWhileStarting(b *bed, strategy runStrategy) {
	ref := b.machine(strategy.spec)
	if !startsByItself(strategy.spec) {
		b.ask(ref, on)
	}
	b.until(ref, "starting", isStarting)
	if now := b.do(ref, forceOff); !isOff(now) {
		b.Errorf("off while starting has left %s", now)
	}
	b.stays(ref, "off", off)
	if now := b.do(ref, on); !isOn(now) {
		b.Errorf("on has left %s", now)
	}
}

// offDuringRestart: the start that such a restart has queued makes Always of
// Halted again.
func offDuringRestart(b *bed) {
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true})
	b.ok("restart", b.Hypervisor.Restart(b.Context(), ref))
	if now := b.do(ref, forceOff); !isOff(now) {
		b.Errorf("off has left %s", now)
	}
	b.stays(ref, "off", off)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyAlways)
}

// answer is what a client hears of an action.
type answer struct {
	status *powerv1.PowerStatus
	err    error
}

// client sends an action and waits for its goal.
func (b *bed) client(p *process, ref hypervisor.Ref, action powerv1.PowerAction) <-chan answer {
	answers := make(chan answer, 1)
	ctx := b.Context()
	go func() {
		status, err := p.request(ctx, ref, action, 2*time.Minute)
		answers <- answer{status, err}
	}()
	return answers
}

// replaced: the action that was accepted last wins, and the client of the first
// one hears of it.
func replaced(b *bed, first, second powerv1.PowerAction, end func(*powerv1.PowerStatus) bool) {
	ref, _ := b.on(always.spec)
	one := b.client(b.process, ref, first)
	b.until(ref, "at work", func(s *powerv1.PowerStatus) bool { return s.GetOperation().GetAction() == first })
	two := <-b.client(b.process, ref, second)
	b.ok(name(second), two.err)
	if op := two.status.GetOperation(); op.GetPhase() != succeeded || op.GetAction() != second || !end(two.status) {
		b.Errorf("%s ended as %s", name(second), two.status)
	}
	heard := <-one
	b.ok(name(first), heard.err)
	if op := heard.status.GetOperation(); op.GetPhase() != superseded || op.GetAction() != first {
		b.Errorf("%s ended as %s", name(first), op)
	}
	b.rest()
	if now := b.status(ref); !end(now) {
		b.Errorf("the machine is not as the last action left it: %s", now)
	}
}

// opposites: whoever comes last, both clients hear how theirs ended, and the
// machine is as the last one wants it.
func opposites(b *bed) {
	ref, _ := b.on(always.spec)
	answers := map[powerv1.PowerAction]<-chan answer{
		powerCycle: b.client(b.process, ref, powerCycle),
		forceOff:   b.client(b.process, ref, forceOff),
	}
	won := 0
	for action, answers := range answers {
		a := <-answers
		if a.err != nil {
			// A cycle behind an off that is done already.
			b.reason(name(action), a.err, errorsv1.Reason_REASON_INVALID_POWER_STATE)
			if action != powerCycle {
				b.Errorf("%s was refused", name(action))
			}
			continue
		}
		switch a.status.GetOperation().GetPhase() {
		case succeeded:
			won++
		case superseded:
		default:
			b.Errorf("%s ended as %s", name(action), a.status)
		}
	}
	if won == 0 {
		b.Error("neither action succeeded")
	}
	now := b.ended(ref)
	if op := now.GetOperation(); op.GetPhase() != succeeded || isOff(now) != (op.GetAction() == forceOff) {
		b.Errorf("the machine is not as the last action left it: %s", now)
	}
}

// sameTwice: two clients with the same wish share one operation.
func sameTwice(b *bed) {
	ref, _ := b.on(always.spec)
	seen, cancel := b.instances(ref)
	defer cancel()
	one, two := b.client(b.process, ref, powerCycle), b.client(b.process, ref, powerCycle)
	first, second := <-one, <-two
	b.ok("first", first.err)
	b.ok("second", second.err)
	if a, c := first.status.GetOperation(), second.status.GetOperation(); a.GetId() != c.GetId() || a.GetPhase() != succeeded {
		b.Errorf("one heard of %s, the other of %s", a, c)
	}
	b.stays(ref, "on", live(b.status(ref).GetInstanceId()))
	if got := seen(); got != 2 {
		b.Errorf("there were %d instances, want the old one and a new one", got)
	}
}

// flapping: a client that can't decide.
func flapping(b *bed) {
	ref, _ := b.on(rerun.spec)
	for range 3 {
		b.ask(ref, forceOff)
		b.ask(ref, on)
	}
	b.ask(ref, forceOff)
	if now := b.ended(ref); !isOff(now) || now.GetOperation().GetPhase() != succeeded {
		b.Errorf("a last off has left %s", now)
	}
	b.stays(ref, "off", off)
}

// twoProcesses: which of them is asked makes no difference.
func twoProcesses(b *bed) {
	ref, _ := b.on(always.spec)
	other := b.start("two")
	seen, cancel := b.instances(ref)
	defer cancel()
	one, two := b.client(b.process, ref, powerCycle), b.client(other, ref, powerCycle)
	first, second := <-one, <-two
	b.ok("first", first.err)
	b.ok("second", second.err)
	if a, c := first.status.GetOperation(), second.status.GetOperation(); a.GetId() != c.GetId() || a.GetPhase() != succeeded {
		b.Errorf("one heard of %s, the other of %s", a, c)
	}
	b.stays(ref, "on", live(b.status(ref).GetInstanceId()))
	if got := seen(); got != 2 {
		b.Errorf("there were %d instances, want the old one and a new one", got)
	}
	// Opposite wishes by different ways.
	cycle := b.client(other, ref, powerCycle)
	b.until(ref, "at work", func(s *powerv1.PowerStatus) bool { return s.GetOperation().GetPhase() == underWay })
	if now := b.do(ref, forceOff); !isOff(now) {
		b.Errorf("off has left %s", now)
	}
	if a := <-cycle; a.err != nil || a.status.GetOperation().GetPhase() != superseded {
		b.Errorf("the cycle ended as %s, %v", a.status, a.err)
	}
	b.stays(ref, "off", off)
}

// oneOfMany: a process that is asked to end leaves its work to another one.
func oneOfMany(b *bed) {
	ref, instance := b.on(rerun.spec)
	other := b.start("two")
	b.ask(ref, powerCycle)
	b.stop()
	b.process = other
	if now := b.ended(ref); !isOn(now) || now.GetInstanceId() == instance || now.GetOperation().GetPhase() != succeeded {
		b.Errorf("the cycle has left %s", now)
	}
}

// instances counts the instances that a machine has had since.
func (b *bed) instances(ref hypervisor.Ref) (seen func() int, cancel func()) {
	var mu sync.Mutex
	uids := map[string]bool{}
	look := func() {
		if m, err := b.Hypervisor.Get(ref); err == nil && m.Instance != nil {
			mu.Lock()
			defer mu.Unlock()
			uids[m.Instance.UID] = true
		}
	}
	look()
	cancel = b.Hypervisor.Subscribe(func(changed hypervisor.Ref) {
		if changed == ref {
			look()
		}
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(maps.Clone(uids))
	}, cancel
}
