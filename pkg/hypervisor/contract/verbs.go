// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
)

// Verbs is the name of the table that the suite saves: what the hypervisor
// answers to each verb under each run strategy, in its own words, and where the
// machine ends.
const Verbs = "verbs"

// verb is a request to a hypervisor.
type verb struct {
	name string
	call func(hypervisor.Power, context.Context, hypervisor.Ref) error
}

var (
	start      = verb{"start", hypervisor.Power.Start}
	restart    = verb{"restart", hypervisor.Power.Restart}
	reset      = verb{"reset", hypervisor.Power.Reset}
	softReboot = verb{"soft reboot", hypervisor.Power.SoftReboot}
	freeze     = verb{"pause", hypervisor.Power.Pause}
	unfreeze   = verb{"unpause", hypervisor.Power.Unpause}
	stopAtOnce = verb{"stop at once", func(h hypervisor.Power, ctx context.Context, ref hypervisor.Ref) error {
		return h.Stop(ctx, ref, grace(0))
	}}
	stopGently = verb{"stop", func(h hypervisor.Power, ctx context.Context, ref hypervisor.Ref) error {
		return h.Stop(ctx, ref, nil)
	}}
)

// situation is where a verb finds a machine.
type situation struct {
	name string
	// strategies are those under which it is looked at, written as a user does.
	strategies map[string]Spec
	// reach brings a new machine there.
	reach func(*bed, hypervisor.Ref)
	// is tells whether a machine is there.
	is func(*hypervisor.Machine) bool
	// again brings a machine that a verb has led elsewhere back without a new
	// instance, if it can; nil: nothing can.
	again func(*bed, hypervisor.Ref)
	// chains are the verbs, in chains: each is tried on the machine that the one
	// before has left, if it is there again, and else on a new one.
	chains [][]verb
}

var situations = []situation{
	{
		name: "off", strategies: written("RerunOnFailure", "Manual", "Halted", "running: false"),
		reach: func(b *bed, ref hypervisor.Ref) {
			if b.get(ref).RunStrategy == hypervisor.RunStrategyRerunOnFailure {
				// It starts by itself when it is new.
				b.until(ref, "running", running)
				b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
				b.until(ref, "without instance", func(m *hypervisor.Machine) bool { return absent(m) && !m.StopQueued })
			}
		},
		is:     absent,
		chains: [][]verb{{stopAtOnce, stopGently, restart, freeze, unfreeze, reset, softReboot, start}},
	},
	{
		name: "starting", strategies: written("Always", "Manual"),
		reach: func(b *bed, ref hypervisor.Ref) {
			b.begin(ref)
			b.until(ref, "starting", starting)
		},
		is:     starting,
		chains: [][]verb{{start, freeze, unfreeze, softReboot, stopAtOnce}, {stopGently}, {restart}},
	},
	{
		name: "running", strategies: written("Always", "RerunOnFailure", "Manual", "Once", "running: true"),
		reach: func(b *bed, ref hypervisor.Ref) { b.running(ref) },
		is:    awake,
		again: func(b *bed, ref hypervisor.Ref) {
			if isPaused(b.get(ref)) {
				b.ok("unpause", b.Hypervisor.Unpause(b.Context(), ref))
				b.until(ref, "running", awake)
			}
		},
		chains: [][]verb{{start, unfreeze, reset, softReboot, freeze, restart, stopAtOnce}, {stopGently}},
	},
	{
		name: "paused", strategies: written("Always", "Manual"),
		reach: func(b *bed, ref hypervisor.Ref) {
			b.running(ref)
			b.ok("pause", b.Hypervisor.Pause(b.Context(), ref))
			b.until(ref, "paused", isPaused)
		},
		is: isPaused,
		again: func(b *bed, ref hypervisor.Ref) {
			if awake(b.get(ref)) {
				b.ok("pause", b.Hypervisor.Pause(b.Context(), ref))
				b.until(ref, "paused", isPaused)
			}
		},
		chains: [][]verb{{start, freeze, softReboot, unfreeze, stopAtOnce}, {stopGently}, {restart}},
	},
	{
		name: "stopping", strategies: deaf(written("Always", "RerunOnFailure", "Manual", "Once")),
		reach: func(b *bed, ref hypervisor.Ref) {
			b.running(ref)
			b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, nil))
			b.until(ref, "stopping", stopping)
		},
		is:     stopping,
		chains: [][]verb{{start, restart, stopAtOnce}, {stopGently}},
	},
	{
		name: guestOff, strategies: written("Manual", "Once"),
		reach: func(b *bed, ref hypervisor.Ref) {
			b.running(ref)
			b.ok("power off", b.Guest.PowerOff(ref))
			b.until(ref, "ended", ended)
		},
		is:     ended,
		chains: [][]verb{{stopAtOnce, freeze, unfreeze, softReboot, start}, {restart}},
	},
	{
		name: guestCrashed, strategies: written("Manual", "Once"),
		reach: func(b *bed, ref hypervisor.Ref) {
			b.running(ref)
			b.ok("crash", b.Guest.Crash(ref))
			b.until(ref, "ended", ended)
		},
		is:     ended,
		chains: [][]verb{{stopAtOnce, freeze, unfreeze, softReboot, start}, {restart}},
	},
}

const (
	guestOff     = "guest has powered off"
	guestCrashed = "guest has crashed"
)

// strategyNames is the order of the table.
var strategyNames = []string{"Always", "RerunOnFailure", "Manual", "Halted", "Once", "running: true", "running: false"}

// written returns the specs of run strategies as users write them.
func written(names ...string) map[string]Spec {
	specs := map[string]Spec{}
	for _, name := range names {
		switch name {
		case "running: true":
			specs[name] = Spec{Running: new(true)}
		case "running: false":
			specs[name] = Spec{Running: new(false)}
		default:
			specs[name] = Spec{RunStrategy: hypervisor.RunStrategy(name)}
		}
	}
	return specs
}

// deaf makes the guests ignore shutdown requests.
func deaf(specs map[string]Spec) map[string]Spec {
	for name, spec := range specs {
		spec.IgnoreACPI = true
		specs[name] = spec
	}
	return specs
}

// starting: a start request that was acted on may still be queued for a moment,
// which other verbs would meet.
func starting(m *hypervisor.Machine) bool {
	return !m.StartQueued && m.Instance != nil && !m.Instance.Phase.Final() && m.Instance.Phase != hypervisor.PhaseRunning && !m.Instance.Deleting
}

func isPaused(m *hypervisor.Machine) bool { return running(m) && m.Instance.Paused }

func awake(m *hypervisor.Machine) bool { return running(m) && !m.Instance.Paused }

func stopping(m *hypervisor.Machine) bool {
	return m.Instance != nil && m.Instance.Deleting && !m.Instance.Phase.Final()
}

func ended(m *hypervisor.Machine) bool {
	return m.Instance != nil && m.Instance.Phase.Final() && !m.Instance.Deleting
}

// begin starts a new machine that does not start by itself.
func (b *bed) begin(ref hypervisor.Ref) {
	b.Helper()
	if b.get(ref).RunStrategy == hypervisor.RunStrategyManual {
		b.ok("start", b.Hypervisor.Start(b.Context(), ref))
	}
}

// running brings a new machine up. The request that started it may be queued a
// little longer than it takes, which other verbs would meet.
func (b *bed) running(ref hypervisor.Ref) {
	b.Helper()
	b.begin(ref)
	b.until(ref, "running", func(m *hypervisor.Machine) bool { return running(m) && !m.StartQueued })
}

// verbTable fills the table and holds it to the one that is on record.
func verbTable(b *bed) {
	var results table.Table
	place := 0
	b.Cleanup(func() {
		rows := results.Rows()
		if len(rows) == 0 {
			return
		}
		if err := table.Save(Verbs, b.Name, rows); err != nil {
			b.Error(err)
		}
		// A part of the table was asked for, or could be filled.
		if len(rows) == place {
			_, file, _, _ := runtime.Caller(0)
			path := filepath.Join(filepath.Dir(file), "testdata", Verbs+".golden")
			table.Check(b.T, path, b.Update, func(string) string { return table.Text(rows) })
		}
	})
	for _, s := range situations {
		if s.name == guestOff && b.Guest.PowerOff == nil || s.name == guestCrashed && b.Guest.Crash == nil {
			continue
		}
		for _, strategy := range strategyNames {
			spec, ok := s.strategies[strategy]
			if !ok {
				continue
			}
			for _, chain := range s.chains {
				first := place
				place += len(chain)
				b.sub(strategy+"/"+s.name+"/"+chain[0].name, func(b *bed) {
					b.Parallel()
					try := func(t *testing.T, bench Bench) {
						s.try(newBed(t, bench), spec, chain, func(n int, result string) {
							results.Set(first+n, table.Row{Strategy: strategy, From: s.name, Action: chain[n].name, Result: result})
						})
					}
					if b.Isolate == nil {
						try(b.T, b.Bench)
						return
					}
					b.Isolate(b.T, try)
				})
			}
		}
	}
}

// tries is how often a state that passes by itself may be over before a verb comes.
const tries = 8

// try tries a chain of verbs.
func (s situation) try(b *bed, spec Spec, chain []verb, found func(n int, result string)) {
	// Twice the time that is short leaves enough to meet the machine stopping.
	spec.GracePeriod = 2 * b.ShortGrace
	var ref hypervisor.Ref
	var before *hypervisor.Machine
	there := func() bool {
		return before != nil && s.is(b.get(ref)) && b.get(ref).RunStrategy == before.RunStrategy
	}
	for n, verb := range chain {
		for attempt := 0; ; attempt++ {
			if attempt == tries {
				b.Fatalf("machine does not stay %s: %s", s.name, describe(b.get(ref)))
			}
			if before != nil && s.again != nil {
				s.again(b, ref)
			}
			if !there() {
				ref = b.NewMachine(b.T, spec)
				s.reach(b, ref)
			}
			before = b.get(ref)
			if !s.is(before) {
				continue
			}
			result := answer(verb.call(b.Hypervisor, b.Context(), ref))
			if result == accepted {
				result += "; " + b.outcome(ref, before)
			} else if !there() {
				// A state that passes by itself was over before the verb came.
				continue
			}
			found(n, result)
			break
		}
	}
}

func uid(m *hypervisor.Machine) string {
	if m.Instance == nil {
		return ""
	}
	return m.Instance.UID
}

const accepted = "accepted"

// answer is what a hypervisor answers to a verb, in its own words where it has
// some.
func answer(err error) string {
	if err == nil {
		return accepted
	}
	if conflict, ok := errors.AsType[*hypervisor.ConflictError](err); ok {
		return "conflict, " + conflict.Message
	}
	if invalid, ok := errors.AsType[*hypervisor.InvalidError](err); ok {
		return "invalid, " + invalid.Message
	}
	return err.Error()
}

// outcome waits until a machine has been at rest for a while and says what has
// become of it.
func (b *bed) outcome(ref hypervisor.Ref, before *hypervisor.Machine) string {
	b.Helper()
	end := time.Now().Add(b.Timeout)
	rested := time.Now()
	for last := ""; time.Since(rested) < b.Quiet; time.Sleep(b.Quiet / 20) {
		m := b.get(ref)
		if now := describe(m); now != last || !atRest(m) {
			last = now
			rested = time.Now()
		}
		if time.Now().After(end) {
			b.Fatalf("%s is not at rest after %s: %s", ref, b.Timeout, describe(b.get(ref)))
		}
	}
	m := b.get(ref)
	state := "off"
	switch {
	case isPaused(m):
		state = "paused"
	case running(m):
		state = "running"
	}
	if state != "off" {
		if uid(m) == uid(before) {
			state += ", same instance"
		} else {
			state += ", new instance"
		}
	}
	return fmt.Sprintf("%s; %s", state, m.RunStrategy)
}

// atRest tells whether nothing more is to come.
func atRest(m *hypervisor.Machine) bool {
	if m.StartQueued || m.StopQueued {
		return false
	}
	switch m.RunStrategy {
	case hypervisor.RunStrategyAlways:
		return running(m)
	case hypervisor.RunStrategyHalted:
		return absent(m)
	default:
		return absent(m) || running(m) || ended(m)
	}
}
