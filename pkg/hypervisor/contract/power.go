// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"errors"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// strategies are those that the suite tests.
var strategies = []hypervisor.RunStrategy{
	hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
	hypervisor.RunStrategyHalted, hypervisor.RunStrategyOnce,
}

// calls are all verbs that need a machine.
func calls(b *bed, ref hypervisor.Ref) map[string]error {
	h, ctx := b.Hypervisor, b.Context()
	_, get := h.Get(ref)
	_, console := h.OpenConsole(ctx, ref)
	_, trays := h.Trays(ref)
	return map[string]error{
		"get":              get,
		"start":            h.Start(ctx, ref),
		"stop":             h.Stop(ctx, ref, nil),
		"restart":          h.Restart(ctx, ref),
		"reset":            h.Reset(ctx, ref),
		"soft reboot":      h.SoftReboot(ctx, ref),
		"pause":            h.Pause(ctx, ref),
		"unpause":          h.Unpause(ctx, ref),
		"set run strategy": h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyAlways),
		"delete instance":  h.DeleteInstance(ctx, ref, "uid"),
		"set boot":         h.SetBoot(ctx, ref, "1", nil, ""),
		"set state":        h.SetState(ctx, ref, nil, []byte("{}")),
		"open console":     console,
		"trays":            trays,
		"eject":            h.Eject(ctx, ref, "cdrom"),
	}
}

func noMachine(b *bed) {
	for verb, err := range calls(b, hypervisor.Ref{Namespace: "default", Name: "no-such-machine"}) {
		b.is(verb, err, hypervisor.ErrNotFound)
	}
}

func noInstance(b *bed) {
	ref := b.machine(hypervisor.RunStrategyHalted)
	h, ctx := b.Hypervisor, b.Context()
	b.is("reset", h.Reset(ctx, ref), hypervisor.ErrNoInstance)
	b.is("soft reboot", h.SoftReboot(ctx, ref), hypervisor.ErrNoInstance)
	b.is("pause", h.Pause(ctx, ref), hypervisor.ErrNoInstance)
	b.is("unpause", h.Unpause(ctx, ref), hypervisor.ErrNoInstance)
	b.is("delete instance", h.DeleteInstance(ctx, ref, "uid"), hypervisor.ErrNoInstance)
	_, err := h.OpenConsole(ctx, ref)
	b.is("open console", err, hypervisor.ErrNoInstance)
	if !absent(b.get(ref)) {
		b.Errorf("a refused verb made an instance")
	}
}

func pause(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways})
	h, ctx := b.Hypervisor, b.Context()
	b.conflict("unpause while running", h.Unpause(ctx, ref))
	b.ok("pause", h.Pause(ctx, ref))
	paused := func(m *hypervisor.Machine) bool { return running(m) && m.Instance.Paused }
	b.until(ref, "paused", paused)
	b.conflict("pause while paused", h.Pause(ctx, ref))
	b.conflict("soft reboot while paused", h.SoftReboot(ctx, ref))
	b.stays(ref, "paused", paused)
	b.ok("unpause", h.Unpause(ctx, ref))
	now := b.until(ref, "running", func(m *hypervisor.Machine) bool { return running(m) && !m.Instance.Paused })
	if now.Instance.UID != m.Instance.UID {
		b.Errorf("pausing replaced the instance")
	}
}

func resets(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways})
	same := func(now *hypervisor.Machine) bool { return running(now) && now.Instance.UID == m.Instance.UID }
	b.ok("reset", b.Hypervisor.Reset(b.Context(), ref))
	b.stays(ref, "the same instance", same)
	b.ok("soft reboot", b.Hypervisor.SoftReboot(b.Context(), ref))
	b.stays(ref, "the same instance", same)
}

func stopPaused(b *bed) {
	ref, _ := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual})
	b.ok("pause", b.Hypervisor.Pause(b.Context(), ref))
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.until(ref, "without instance", absent)
}

func stopStarting(b *bed) {
	ref := b.machine(hypervisor.RunStrategyAlways)
	b.until(ref, "starting", func(m *hypervisor.Machine) bool { return m.Instance != nil })
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.until(ref, "without instance", absent)
	b.stays(ref, "without instance", absent)
}

// startDying: a start that meets the dying instance is refused and lost; it has
// to be sent again.
func startDying(b *bed) {
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual} {
		b.sub(string(strategy), func(b *bed) {
			b.Parallel()
			ref, m := b.started(Spec{RunStrategy: strategy})
			b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
			err := b.Hypervisor.Start(b.Context(), ref)
			if err == nil { // The instance had ended already, as it may on a quick node.
				b.until(ref, "running anew", newInstance(m.Instance.UID))
				return
			}
			_, conflict := errors.AsType[*hypervisor.ConflictError](err)
			if !conflict && !errors.Is(err, hypervisor.ErrUnderway) {
				b.Errorf("start of a dying machine: got %v, want a conflict or %v", err, hypervisor.ErrUnderway)
			}
			b.until(ref, "without instance", absent)
			b.stays(ref, "off", off)
			b.retry("start", func(ctx context.Context) error { return b.Hypervisor.Start(ctx, ref) })
			b.until(ref, "running anew", newInstance(m.Instance.UID))
		})
	}
}

func startTwice(b *bed) {
	ref := b.machine(hypervisor.RunStrategyManual)
	b.ok("start", b.Hypervisor.Start(b.Context(), ref))
	err := b.Hypervisor.Start(b.Context(), ref)
	_, conflict := errors.AsType[*hypervisor.ConflictError](err)
	if !conflict && !errors.Is(err, hypervisor.ErrUnderway) {
		b.Errorf("second start: got %v, want a conflict or %v", err, hypervisor.ErrUnderway)
	}
	first := b.until(ref, "running", running).Instance.UID
	b.stays(ref, "the same instance", func(m *hypervisor.Machine) bool { return running(m) && m.Instance.UID == first })
}

func escalate(b *bed) {
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyManual} {
		b.sub(string(strategy), func(b *bed) {
			b.Parallel()
			ref, _ := b.started(Spec{RunStrategy: strategy, IgnoreACPI: true})
			b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(10*b.Timeout)))
			dying := func(m *hypervisor.Machine) bool {
				return m.Instance != nil && m.Instance.Deleting && !m.Instance.Phase.Final()
			}
			b.until(ref, "being deleted", dying)
			b.stays(ref, "being deleted", dying)
			if strategy == hypervisor.RunStrategyAlways {
				b.conflict("stop with the same grace period", b.Hypervisor.Stop(b.Context(), ref, nil))
				// Refused, and it counts all the same.
				b.conflict("stop with a longer grace period", b.Hypervisor.Stop(b.Context(), ref, grace(20*b.Timeout)))
				b.until(ref, "given more time", func(m *hypervisor.Machine) bool {
					return dying(m) && m.Instance.GracePeriod == 20*b.Timeout
				})
			}
			b.ok("stop at once", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
			b.until(ref, "without instance", absent)
		})
	}
}

func graceExpires(b *bed) {
	ref, _ := b.started(Spec{RunStrategy: hypervisor.RunStrategyRerunOnFailure, IgnoreACPI: true})
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(b.ShortGrace)))
	b.until(ref, "without instance", absent)
	b.stays(ref, "off", off)
}

func runStrategy(b *bed) {
	ref := b.machine(hypervisor.RunStrategyHalted)
	h, ctx := b.Hypervisor, b.Context()
	b.is("set from the wrong strategy", h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyManual, hypervisor.RunStrategyAlways), hypervisor.ErrStale)
	b.stays(ref, "without instance", absent)
	b.ok("set", h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyRerunOnFailure))
	if got := b.get(ref).RunStrategy; got != hypervisor.RunStrategyRerunOnFailure {
		b.Errorf("the cache says %s after the write", got)
	}
	b.until(ref, "running", running)
	b.ok("set", h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyHalted))
	b.until(ref, "without instance", absent)
}

// restartOvertaken: the start that a restart has queued outlives the stop, and
// makes Always of Halted. KubeVirt 1.6 may forget the start and leave the machine
// off, which is as good an end for whoever has to do with both.
func restartOvertaken(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true})
	b.ok("restart", b.Hypervisor.Restart(b.Context(), ref))
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	ends := map[string]bool{"running, new instance; Always": true, "off; Halted": true}
	if end := b.outcome(ref, m); !ends[end] {
		b.Errorf("the machine ended as %s", end)
	}
}

// deleteMachine: a machine that is deleted is there until its instance has gone.
func deleteMachine(b *bed) {
	ref, _ := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways, IgnoreACPI: true, GracePeriod: b.ShortGrace})
	b.ok("delete", b.DeleteMachine(ref))
	shown := false
	for end := time.Now().Add(b.Timeout); ; time.Sleep(b.Quiet / 50) {
		m, err := b.Hypervisor.Get(ref)
		if errors.Is(err, hypervisor.ErrNotFound) {
			break
		}
		b.ok("get", err)
		shown = shown || m.Deleting && m.Instance != nil
		if time.Now().After(end) {
			b.Fatalf("still there: %s", describe(m))
		}
	}
	if !shown {
		b.Error("the machine was not shown as one that is being deleted")
	}
	b.is("start", b.Hypervisor.Start(b.Context(), ref), hypervisor.ErrNotFound)
}

func deleteInstance(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways})
	b.is("delete another instance", b.Hypervisor.DeleteInstance(b.Context(), ref, "another"), hypervisor.ErrNoInstance)
	b.stays(ref, "running", running)
	b.ok("delete", b.Hypervisor.DeleteInstance(b.Context(), ref, m.Instance.UID))
	b.until(ref, "running anew", newInstance(m.Instance.UID))
}
