// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// StopCause is why the last instance ended.
type StopCause int

// The causes.
const (
	// StopCauseNone: none has ended while this process watched.
	StopCauseNone StopCause = iota
	StopCauseUnknown
	StopCauseAction
	StopCauseExternal
	StopCauseFailure
)

// Status is a machine's power status.
type Status struct {
	State transition.State
	// StartQueued tells that a machine that is off will have an instance.
	StartQueued    bool
	InstanceUID    string
	LastTransition time.Time
	LastReset      time.Time
	StopCause      StopCause
	Strategy       hypervisor.RunStrategy
	// Operation is the latest one; nil when there was none.
	Operation *record.Operation
}

// history is what this process has seen of a machine.
type history struct {
	seen           bool
	state          transition.State
	lastTransition time.Time
	// liveUID is the last instance that was seen alive.
	liveUID   string
	stopCause StopCause
}

// Status returns a machine's power status, from the cache.
func (e *Engine) Status(ref hypervisor.Ref) (*Status, error) {
	m, rec, err := e.read(ref)
	if err != nil {
		return nil, err
	}
	h := e.observe(m, rec)
	status := &Status{
		State:          transition.Observe(m),
		StartQueued:    m.StartQueued,
		LastTransition: h.lastTransition,
		LastReset:      rec.Power.Reset,
		StopCause:      h.stopCause,
		Strategy:       m.RunStrategy,
	}
	if i := m.Instance; i != nil {
		if !status.State.Off() {
			status.InstanceUID = i.UID
		}
		if i.Started.After(status.LastReset) {
			status.LastReset = i.Started
		}
	}
	if op := rec.Power.Operation; op != nil {
		if op.Active() && op.Message == "" {
			op.Message = e.waitsFor(m, rec, op)
		}
		status.Operation = op
	}
	return status, nil
}

// observe brings the machine's history up to date.
func (e *Engine) observe(m *hypervisor.Machine, rec *record.Record) history {
	entry := e.entry(m.Ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	h := &entry.history
	state := transition.Observe(m)
	if h.seen && state != h.state && (!state.Off() || !h.state.Off()) {
		h.lastTransition = time.Now().UTC()
	}
	h.seen = true
	h.state = state
	i := m.Instance
	if h.liveUID != "" && (i == nil || i.UID != h.liveUID || i.Phase.Final()) {
		h.stopCause = stopCause(h.liveUID, i, rec.Power.Operation)
		h.liveUID = ""
	}
	if i != nil && !i.Phase.Final() {
		h.liveUID = i.UID
	}
	return *h
}

// stopCause says why an instance ended, given what is there now.
func stopCause(uid string, now *hypervisor.Instance, op *record.Operation) StopCause {
	switch {
	case op != nil && op.InstanceUID == uid && op.Phase != record.Failed && (op.EndsInstance || endsInstance(op.Goal)):
		return StopCauseAction
	case now == nil || now.UID != uid:
		return StopCauseUnknown
	case now.Phase == hypervisor.PhaseFailed:
		return StopCauseFailure
	default:
		return StopCauseExternal
	}
}

// endsInstance tells whether a goal is not reached before the instance has ended.
func endsInstance(goal transition.Goal) bool {
	return goal.EndsOff() || goal == transition.GoalCycle || goal == transition.GoalRenew
}
