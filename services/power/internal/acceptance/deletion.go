// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// deletion is about machines that go while something is done to them.
var deletion = map[string]func(*bed){
	"during a power cycle":       func(b *bed) { deleted(b, always.spec, powerCycle) },
	"during a graceful shutdown": func(b *bed) { deleted(b, deaf, shutdown) },
	"while starting":             func(b *bed) { deleted(b, halted.spec, on) },
	"and made again":             madeAgain,
}

var deaf = contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true}

const noMachine = errorsv1.Reason_REASON_MACHINE_NOT_FOUND

// deleted deletes a machine in the middle of an action.
func deleted(b *bed, spec contract.Spec, action powerv1.PowerAction) {
	ref := b.machine(spec)
	if startsByItself(spec) {
		b.until(ref, "on", isOn)
	}
	b.deleteDuring(ref, action)
	for _, action := range []powerv1.PowerAction{on, forceOff, shutdown, powerCycle} {
		b.refused(ref, action, noMachine)
	}
	_, err := b.power.GetPower(b.Context(), &powerv1.GetPowerRequest{Bmc: bmc(ref)})
	b.reason("get", err, noMachine)
	stream, err := b.power.WatchPower(b.Context(), &powerv1.WatchPowerRequest{Bmc: bmc(ref)})
	if err == nil {
		_, err = stream.Recv()
	}
	b.reason("watch", err, noMachine)
}

// deleteDuring deletes a machine in the middle of an action and waits until it
// is gone. The client of the action hears that.
func (b *bed) deleteDuring(ref hypervisor.Ref, action powerv1.PowerAction) {
	b.Helper()
	client := b.client(b.process, ref, action)
	b.until(ref, "at work", func(s *powerv1.PowerStatus) bool { return s.GetOperation().GetPhase() == underWay })
	b.ok("delete", b.DeleteMachine(ref))
	heard := <-client
	// A machine that goes is off before it is gone: a shutdown may end well.
	if heard.err == nil && action == shutdown && heard.status.GetOperation().GetPhase() == succeeded {
		b.gone(ref)
		return
	}
	b.reason(name(action), heard.err, noMachine)
	b.gone(ref)
}

// madeAgain: a new machine of the same name inherits nothing.
func madeAgain(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways})
	b.until(ref, "on", isOn)
	b.deleteDuring(ref, powerCycle)
	again := b.machine(contract.Spec{Name: ref.Name, RunStrategy: hypervisor.RunStrategyManual})
	if again != ref {
		b.Fatalf("the new machine is %s, want %s", again, ref)
	}
	if now := b.status(ref); now.GetOperation() != nil || !isOff(now) {
		b.Errorf("the new machine begins with %s", now)
	}
	b.stays(ref, "off", off)
	if m := b.get(ref); m.State != nil {
		b.Errorf("the new machine has the state %s", m.State)
	}
	if now := b.do(ref, on); !isOn(now) {
		b.Errorf("on has left %s", now)
	}
}
