// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package transition_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/transition"
)

var update = flag.Bool("update", false, "write the golden files")

var goals = []transition.Goal{
	transition.GoalOn, transition.GoalOff, transition.GoalShutdown, transition.GoalCycle, transition.GoalRenew,
	transition.GoalReset, transition.GoalReboot, transition.GoalPause, transition.GoalResume,
}

var actions = []transition.Action{
	transition.ActionOn, transition.ActionForceOff, transition.ActionGracefulShutdown, transition.ActionGracefulRestart,
	transition.ActionForceRestart, transition.ActionPowerCycle, transition.ActionPushPowerButton,
	transition.ActionPause, transition.ActionResume,
}

var stateNames = []string{"Absent", "Starting", "Running", "Paused", "Stopping", "Succeeded", "Failed", "Leaving", "Lost"}

var strategies = []hypervisor.RunStrategy{
	hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
	hypervisor.RunStrategyHalted, hypervisor.RunStrategyOnce, "WaitAsReceiver",
}

// everything calls f with each combination that can be observed, and some that
// can't.
func everything(f func(transition.Observed)) {
	bools := []bool{false, true}
	for state := range stateNames {
		for _, strategy := range strategies {
			for _, queued := range bools {
				for _, sent := range bools {
					for _, fresh := range bools {
						for _, ran := range bools {
							for _, atOnce := range bools {
								for _, needs := range bools {
									for _, ending := range bools {
										f(transition.Observed{
											State: transition.State(state), Strategy: strategy, StartQueued: queued, StartSent: sent,
											Fresh: fresh, Ran: ran, Ending: ending, AtOnce: atOnce, NeedsNewInstance: needs,
										})
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

func TestNext_keepsItsPromises(t *testing.T) {
	t.Parallel()
	for _, goal := range goals {
		everything(func(o transition.Observed) {
			step := transition.Next(o, goal)
			broken := func(promise string) {
				t.Errorf("%s in %s %+v: step %s breaks: %s", goal, stateNames[o.State], o, step, promise)
			}
			running := o.State == transition.Running
			ended := o.State.Off() && o.Fresh
			switch step {
			case transition.Done:
				switch {
				case goal.EndsOff() && !o.State.Off():
					broken("an off is done only when no guest runs")
				case goal.EndsOff() && o.Strategy == hypervisor.RunStrategyAlways:
					broken("under Always an ended instance comes back")
				case goal.EndsOff() && o.StartQueued && o.Strategy != hypervisor.RunStrategyOnce:
					broken("an off is not done while a start is queued")
				case goal == transition.GoalPause && o.State != transition.Paused:
					broken("a pause is done only when the guest is paused")
				case goal.EndsOn() && goal != transition.GoalResume && !running && !ended:
					broken("an on is done only when the guest runs, or has run since")
				case (goal == transition.GoalCycle || goal == transition.GoalRenew) && !o.Fresh:
					broken("a new instance was asked for")
				}
			case transition.Start, transition.RestoreStrategy, transition.DeleteInstance:
				switch {
				case !o.State.Off() || o.State == transition.Leaving:
					broken("a start waits until the old instance has gone or ended")
				case step != transition.DeleteInstance && !goal.EndsOn():
					broken("only a goal that ends on starts")
				case step != transition.DeleteInstance && o.StartQueued:
					broken("a second start is refused")
				case step == transition.Start && o.Strategy != hypervisor.RunStrategyManual && o.Strategy != hypervisor.RunStrategyRerunOnFailure:
					broken("start is refused or changes the strategy")
				case step == transition.RestoreStrategy && o.Strategy != hypervisor.RunStrategyHalted:
					broken("there is a strategy already")
				case step == transition.DeleteInstance && o.State == transition.Absent:
					broken("there is no instance")
				}
			case transition.StopAtOnce, transition.StopGently:
				switch {
				case goal != transition.GoalOff && goal != transition.GoalShutdown && goal != transition.GoalCycle && goal != transition.GoalRenew:
					broken("only these goals stop")
				case o.Fresh && (goal == transition.GoalCycle || goal == transition.GoalRenew):
					broken("a new instance is not stopped")
				case step == transition.StopAtOnce && (goal == transition.GoalShutdown || goal == transition.GoalRenew) && !o.State.Off():
					broken("a guest that was to be asked is not killed")
				case o.Strategy == "WaitAsReceiver":
					broken("a stop would do nothing")
				case o.StartQueued && o.State.Off():
					broken("the start makes Always of Halted again, so both would go on for ever")
				}
			case transition.Reset, transition.Reboot:
				if !running || o.Fresh {
					broken("a reset is for the old guest while it runs")
				}
			case transition.Pause:
				if !running || goal != transition.GoalPause {
					broken("only a running guest is paused, on demand")
				}
			case transition.Unpause:
				if o.State != transition.Paused || goal == transition.GoalPause || goal == transition.GoalOff {
					broken("only a paused guest goes on, and not to be killed")
				}
			case transition.Wait, transition.GiveUp, transition.Unsupported:
			default:
				broken("it is no step")
			}
		})
	}
}

// TestDecide_acceptedActionsHaveAStep: an accepted action never gives up at
// once.
func TestDecide_acceptedActionsHaveAStep(t *testing.T) {
	t.Parallel()
	for _, action := range actions {
		for _, current := range append([]transition.Goal{""}, goals...) {
			everything(func(o transition.Observed) {
				goal, verdict := transition.Decide(o, action, current)
				switch verdict {
				case transition.Accept, transition.Reached:
					o.Fresh = false
					step := transition.Next(o, goal)
					if step == transition.GiveUp || step == transition.Unsupported {
						t.Errorf("%s during %q in %s %+v was accepted for %s, which does %s", action, current, stateNames[o.State], o, goal, step)
					}
					if (verdict == transition.Reached) != (step == transition.Done && current == "") {
						t.Errorf("%s during %q in %s %+v: verdict %d, step %s", action, current, stateNames[o.State], o, verdict, step)
					}
				case transition.Join:
					if current == "" || goal != current {
						t.Errorf("%s joined %q for %q", action, current, goal)
					}
				}
			})
		}
	}
}

// TestTables compares all decisions with the golden files, which are the tables
// to read and review.
func TestTables(t *testing.T) {
	t.Parallel()
	var next bytes.Buffer
	for _, fresh := range []bool{false, true} {
		for _, goal := range goals {
			title := "the instance is the one from when the action was accepted"
			if fresh {
				title = "the instance is a new one, whose guest has run if it has ended"
			}
			fmt.Fprintf(&next, "Goal %s: %s\n", goal, title)
			row(&next, "", stateNames)
			for _, strategy := range strategies {
				var steps []string
				for state := range stateNames {
					steps = append(steps, string(transition.Next(transition.Observed{
						State: transition.State(state), Strategy: strategy, Fresh: fresh, Ran: fresh,
					}, goal)))
				}
				row(&next, string(strategy), steps)
			}
			next.WriteByte('\n')
		}
	}
	golden(t, "next.golden", next.Bytes())

	verdicts := []string{"accept", "reached", "join", "refuse: state", "refuse: unsupported", "refuse: under way"}
	var decide bytes.Buffer
	for _, needs := range []bool{false, true} {
		for _, current := range append([]transition.Goal{""}, goals...) {
			fmt.Fprintf(&decide, "Under RerunOnFailure, operation under way: %q, something waits for a new instance: %t\n", current, needs)
			row(&decide, "", stateNames)
			for _, action := range actions {
				var cells []string
				for state := range stateNames {
					goal, verdict := transition.Decide(transition.Observed{
						State: transition.State(state), Strategy: hypervisor.RunStrategyRerunOnFailure, NeedsNewInstance: needs,
					}, action, current)
					cell := verdicts[verdict]
					if verdict == transition.Accept {
						cell = string(goal)
					}
					cells = append(cells, cell)
				}
				row(&decide, string(action), cells)
			}
			decide.WriteByte('\n')
		}
	}
	golden(t, "decide.golden", decide.Bytes())
}

func row(b *bytes.Buffer, name string, cells []string) {
	fmt.Fprintf(b, "%-16s", name)
	for _, cell := range cells {
		fmt.Fprintf(b, " | %-17s", cell)
	}
	b.WriteByte('\n')
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s mismatch (-want +got); after a look at it, run the test with -update\n%s", name, diff)
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	live := func(edit func(*hypervisor.Instance)) *hypervisor.Machine {
		i := &hypervisor.Instance{UID: "uid", Phase: hypervisor.PhaseRunning}
		edit(i)
		return &hypervisor.Machine{RunStrategy: hypervisor.RunStrategyManual, Instance: i}
	}
	halted := live(func(*hypervisor.Instance) {})
	halted.RunStrategy = hypervisor.RunStrategyHalted
	stopQueued := live(func(*hypervisor.Instance) {})
	stopQueued.StopQueued = true
	for name, test := range map[string]struct {
		machine *hypervisor.Machine
		want    transition.State
	}{
		"no instance":           {&hypervisor.Machine{}, transition.Absent},
		"pending":               {live(func(i *hypervisor.Instance) { i.Phase = hypervisor.PhasePending }), transition.Starting},
		"phase not set yet":     {live(func(i *hypervisor.Instance) { i.Phase = "" }), transition.Starting},
		"scheduled":             {live(func(i *hypervisor.Instance) { i.Phase = hypervisor.PhaseScheduled }), transition.Starting},
		"running":               {live(func(*hypervisor.Instance) {}), transition.Running},
		"paused":                {live(func(i *hypervisor.Instance) { i.Paused = true }), transition.Paused},
		"being deleted":         {live(func(i *hypervisor.Instance) { i.Deleting = true }), transition.Stopping},
		"deleted while paused":  {live(func(i *hypervisor.Instance) { i.Deleting, i.Paused = true, true }), transition.Stopping},
		"stop queued":           {stopQueued, transition.Stopping},
		"running under Halted":  {halted, transition.Stopping},
		"succeeded":             {live(func(i *hypervisor.Instance) { i.Phase = hypervisor.PhaseSucceeded }), transition.Succeeded},
		"failed":                {live(func(i *hypervisor.Instance) { i.Phase = hypervisor.PhaseFailed }), transition.Failed},
		"ended, being deleted":  {live(func(i *hypervisor.Instance) { i.Phase, i.Deleting = hypervisor.PhaseSucceeded, true }), transition.Leaving},
		"failed, being deleted": {live(func(i *hypervisor.Instance) { i.Phase, i.Deleting = hypervisor.PhaseFailed, true }), transition.Leaving},
		"node lost":             {live(func(i *hypervisor.Instance) { i.Phase = hypervisor.PhaseUnknown }), transition.Lost},
	} {
		if got := transition.Observe(test.machine); got != test.want {
			t.Errorf("%s: got %s, want %s", name, stateNames[got], stateNames[test.want])
		}
	}
	if len(stateNames) != int(transition.Lost)+1 || slices.Contains(stateNames, "") {
		t.Error("a state has no name in this test")
	}
}
