// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// power is about single actions beyond the table.
var power = map[string]func(*bed){
	"on twice": func(b *bed) {
		ref, instance := b.on(manual.spec)
		first := b.status(ref).GetOperation().GetId()
		again := b.do(ref, on)
		if again.GetInstanceId() != instance || again.GetOperation().GetId() != first {
			b.Errorf("a second on has left %s", again)
		}
	},
	"off twice": func(b *bed) {
		ref, _ := b.on(always.spec)
		b.do(ref, forceOff)
		b.do(ref, forceOff)
		b.do(ref, shutdown)
		b.stays(ref, "off", off)
	},
	"guest that ignores a graceful shutdown": func(b *bed) {
		// The agent answers, so the machine's own grace period counts.
		ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true, Agent: true})
		b.until(ref, "on", isOn)
		for !b.get(ref).Instance.AgentConnected {
			b.rest()
		}
		began := time.Now()
		now := b.do(ref, shutdown)
		if took := time.Since(began); took < graceOf {
			b.Errorf("the guest was given %s, want %s", took, graceOf)
		}
		if !isOff(now) || now.GetStopCause() != powerv1.StopCause_STOP_CAUSE_ACTION {
			b.Errorf("after the shutdown: %s", now)
		}
		b.stays(ref, "off", off)
	},
	"guest that ignores a graceful restart": func(b *bed) {
		if b.Guest.PowerOff == nil {
			b.Skip("this bench can't switch a guest off from within")
		}
		ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, IgnoreACPI: true})
		b.do(ref, gracefulRestart)
		b.stays(ref, "on", live(instance))
		// The hypervisor still has the restart in mind.
		b.ok("power off", b.Guest.PowerOff(ref))
		b.stays(ref, "on", live(instance))
		b.ok("power off", b.Guest.PowerOff(ref))
		b.until(ref, "off", isOff)
	},
	"off after a graceful restart that was ignored": func(b *bed) {
		ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true})
		b.do(ref, gracefulRestart)
		b.do(ref, forceOff)
		b.stays(ref, "off", off)
		if got := b.do(ref, on).GetInstanceId(); got == instance {
			b.Errorf("the instance is the old one")
		}
	},
	"pause, resume, and off while paused": func(b *bed) {
		ref, instance := b.on(always.spec)
		for range 2 {
			b.do(ref, pause)
			b.until(ref, "paused", isPaused)
			b.do(ref, pause)
			b.do(ref, resume)
			if now := b.until(ref, "on", isOn); now.GetInstanceId() != instance {
				b.Errorf("pausing has made the instance another one: %s", now)
			}
		}
		b.do(ref, pause)
		if now := b.do(ref, forceOff); !isOff(now) {
			b.Errorf("off while paused has left %s", now)
		}
		b.stays(ref, "off", off)
		if now := b.do(ref, on); !isOn(now) || now.GetInstanceId() == instance {
			b.Errorf("on after off while paused has left %s", now)
		}
	},
	"machine that was paused when its guest is to shut down": func(b *bed) {
		ref, _ := b.on(manual.spec)
		b.do(ref, pause)
		if now := b.do(ref, shutdown); !isOff(now) {
			b.Errorf("the shutdown has left %s", now)
		}
	},
	"instance that fails before it runs": func(b *bed) {
		ref := b.machine(manual.spec)
		b.ask(ref, on)
		b.until(ref, "starting", isStarting)
		// Not ours: the instance ends as Failed, and another one is made. Where
		// the guest was quicker it ran, which was the goal.
		b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, new(time.Duration)))
		now := b.ended(ref)
		if now.GetOperation().GetPhase() == succeeded && !isOn(now) {
			now = b.until(ref, "off", isOff)
		}
		if now.GetOperation().GetPhase() != succeeded || isOff(now) && now.GetStopCause() != powerv1.StopCause_STOP_CAUSE_EXTERNAL {
			b.Errorf("the on that met a stop has left %s", now)
		}
	},
	"guest that takes too long to stop": func(b *bed) {
		if b.Timeout < 20*time.Minute {
			b.Skip("takes ten minutes, more than this bench has")
		}
		ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, IgnoreACPI: true, GracePeriod: 30 * time.Minute})
		b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, nil))
		b.until(ref, "stopping", isStopping)
		b.ask(ref, on)
		op := b.ended(ref).GetOperation()
		if op.GetPhase() != failed || !strings.Contains(op.GetMessage(), "waits for the guest to stop") {
			b.Errorf("on ended as %s", op)
		}
		if now := b.do(ref, powerCycle); !isOn(now) || now.GetInstanceId() == instance {
			b.Errorf("a power cycle has left %s", now)
		}
	},
}
