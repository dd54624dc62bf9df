// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package transition

// Action is what a client asks for.
type Action string

// The actions. Their names are stored with the operation.
const (
	ActionOn               Action = "On"
	ActionForceOff         Action = "ForceOff"
	ActionGracefulShutdown Action = "GracefulShutdown"
	ActionGracefulRestart  Action = "GracefulRestart"
	ActionForceRestart     Action = "ForceRestart"
	ActionPowerCycle       Action = "PowerCycle"
	ActionPushPowerButton  Action = "PushPowerButton"
	ActionPause            Action = "Pause"
	ActionResume           Action = "Resume"
)

// Known tells whether it is one of the above: a stored one may not be.
func (a Action) Known() bool {
	switch a {
	case ActionOn, ActionForceOff, ActionGracefulShutdown, ActionGracefulRestart, ActionForceRestart, ActionPowerCycle,
		ActionPushPowerButton, ActionPause, ActionResume:
		return true
	default:
		return false
	}
}

// Verdict is what becomes of an action.
type Verdict int

// The verdicts.
const (
	// Accept: it becomes the machine's operation and replaces an earlier one.
	Accept Verdict = iota
	// Reached: its goal is reached already.
	Reached
	// Join: the operation under way has the same goal.
	Join
	// RefuseState: it makes no sense in the present state.
	RefuseState
	// RefuseUnsupported: the machine's run strategy has no way to do it.
	RefuseUnsupported
	// RefuseUnderWay: the operation under way has to end first.
	RefuseUnderWay
)

// Decide says what becomes of an action, given the goal of the operation under
// way (empty: none).
func Decide(o Observed, action Action, current Goal) (Goal, Verdict) {
	// For a new operation the present instance is the old one.
	o.Fresh, o.Overruled = false, false
	goal, ok := goalOf(o, action, current)
	if !ok {
		return "", RefuseState
	}
	if current != "" {
		switch {
		case joins(goal, current):
			return current, Join
		case (goal == GoalPause || goal == GoalResume) && current.EndsOff():
			return "", RefuseUnderWay
		}
	}
	switch step := Next(o, goal); {
	case step == Unsupported:
		return "", RefuseUnsupported
	case step == GiveUp:
		return "", RefuseState
	case step == Done && current == "":
		return goal, Reached
	default:
		return goal, Accept
	}
}

// goalOf returns an action's goal; not ok when the action makes no sense.
func goalOf(o Observed, action Action, current Goal) (Goal, bool) {
	// A machine that is on its way up counts as on.
	off := o.State.Off() && !o.StartQueued && !current.EndsOn()
	// An instance can be kept only when nothing ends it.
	keep := !o.NeedsNewInstance && !current.EndsOff()
	switch action {
	case ActionOn:
		switch current {
		case GoalOff:
			// The off was accepted: it is carried out before the on, so that
			// the two together start the machine anew.
			return GoalCycle, true
		case GoalShutdown:
			return GoalRenew, true
		}
		return GoalOn, true
	case ActionForceOff:
		return GoalOff, true
	case ActionGracefulShutdown:
		return GoalShutdown, true
	case ActionPushPowerButton:
		if off {
			return GoalOn, true
		}
		return GoalShutdown, true
	case ActionPowerCycle:
		return GoalCycle, !off
	case ActionForceRestart:
		switch {
		case keep && (o.State == Running || o.State == Paused):
			return GoalReset, true
		case keep && o.State == Starting:
			return GoalOn, true
		default:
			return GoalCycle, !off
		}
	case ActionGracefulRestart:
		switch {
		case keep && (o.State == Running || o.State == Paused):
			return GoalReboot, true
		case keep && o.State == Starting:
			return GoalOn, true
		default:
			return GoalRenew, !off
		}
	case ActionPause:
		return GoalPause, o.State == Running || o.State == Paused
	case ActionResume:
		return GoalResume, o.State == Running || o.State == Paused || o.State == Starting
	default:
		return "", false
	}
}

// joins tells whether an action's goal is reached by the operation under way.
func joins(goal, current Goal) bool {
	if goal == current {
		return true
	}
	switch goal {
	case GoalShutdown:
		return current == GoalOff
	case GoalOn:
		return current.EndsOn()
	case GoalRenew:
		return current == GoalCycle
	default:
		return false
	}
}
