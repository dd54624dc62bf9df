// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"strings"
	"sync/atomic"
	"testing"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// Actions is the name of the table that the suite saves: what each action does
// under each run strategy.
const Actions = "actions"

// situation is where an action finds a machine.
type situation struct {
	name string
	// spec is added to the machine's.
	spec contract.Spec
	// reach brings a new machine there.
	reach func(*bed, hypervisor.Ref)
	// is tells whether a machine is there.
	is func(*powerv1.PowerStatus) bool
	// again brings a machine that an action has led elsewhere back without a new
	// instance, if it can; nil: nothing can.
	again func(*bed, hypervisor.Ref)
	// strategies are those under which it is looked at.
	strategies []runStrategy
	// chains are the actions, in chains: each is tried on the machine that the
	// one before has left, if it is there again, and else on a new one.
	chains [][]powerv1.PowerAction
}

// runStrategy is a way to write a run strategy.
type runStrategy struct {
	name string
	spec contract.Spec
}

var (
	always  = runStrategy{"Always", contract.Spec{RunStrategy: hypervisor.RunStrategyAlways}}
	rerun   = runStrategy{"RerunOnFailure", contract.Spec{RunStrategy: hypervisor.RunStrategyRerunOnFailure}}
	manual  = runStrategy{"Manual", contract.Spec{RunStrategy: hypervisor.RunStrategyManual}}
	halted  = runStrategy{"Halted", contract.Spec{RunStrategy: hypervisor.RunStrategyHalted}}
	once    = runStrategy{"Once", contract.Spec{RunStrategy: hypervisor.RunStrategyOnce}}
	running = runStrategy{"running: true", contract.Spec{Running: new(true)}}
	stopped = runStrategy{"running: false", contract.Spec{Running: new(false)}}

	allStrategies = []runStrategy{always, rerun, manual, halted, once, running, stopped}
	// upStrategies are those of machines that are up: ON gives those that were made
	// Halted another, and running: true is Always.
	upStrategies = []runStrategy{always, rerun, manual, once}
)

var situations = []situation{
	{
		name: "off", strategies: allStrategies,
		reach: func(b *bed, ref hypervisor.Ref) {
			if !off(b.get(ref)) || b.get(ref).RunStrategy != hypervisor.RunStrategyHalted && b.get(ref).RunStrategy != hypervisor.RunStrategyManual {
				b.until(ref, "on", isOn)
				b.do(ref, forceOff)
			}
		},
		is: isOff,
		chains: [][]powerv1.PowerAction{
			{forceOff, shutdown, gracefulRestart, forceRestart, powerCycle, pause, resume, on},
			{pushButton},
		},
	},
	{
		name: "on", strategies: allStrategies, reach: switchOn, is: isOn,
		chains: [][]powerv1.PowerAction{
			{on, resume, gracefulRestart, forceRestart, forceOff},
			{shutdown},
			{powerCycle},
			{pushButton},
			{pause},
		},
	},
	{
		name: "starting", strategies: upStrategies,
		reach: func(b *bed, ref hypervisor.Ref) {
			if b.get(ref).RunStrategy == hypervisor.RunStrategyManual {
				b.ok("start", b.Hypervisor.Start(b.Context(), ref))
			}
			b.until(ref, "starting", isStarting)
		},
		is: isStarting,
		chains: [][]powerv1.PowerAction{
			{pause, resume, on}, {forceOff}, {shutdown}, {gracefulRestart}, {forceRestart}, {powerCycle}, {pushButton},
		},
	},
	{
		name: "paused", strategies: upStrategies,
		reach: func(b *bed, ref hypervisor.Ref) {
			switchOn(b, ref)
			b.do(ref, pause)
		},
		is: isPaused,
		again: func(b *bed, ref hypervisor.Ref) {
			if isOn(b.status(ref)) {
				b.do(ref, pause)
			}
		},
		chains: [][]powerv1.PowerAction{
			{pause, on, resume, gracefulRestart, forceRestart, powerCycle, forceOff}, {shutdown}, {pushButton},
		},
	},
	{
		// By a graceful shutdown that the guest ignores.
		name: "stopping", strategies: upStrategies, spec: contract.Spec{IgnoreACPI: true},
		reach: func(b *bed, ref hypervisor.Ref) {
			switchOn(b, ref)
			b.ask(ref, shutdown)
			b.until(ref, "stopping", isStopping)
		},
		is: isStopping,
		chains: [][]powerv1.PowerAction{
			{pause, resume, shutdown}, {on}, {forceOff}, {gracefulRestart}, {forceRestart}, {powerCycle}, {pushButton},
		},
	},
	{
		// By other means than ours.
		name: "stopped by virtctl, stopping", strategies: upStrategies, spec: contract.Spec{IgnoreACPI: true},
		reach: func(b *bed, ref hypervisor.Ref) {
			switchOn(b, ref)
			b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, nil))
			b.until(ref, "stopping", isStopping)
		},
		is: isStopping,
		chains: [][]powerv1.PowerAction{
			{pause, resume, on}, {forceOff}, {shutdown}, {gracefulRestart}, {forceRestart}, {powerCycle}, {pushButton},
		},
	},
	{
		name: "guest has powered off", strategies: []runStrategy{rerun, manual, once},
		reach: func(b *bed, ref hypervisor.Ref) {
			switchOn(b, ref)
			b.ok("power off", b.Guest.PowerOff(ref))
			b.until(ref, "off", isOff)
		},
		is: isOff,
		chains: [][]powerv1.PowerAction{
			{forceOff, shutdown, gracefulRestart, forceRestart, powerCycle, pause, resume, on}, {pushButton},
		},
	},
	{
		name: "guest has crashed", strategies: []runStrategy{manual, once},
		reach: func(b *bed, ref hypervisor.Ref) {
			switchOn(b, ref)
			b.ok("crash", b.Guest.Crash(ref))
			b.until(ref, "off", isOff)
		},
		is: isOff,
		chains: [][]powerv1.PowerAction{
			{forceOff, shutdown, gracefulRestart, forceRestart, powerCycle, pause, resume, on}, {pushButton},
		},
	},
}

// switchOn brings a new machine up.
func switchOn(b *bed, ref hypervisor.Ref) {
	b.Helper()
	switch b.get(ref).RunStrategy {
	case hypervisor.RunStrategyHalted, hypervisor.RunStrategyManual:
		b.do(ref, on)
	default:
		b.until(ref, "on", isOn)
	}
}

func isStarting(s *powerv1.PowerStatus) bool {
	return s.GetState() == powerv1.PowerState_POWER_STATE_POWERING_ON && s.GetInstanceId() != ""
}

func isStopping(s *powerv1.PowerStatus) bool {
	return s.GetState() == powerv1.PowerState_POWER_STATE_POWERING_OFF
}

func isPaused(s *powerv1.PowerStatus) bool {
	return s.GetState() == powerv1.PowerState_POWER_STATE_PAUSED
}

// needs tells what of the guest a situation needs that the bench lacks.
func (s situation) needs(guest contract.Guest) string {
	switch {
	case strings.Contains(s.name, "powered off") && guest.PowerOff == nil:
		return "this bench can't switch a guest off from within"
	case strings.Contains(s.name, "crashed") && guest.Crash == nil:
		return "this bench can't crash a guest"
	default:
		return ""
	}
}

// actionTable fills the table and holds it to the one that is on record.
func (suite Suite) actionTable(t *testing.T) {
	var results table.Table
	var hypervisorName atomic.Value
	place := 0
	t.Cleanup(func() {
		rows := results.Rows()
		if len(rows) == 0 {
			return
		}
		if err := table.Save(Actions, hypervisorName.Load().(string), rows); err != nil {
			t.Error(err)
		}
		// A part of the table was asked for, or could be filled.
		if len(rows) == place {
			suite.checkRecorded(t, rows)
		}
	})
	for _, s := range situations {
		for _, strategy := range s.strategies {
			for _, chain := range s.chains {
				first := place
				place += len(chain)
				t.Run(strategy.name+"/"+s.name+"/"+name(chain[0]), func(t *testing.T) {
					t.Parallel()
					suite.Setup(t, func(t *testing.T, bench contract.Bench) {
						hypervisorName.Store(bench.Name)
						if reason := s.needs(bench.Guest); reason != "" {
							t.Skip("no guest here that can get into the situation: ", reason)
						}
						b := suite.newBed(t, bench)
						s.try(b, strategy, chain, func(n int, result string) {
							results.Set(first+n, table.Row{Strategy: strategy.name, From: s.name, Action: name(chain[n]), Result: result})
						})
					})
				})
			}
		}
	}
}

// try tries a chain of actions.
func (s situation) try(b *bed, strategy runStrategy, chain []powerv1.PowerAction, found func(n int, result string)) {
	spec := strategy.spec
	spec.IgnoreACPI = s.spec.IgnoreACPI
	var ref hypervisor.Ref
	var before *powerv1.PowerStatus
	var beforeStrategy hypervisor.RunStrategy
	there := func() bool {
		return before != nil && s.is(b.status(ref)) && b.get(ref).RunStrategy == beforeStrategy
	}
	for n, action := range chain {
		for attempt := 0; ; attempt++ {
			if attempt == 4 {
				b.Fatalf("machine does not stay %s: %s", s.name, b.status(ref))
			}
			if before != nil && s.again != nil {
				s.again(b, ref)
			}
			if !there() {
				ref = b.machine(spec)
				s.reach(b, ref)
			}
			before, beforeStrategy = b.status(ref), b.get(ref).RunStrategy
			if !s.is(before) {
				continue
			}
			result := b.result(ref, before, action)
			if !strings.Contains(result, ";") && !there() {
				// A state that passes by itself was over before the action came.
				continue
			}
			found(n, result)
			break
		}
	}
}

// result sends an action and says what came of it.
func (b *bed) result(ref hypervisor.Ref, before *powerv1.PowerStatus, action powerv1.PowerAction) string {
	b.Helper()
	status, err := b.request(b.Context(), ref, action, 0)
	if err != nil {
		return "refused, " + strings.TrimPrefix(grpcstatus.ReasonOf(err).String(), "REASON_")
	}
	now := b.status(ref)
	switch id := status.GetOperation().GetId(); {
	case id != now.GetOperation().GetId():
		return "done already"
	case id == before.GetOperation().GetId():
		return "joins; " + b.outcome(ref, before)
	default:
		return "accepted; " + b.outcome(ref, before)
	}
}

// outcome waits for the end of an operation and says what it has made of the
// machine.
func (b *bed) outcome(ref hypervisor.Ref, before *powerv1.PowerStatus) string {
	b.Helper()
	text := ""
	if op := b.ended(ref).GetOperation(); op.GetPhase() != succeeded {
		text = "fails: " + op.GetMessage() + "; "
	}
	now := b.until(ref, "at rest", func(s *powerv1.PowerStatus) bool { return isOn(s) || isOff(s) || isPaused(s) })
	state := now.GetState()
	for range 20 {
		now = b.status(ref)
		if now.GetState() != state {
			b.Fatalf("machine went from %s to %s by itself", state, now.GetState())
		}
		b.rest()
	}
	text += strings.ToLower(strings.TrimPrefix(state.String(), "POWER_STATE_"))
	if now.GetInstanceId() != "" {
		if now.GetInstanceId() == before.GetInstanceId() {
			text += ", same instance"
		} else {
			text += ", new instance"
		}
	}
	return text + "; " + string(b.get(ref).RunStrategy)
}
