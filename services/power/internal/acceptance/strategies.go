// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
)

// strategies is about the user's run strategy.
var strategies = func() map[string]func(*bed) {
	tests := map[string]func(*bed){
		"set by the user while off":                 setWhileOff,
		"set by the user in the middle":             setInTheMiddle,
		"halted by the user while starting":         haltedWhileStarting,
		"started by the user while off":             startedByUser,
		"stopped by the user, and on":               stoppedByUser,
		"RerunOnFailure for one that was made off":  func(b *bed) { madeOff(b, halted.spec) },
		"RerunOnFailure in place of running: false": func(b *bed) { madeOff(b, stopped.spec) },
	}
	for _, strategy := range []runStrategy{always, rerun, manual, once, running} {
		tests[strategy.name+" is kept"] = func(b *bed) { keptOver(b, strategy) }
	}
	return tests
}()

// template returns all that the user has written of a machine.
func (b *bed) template(ref hypervisor.Ref) string {
	b.Helper()
	text, err := b.Template(ref)
	b.ok("read template", err)
	return text
}

// same expects a template to be what it was.
func (b *bed) same(ref hypervisor.Ref, before string) {
	b.Helper()
	if diff := cmp.Diff(before, b.template(ref)); diff != "" {
		b.Errorf("template mismatch (-before +after)\n%s", diff)
	}
}

// keptOver: whatever the service does, the user finds the machine as it was.
func keptOver(b *bed, strategy runStrategy) {
	ref, _ := b.on(strategy.spec)
	before := b.template(ref)
	b.do(ref, forceOff)
	b.do(ref, on)
	b.same(ref, before)
	b.do(ref, shutdown)
	b.do(ref, pushButton)
	b.same(ref, before)
}

func madeOff(b *bed, spec contract.Spec) {
	ref := b.machine(spec)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyRerunOnFailure)
	before := b.template(ref)
	b.do(ref, forceOff)
	b.stays(ref, "off", off)
	b.do(ref, on)
	b.same(ref, before)
}

// setWhileOff: what the user sets while the machine is off counts, and not what
// it was before.
func setWhileOff(b *bed) {
	ref, _ := b.on(always.spec)
	b.do(ref, forceOff)
	b.cleared(ref)
	b.ok("set run strategy", b.Hypervisor.SetRunStrategy(b.Context(), ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyManual))
	b.stays(ref, "off", off)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyManual)
	b.do(ref, forceOff)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyManual)
}

// setInTheMiddle: the strategy that a cycle would restore is the user's to
// change.
func setInTheMiddle(b *bed) {
	ref, instance := b.on(always.spec)
	b.ask(ref, powerCycle)
	for b.get(ref).RunStrategy != hypervisor.RunStrategyHalted {
		b.rest()
	}
	b.ok("set run strategy", b.Hypervisor.SetRunStrategy(b.Context(), ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyManual))
	if now := b.ended(ref); !isOn(now) || now.GetInstanceId() == instance {
		b.Errorf("the cycle has left %s", now)
	}
	b.strategy(ref, hypervisor.RunStrategyManual)
}

// haltedWhileStarting: whoever sets Halted wants the machine off.
func haltedWhileStarting(b *bed) {
	ref, _ := b.on(always.spec)
	b.do(ref, forceOff)
	b.cleared(ref)
	b.ask(ref, on)
	b.until(ref, "starting", isStarting)
	b.ok("set run strategy", b.Hypervisor.SetRunStrategy(b.Context(), ref, hypervisor.RunStrategyAlways, hypervisor.RunStrategyHalted))
	if now := b.ended(ref); now.GetOperation().GetPhase() != failed {
		b.Errorf("the on that was overruled has left %s", now)
	}
	b.until(ref, "off", isOff)
	b.cleared(ref)
	b.stays(ref, "off", off)
	b.strategy(ref, hypervisor.RunStrategyHalted)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyAlways)
}

// startedByUser: virtctl start sets Always, and the service goes on from there.
func startedByUser(b *bed) {
	ref, _ := b.on(once.spec)
	b.do(ref, forceOff)
	b.cleared(ref)
	b.ok("start", b.Hypervisor.Start(b.Context(), ref))
	b.until(ref, "on", isOn)
	b.strategy(ref, hypervisor.RunStrategyAlways)
	b.do(ref, forceOff)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyAlways)
}

// stoppedByUser: virtctl stop makes Halted of Always, which is then what the
// user has set.
func stoppedByUser(b *bed) {
	ref, _ := b.on(always.spec)
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, nil))
	b.until(ref, "off", isOff)
	b.cleared(ref)
	b.do(ref, on)
	b.strategy(ref, hypervisor.RunStrategyRerunOnFailure)
}

// cleared waits until nothing is left of a machine's instance.
func (b *bed) cleared(ref hypervisor.Ref) {
	b.Helper()
	for b.get(ref).Instance != nil {
		b.rest()
	}
}
