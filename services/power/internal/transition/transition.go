// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package transition decides what to do next about a machine's power. It is
// pure: what was observed and what is wanted go in, the next step comes out.
// The engine takes the step, observes again and asks again, so a decision never
// rests on what an earlier step was meant to do. docs/states.md draws the
// tables.
package transition

import "kubevirtbmc.dev/pkg/hypervisor"

// State is a machine's instance as power actions see it.
type State int

// The states.
const (
	// Absent: there is no instance.
	Absent State = iota
	// Starting: an instance is being made; no guest runs yet.
	Starting
	// Running: the guest runs.
	Running
	// Paused: the guest is frozen in memory.
	Paused
	// Stopping: the instance is being torn down or will be by a request already
	// accepted; the guest may still run.
	Stopping
	// Succeeded: the guest has ended and the object stays.
	Succeeded
	// Failed: the instance has failed and the object stays.
	Failed
	// Leaving: the instance has ended and its object is being deleted.
	Leaving
	// Lost: the hypervisor can't tell.
	Lost

	states = int(Lost) + 1
)

// Off tells whether no guest can be running.
func (s State) Off() bool {
	return s == Absent || s == Succeeded || s == Failed || s == Leaving
}

// Observed is what decisions rest on.
type Observed struct {
	State    State
	Strategy hypervisor.RunStrategy
	// StartQueued: a start was accepted that no instance shows yet.
	StartQueued bool
	// StartSent: a start was sent a moment ago; its instance may be about to
	// appear although nothing shows it.
	StartSent bool
	// Fresh: the instance is another one than when the operation was accepted.
	Fresh bool
	// Ran: the instance's guest has run, however it ended.
	Ran bool
	// Ending: the instance is being deleted, or will be by a request already
	// accepted.
	Ending bool
	// AtOnce: the instance has no grace period to leave to the guest.
	AtOnce bool
	// Overruled: somebody has set the run strategy to Halted after the operation
	// had started the machine.
	Overruled bool
	// NeedsNewInstance: a boot override or a change of the template waits for a
	// new instance.
	NeedsNewInstance bool
}

// Observe reads a machine's state.
func Observe(m *hypervisor.Machine) State {
	i := m.Instance
	switch {
	case i == nil:
		return Absent
	case i.Phase.Final() && i.Deleting:
		return Leaving
	case i.Phase == hypervisor.PhaseSucceeded:
		return Succeeded
	case i.Phase == hypervisor.PhaseFailed:
		return Failed
	case i.Phase == hypervisor.PhaseUnknown:
		return Lost
	case Ending(m):
		return Stopping
	case i.Phase == hypervisor.PhaseRunning && i.Paused:
		return Paused
	case i.Phase == hypervisor.PhaseRunning:
		return Running
	default:
		return Starting
	}
}

// Ending tells whether a machine's instance is being deleted, or will be by a
// request already accepted.
func Ending(m *hypervisor.Machine) bool {
	return m.Instance != nil && (m.Instance.Deleting || m.StopQueued || m.RunStrategy == hypervisor.RunStrategyHalted)
}

// Goal is what an accepted action is after.
type Goal string

// The goals. Their names are stored with the operation.
const (
	// GoalOn: the guest runs.
	GoalOn Goal = "On"
	// GoalOff: no guest runs, at once.
	GoalOff Goal = "Off"
	// GoalShutdown: no guest runs, after the guest was asked.
	GoalShutdown Goal = "Shutdown"
	// GoalCycle: a new instance runs; the old one is ended at once.
	GoalCycle Goal = "Cycle"
	// GoalRenew: a new instance runs; the old one's guest is asked to stop.
	GoalRenew Goal = "Renew"
	// GoalReset: the guest was reset.
	GoalReset Goal = "Reset"
	// GoalReboot: the guest was asked to reboot.
	GoalReboot Goal = "Reboot"
	// GoalPause: the guest is frozen.
	GoalPause Goal = "Pause"
	// GoalResume: the guest is not frozen.
	GoalResume Goal = "Resume"
)

// EndsOn tells whether the machine runs once the goal is reached.
func (g Goal) EndsOn() bool {
	switch g {
	case GoalOn, GoalCycle, GoalRenew, GoalReset, GoalReboot, GoalResume:
		return true
	default:
		return false
	}
}

// Starts tells whether a new instance may be made for the goal.
func (g Goal) Starts() bool { return g.EndsOn() && g != GoalResume }

// EndsOff tells whether the machine is off once the goal is reached.
func (g Goal) EndsOff() bool { return g == GoalOff || g == GoalShutdown }

// Step is the next thing to do.
type Step string

// The steps. The names of those that act are stored with the operation.
const (
	// Done: the goal is reached.
	Done Step = "Done"
	// Wait: nothing to do until something changes.
	Wait Step = "Wait"
	// GiveUp: the goal can't be reached any more.
	GiveUp Step = "GiveUp"
	// Unsupported: the machine's run strategy has no way to do it.
	Unsupported Step = "Unsupported"

	// Start sends a start request.
	Start Step = "Start"
	// RestoreStrategy sets the run strategy that starts a Halted machine.
	RestoreStrategy Step = "RestoreStrategy"
	// StopAtOnce sends a stop request without grace period.
	StopAtOnce Step = "StopAtOnce"
	// StopGently sends a stop request that gives the guest time.
	StopGently Step = "StopGently"
	// DeleteInstance deletes an instance that has ended.
	DeleteInstance Step = "DeleteInstance"
	// Reset resets the guest.
	Reset Step = "Reset"
	// Reboot asks the guest to reboot.
	Reboot Step = "Reboot"
	// Pause freezes the guest.
	Pause Step = "Pause"
	// Unpause lets the guest go on.
	Unpause Step = "Unpause"
)

// Acts tells whether the step changes something.
func (s Step) Acts() bool {
	return s != Done && s != Wait && s != GiveUp && s != Unsupported
}

// Completes tells whether the goal is reached as soon as the step was accepted,
// because nothing shows it afterwards.
func (s Step) Completes() bool { return s == Reset || s == Reboot }

// rule decides the step in one state.
type rule func(Observed) Step

func always(s Step) rule { return func(Observed) Step { return s } }

// ifFresh chooses by whether the instance is a new one.
func ifFresh(fresh, old rule) rule {
	return func(o Observed) Step {
		if o.Fresh {
			return fresh(o)
		}
		return old(o)
	}
}

// ifEnding chooses by whether the instance is being deleted.
func ifEnding(ending, staying rule) rule {
	return func(o Observed) Step {
		if o.Ending {
			return ending(o)
		}
		return staying(o)
	}
}

var (
	wait = always(Wait)
	done = always(Done)
)

// table has the rule for each goal and state.
var table = map[Goal][states]rule{
	GoalOn: {
		Absent:    start,
		Starting:  wait,
		Running:   done,
		Paused:    always(Unpause),
		Stopping:  wait,
		Succeeded: ifFresh(done, start),
		Failed:    ifFresh(failedStart, start),
		Leaving:   leaving,
		Lost:      wait,
	},
	GoalOff: {
		Absent:    stayOff,
		Starting:  stop(StopAtOnce),
		Running:   stop(StopAtOnce),
		Paused:    stop(StopAtOnce),
		Stopping:  hurry,
		Succeeded: stayOff,
		Failed:    stayOff,
		Leaving:   stayOff,
		Lost:      ifEnding(hurry, stop(StopAtOnce)),
	},
	GoalShutdown: {
		Absent:    stayOff,
		Starting:  stop(StopGently),
		Running:   stop(StopGently),
		Paused:    always(Unpause),
		Stopping:  keepStopping,
		Succeeded: stayOff,
		Failed:    stayOff,
		Leaving:   stayOff,
		Lost:      ifEnding(keepStopping, stop(StopGently)),
	},
	GoalCycle: {
		Absent:    start,
		Starting:  ifFresh(wait, stop(StopAtOnce)),
		Running:   ifFresh(done, stop(StopAtOnce)),
		Paused:    ifFresh(always(Unpause), stop(StopAtOnce)),
		Stopping:  ifFresh(wait, hurry),
		Succeeded: ifFresh(done, start),
		Failed:    ifFresh(failedStart, start),
		Leaving:   leaving,
		Lost:      ifFresh(wait, ifEnding(hurry, stop(StopAtOnce))),
	},
	GoalRenew: {
		Absent:    start,
		Starting:  ifFresh(wait, stop(StopGently)),
		Running:   ifFresh(done, stop(StopGently)),
		Paused:    always(Unpause),
		Stopping:  wait,
		Succeeded: ifFresh(done, start),
		Failed:    ifFresh(failedStart, start),
		Leaving:   leaving,
		Lost:      ifFresh(wait, ifEnding(wait, stop(StopGently))),
	},
	GoalReset: {
		Absent:    start,
		Starting:  wait,
		Running:   ifFresh(done, always(Reset)),
		Paused:    always(Unpause),
		Stopping:  wait,
		Succeeded: ifFresh(done, start),
		Failed:    ifFresh(failedStart, start),
		Leaving:   leaving,
		Lost:      wait,
	},
	GoalReboot: {
		Absent:    start,
		Starting:  wait,
		Running:   ifFresh(done, always(Reboot)),
		Paused:    always(Unpause),
		Stopping:  wait,
		Succeeded: ifFresh(done, start),
		Failed:    ifFresh(failedStart, start),
		Leaving:   leaving,
		Lost:      wait,
	},
	GoalPause: {
		Absent:    always(GiveUp),
		Starting:  always(GiveUp),
		Running:   always(Pause),
		Paused:    done,
		Stopping:  always(GiveUp),
		Succeeded: always(GiveUp),
		Failed:    always(GiveUp),
		Leaving:   always(GiveUp),
		Lost:      always(GiveUp),
	},
	GoalResume: {
		Absent:    always(GiveUp),
		Starting:  done,
		Running:   done,
		Paused:    always(Unpause),
		Stopping:  always(GiveUp),
		Succeeded: always(GiveUp),
		Failed:    always(GiveUp),
		Leaving:   always(GiveUp),
		Lost:      always(GiveUp),
	},
}

// Next returns the next step towards a goal.
func Next(o Observed, goal Goal) Step {
	rules, ok := table[goal]
	if !ok || o.State < 0 || int(o.State) >= states {
		return GiveUp
	}
	if o.Overruled && goal.EndsOn() {
		return GiveUp
	}
	return rules[o.State](o)
}

// start starts a machine that has no instance or an ended one, by the way that
// its run strategy has.
func start(o Observed) Step {
	if o.StartQueued {
		return Wait
	}
	switch o.Strategy {
	case hypervisor.RunStrategyHalted:
		// KubeVirt deletes what is left of the old instance. A strategy that is
		// set while it is still there would be lost: under RerunOnFailure only
		// the change itself starts a machine.
		if o.State == Absent {
			return RestoreStrategy
		}
		return Wait
	case hypervisor.RunStrategyAlways:
		// KubeVirt makes the next instance by itself, perhaps after a back-off.
		return Wait
	case hypervisor.RunStrategyOnce:
		// As under Always, but an instance that has ended stays in the way.
		if o.State == Absent {
			return Wait
		}
		return DeleteInstance
	case hypervisor.RunStrategyRerunOnFailure:
		switch o.State {
		case Absent:
			return Start
		case Failed:
			// start is refused in this state.
			return DeleteInstance
		default:
			return Wait
		}
	case hypervisor.RunStrategyManual:
		return Start
	default:
		return Unsupported
	}
}

// leaving waits for the rest of an instance to go. A new one that has run and
// ended by itself was on, which is what the action was after.
func leaving(o Observed) Step {
	if o.Fresh && o.Ran {
		return Done
	}
	return Wait
}

// failedStart is about a new instance that failed.
func failedStart(o Observed) Step {
	switch {
	case o.Ran:
		return Done
	case o.Strategy == hypervisor.RunStrategyManual || o.Strategy == hypervisor.RunStrategyOnce:
		return GiveUp
	default:
		return Wait
	}
}

// stop sends a stop where the run strategy has one.
func stop(step Step) rule {
	return func(o Observed) Step {
		switch o.Strategy {
		case hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
			hypervisor.RunStrategyHalted, hypervisor.RunStrategyOnce:
			return step
		default:
			return Unsupported
		}
	}
}

// stayOff makes sure that a machine without a guest stays without.
func stayOff(o Observed) Step {
	if o.StartQueued || o.StartSent && o.State == Absent && o.Strategy != hypervisor.RunStrategyAlways && o.Strategy != hypervisor.RunStrategyOnce {
		// A stop would be refused as long as no instance shows. Under Always it
		// would not be, but the start that is queued makes Always of Halted again,
		// until there is an instance.
		return Wait
	}
	switch o.Strategy {
	case hypervisor.RunStrategyAlways:
		return StopAtOnce
	case hypervisor.RunStrategyOnce:
		if o.State == Absent || o.State == Leaving {
			return StopAtOnce
		}
		return Done
	case hypervisor.RunStrategyRerunOnFailure:
		if o.State == Failed {
			// KubeVirt starts it again, unless it is being deleted.
			return DeleteInstance
		}
	}
	return Done
}

// comesBack tells whether something follows an instance that is being torn
// down.
func comesBack(o Observed) bool {
	switch o.Strategy {
	case hypervisor.RunStrategyAlways, hypervisor.RunStrategyOnce:
		return true
	case hypervisor.RunStrategyHalted:
		// A start that is queued does bring it back, but no stop takes it away.
		return false
	default:
		return o.StartQueued
	}
}

// hurry takes the rest of the grace period away.
func hurry(o Observed) Step {
	if o.AtOnce && !comesBack(o) {
		return Wait
	}
	return stop(StopAtOnce)(o)
}

// keepStopping lets the guest go on stopping.
func keepStopping(o Observed) Step {
	if comesBack(o) {
		return stop(StopGently)(o)
	}
	return Wait
}
