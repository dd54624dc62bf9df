// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

const (
	deadlineOn    = 10 * time.Minute
	deadlineOff   = 6 * time.Minute
	deadlinePause = 30 * time.Second
	// deadlineSlack is what a shutdown may take past its grace period.
	deadlineSlack = 2 * time.Minute
)

// Transition accepts an action and waits for its goal, at most as long as wait
// says. The status's operation is the one that the action started or joined.
func (e *Engine) Transition(ctx context.Context, ref hypervisor.Ref, action transition.Action, wait time.Duration) (*Status, error) {
	if _, _, err := e.read(ref); err != nil {
		return nil, err
	}
	changes, cancel := e.Follow(ref)
	defer cancel()
	own, unseen, err := e.accept(ctx, ref, action)
	if err != nil {
		return nil, err
	}
	if own.Active() && wait > 0 && !unseen {
		own, err = e.await(ctx, ref, own, wait, changes)
		if err != nil {
			return nil, err
		}
	}
	status, err := e.Status(ref)
	if err != nil {
		return nil, err
	}
	if status.Operation == nil || status.Operation.ID != own.ID {
		status.Operation = own
	}
	return status, nil
}

// accept writes an action down as the machine's operation. It is unseen when the
// cache does not show that yet.
func (e *Engine) accept(ctx context.Context, ref hypervisor.Ref, action transition.Action) (own *record.Operation, unseen bool, err error) {
	var replaced *record.Operation
	id := rand.Text()
	// Before it is written: a worker may see it at once.
	e.hold(ref, id, false)
	err = e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		own, replaced = nil, nil
		latest := rec.Power.Operation
		var current transition.Goal
		if latest.Active() {
			current = latest.Goal
		}
		o := e.observed(m, rec, latest)
		goal, verdict := transition.Decide(o, action, current)
		now := time.Now().UTC()
		switch verdict {
		case transition.RefuseState:
			return fmt.Errorf("%s: %w", action, ErrPowerState)
		case transition.RefuseUnsupported:
			return fmt.Errorf("%s under %s: %w", action, m.RunStrategy, ErrRunStrategy)
		case transition.RefuseUnderWay:
			return fmt.Errorf("%s during %s: %w", action, latest.Action, ErrOperation)
		case transition.Join:
			own = latest
			return errUnchanged
		case transition.Reached:
			own = &record.Operation{ID: id, Action: action, Goal: goal, Phase: record.Succeeded, Start: now, End: now}
			return errUnchanged
		}
		if latest.Active() {
			replaced = latest
		} else if m.RunStrategy != hypervisor.RunStrategyHalted {
			// The user has chosen another strategy since.
			rec.Power.RunStrategy = ""
		}
		own = &record.Operation{
			ID: id, Request: callctx.RequestID(ctx), Action: action, Goal: goal, Phase: record.UnderWay,
			Start: now, Deadline: now.Add(e.deadline(m, goal)),
			Holder: e.holder, Lease: now.Add(e.lease),
		}
		if m.Instance != nil {
			own.InstanceUID = m.Instance.UID
		}
		if replaced != nil && replaced.Goal.EndsOff() && own.Goal.EndsOn() {
			// Only an instance that came after the off is a new one.
			own.InstanceUID = replaced.InstanceUID
			own.EndsInstance = true
		}
		if latest != nil {
			own.StartSent = latest.StartSent
		}
		rec.Power.Operation = own
		rec.Seen = see(m, rec.Seen)
		return nil
	})
	unseen = errors.Is(err, hypervisor.ErrUnseen)
	if unseen {
		// It is written, and so it will be carried out.
		err = nil
	}
	if err != nil || own.ID != id || !own.Active() {
		e.letGo(ref, id)
	} else if !unseen {
		e.hold(ref, id, true)
	}
	if err != nil {
		return nil, false, err
	}
	if replaced != nil {
		replaced.Phase = record.Superseded
		replaced.End = own.Start
		replaced.Message = "replaced by " + string(action)
		e.ended(ref, replaced)
	}
	if own.Active() {
		e.operationLogger(ref, own).Info("operation accepted", slog.String(logkey.Action, string(action)))
		e.queue.add(ref)
	}
	return own, unseen, nil
}

// deadline is how long a goal may take.
func (e *Engine) deadline(m *hypervisor.Machine, goal transition.Goal) time.Duration {
	grace := e.grace(m)
	switch goal {
	case transition.GoalOff:
		return deadlineOff
	case transition.GoalShutdown:
		return max(grace+deadlineSlack, deadlineOff)
	case transition.GoalPause, transition.GoalResume:
		return deadlinePause
	case transition.GoalRenew:
		return grace + deadlineOn
	default:
		return deadlineOn
	}
}

// grace is how long a guest without an agent is given to shut down.
func (e *Engine) grace(m *hypervisor.Machine) time.Duration {
	return min(max(e.shutdownGrace, m.GracePeriod), maxGrace)
}

// await waits until an operation ends.
func (e *Engine) await(ctx context.Context, ref hypervisor.Ref, own *record.Operation, wait time.Duration, changes <-chan struct{}) (*record.Operation, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		_, rec, err := e.read(ref)
		if err != nil {
			return nil, err
		}
		switch op := rec.Power.Operation; {
		case op == nil || op.ID != own.ID:
			return e.outcome(ref, own), nil
		case !op.Active():
			return op, nil
		default:
			own = op
		}
		select {
		case <-changes:
		case <-timeout.C:
			return own, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// outcome returns how an operation ended that a later one has replaced.
func (e *Engine) outcome(ref hypervisor.Ref, op *record.Operation) *record.Operation {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	ended := *op
	if entry.last.ID == op.ID {
		ended = entry.last
	} else {
		ended.Phase = record.Superseded
		ended.End = time.Now().UTC()
	}
	return &ended
}

// reconcile takes the next step for a machine and returns when to look again.
func (e *Engine) reconcile(ctx context.Context, ref hypervisor.Ref) time.Duration {
	entry := e.entry(ref)
	if err := entry.lock(ctx); err != nil {
		return 0
	}
	defer entry.unlock()

	held := e.written(ref)
	m, rec, err := e.read(ref)
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		e.forget(ref)
		return 0
	case err != nil:
		e.logger(ref).Warn("can't read machine", slog.String(logkey.Error, err.Error()))
		return retryMax
	}
	e.observe(m, rec)
	for _, id := range held {
		// Another process has ended or replaced it.
		if op := rec.Power.Operation; op == nil || op.ID != id {
			e.letGo(ref, id)
		}
	}

	undoing, failed := e.undone(ctx, ref)
	if failed {
		return undoing
	}
	if err := e.keepAdopted(ctx, ref); err != nil {
		return e.retry(ref, "keep boot override of an earlier version", err)
	}
	valid, err := e.expire(ctx, ref)
	if err != nil {
		return e.retry(ref, "take boot override back", err)
	}
	again := e.next(ctx, m.Ref)
	for _, other := range []time.Duration{undoing, valid} {
		if other > 0 && (again == 0 || other < again) {
			again = other
		}
	}
	return again
}

// next takes the next step for a machine, its boot override first.
func (e *Engine) next(ctx context.Context, ref hypervisor.Ref) time.Duration {
	m, rec, err := e.read(ref)
	if err != nil {
		return e.retry(ref, "read machine", err)
	}
	if err := e.keepSeen(ctx, ref); err != nil {
		e.logger(ref).Info("can't keep the machine's hardware", slog.String(logkey.Error, err.Error()))
	}
	op := rec.Power.Operation
	if rec.Override.Active() {
		settled, err := e.boot.settle(ctx, m, rec.Override)
		if err == nil && !e.settling(ref, settled) {
			err = errNotKept
		}
		switch {
		case err != nil && (!op.Active() || op.Goal.Starts() && time.Now().Before(op.Deadline)):
			return e.retry(ref, "boot override", err)
		case err != nil:
			// Nothing else waits for the template.
			if again := e.reconcilePower(ctx, m, rec, op); again > 0 {
				return min(again, retryMax)
			}
			return retryMax
		case !settled:
			e.queue.add(ref)
			return 0
		}
	}
	if !op.Active() {
		e.succeeded(ref)
		return 0
	}
	return e.reconcilePower(ctx, m, rec, op)
}

// errNotKept says that a template does not show what was written to it.
var errNotKept = fmt.Errorf("%w: the machine's template does not stay as it was written", hypervisor.ErrUnavailable)

// settling takes note of a step for the boot override; false when there were too
// many of them in a row.
func (e *Engine) settling(ref hypervisor.Ref, settled bool) bool {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if settled {
		entry.unsettled = 0
		return true
	}
	entry.unsettled = min(entry.unsettled+1, writeAttempts)
	return entry.unsettled < writeAttempts
}

// reconcilePower takes the next step of an operation.
func (e *Engine) reconcilePower(ctx context.Context, m *hypervisor.Machine, rec *record.Record, op *record.Operation) time.Duration {
	ref := m.Ref
	now := time.Now().UTC()
	if !e.holds(ref, op) {
		if op.Holder != e.holder {
			if left := e.leaseLeft(ref, op, now); left > 0 {
				return left
			}
		}
		return e.takeOver(ctx, ref, op)
	}
	o := e.observed(m, rec, op)
	step := transition.Next(o, op.Goal)
	if step != transition.Done && now.After(op.Deadline) {
		return e.finish(ctx, ref, op, record.Failed, "not reached in time: "+e.waitsFor(m, rec, op))
	}
	switch step {
	case transition.Done:
		return e.finish(ctx, ref, op, record.Succeeded, "")
	case transition.GiveUp:
		if o.Overruled {
			return e.finish(ctx, ref, op, record.Failed, "somebody else has set the run strategy to Halted")
		}
		return e.finish(ctx, ref, op, record.Failed, giveUpText(m))
	case transition.Unsupported:
		return e.finish(ctx, ref, op, record.Failed, fmt.Sprintf("run strategy %s has no way to do it", m.RunStrategy))
	case transition.Wait:
		e.succeeded(ref)
		return e.keepLease(ctx, ref, op, o)
	}
	if step == op.Step {
		if left := e.untilRepeat(ref, op, now); left > 0 {
			return left
		}
	}
	return e.take(ctx, m, op, step)
}

// untilRepeat is how long the step that was taken last is not to be taken again.
// That it was written down shows as a change of the machine, so the engine looks
// again at once.
func (e *Engine) untilRepeat(ref hypervisor.Ref, op *record.Operation, now time.Time) time.Duration {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if entry.failures > 0 {
		return entry.retryAt.Sub(now)
	}
	if !recently(op.StepTime, repeatAfter) {
		return 0
	}
	return op.StepTime.Add(repeatAfter).Sub(now)
}

// leaseLeft is how long an operation is still its holder's. The holder's clock may
// be wrong: a lease that has not changed for as long as any may last is over, too.
func (e *Engine) leaseLeft(ref hypervisor.Ref, op *record.Operation, now time.Time) time.Duration {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if seen := &entry.foreign; seen.operation != op.ID || !seen.lease.Equal(op.Lease) {
		*seen = foreignLease{operation: op.ID, lease: op.Lease, since: now}
	}
	return min(op.Lease.Sub(now), entry.foreign.since.Add(verbTimeout+e.lease).Sub(now))
}

// take writes a step down and takes it.
func (e *Engine) take(ctx context.Context, m *hypervisor.Machine, op *record.Operation, step transition.Step) time.Duration {
	ref := m.Ref
	restored := hypervisor.RunStrategyRerunOnFailure
	err := e.updateOperation(ctx, ref, op, func(rec *record.Record, op *record.Operation) {
		now := time.Now().UTC()
		op.Step, op.StepTime = step, now
		// Nobody else is to act while the request may still be under way.
		op.Lease = now.Add(verbTimeout + e.lease)
		switch step {
		case transition.Start, transition.RestoreStrategy:
			op.StartSent = now
		case transition.StopAtOnce, transition.StopGently:
			if m.RunStrategy == hypervisor.RunStrategyAlways || m.RunStrategy == hypervisor.RunStrategyOnce {
				rec.Power.RunStrategy = m.RunStrategy
			}
		}
		switch s := rec.Power.RunStrategy; s {
		case hypervisor.RunStrategyAlways, hypervisor.RunStrategyOnce:
			restored = s
		}
	})
	if err != nil {
		return e.retry(ref, "write step", err)
	}
	if time.Until(op.Lease) < verbTimeout {
		return e.retry(ref, "write step", fmt.Errorf("%w: it took too long", hypervisor.ErrUnavailable))
	}
	// The id goes along to the hypervisor, for its logs.
	err = e.act(callctx.WithRequestID(ctx, op.Request), m, step, restored)
	if err != nil && !errors.Is(err, hypervisor.ErrUnseen) {
		e.metrics.stepFailed(step)
		switch {
		case errors.Is(err, hypervisor.ErrUnsupported), isInvalid(err) && step != transition.Reset:
			// That it does not run is what makes a reset invalid; it will show.
			return e.finish(ctx, ref, op, record.Failed, err.Error())
		case step == transition.Reboot && isConflict(err):
			return e.finish(ctx, ref, op, record.Failed, err.Error())
		}
		return e.retry(ref, string(step), err)
	}
	e.succeeded(ref)
	e.operationLogger(ref, op).Info("step taken", slog.String(logkey.Action, string(step)))
	if step.Completes() {
		return e.finish(ctx, ref, op, record.Succeeded, "")
	}
	// The step's effect may have come, and its notice gone, before this.
	e.queue.add(ref)
	return 0
}

// act sends a step's request.
func (e *Engine) act(ctx context.Context, m *hypervisor.Machine, step transition.Step, restored hypervisor.RunStrategy) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	h, ref := e.hypervisor, m.Ref
	switch step {
	case transition.Start:
		return h.Start(ctx, ref)
	case transition.RestoreStrategy:
		return h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyHalted, restored)
	case transition.StopAtOnce:
		return h.Stop(ctx, ref, new(time.Duration))
	case transition.StopGently:
		if m.Instance != nil && m.Instance.AgentConnected {
			return h.Stop(ctx, ref, nil)
		}
		grace := e.grace(m)
		return h.Stop(ctx, ref, &grace)
	case transition.DeleteInstance:
		if m.Instance == nil {
			return nil
		}
		return h.DeleteInstance(ctx, ref, m.Instance.UID)
	case transition.Reset:
		return h.Reset(ctx, ref)
	case transition.Reboot:
		return h.SoftReboot(ctx, ref)
	case transition.Pause:
		return h.Pause(ctx, ref)
	case transition.Unpause:
		return h.Unpause(ctx, ref)
	default:
		return fmt.Errorf("step %s does not act", step)
	}
}

// holds tells whether this process, since it runs, has the operation.
func (e *Engine) holds(ref hypervisor.Ref, op *record.Operation) bool {
	if op.Holder != e.holder {
		return false
	}
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	_, held := entry.held[op.ID]
	return held
}

// hold makes an operation this process's; not yet written while it may be that
// no reader sees it.
func (e *Engine) hold(ref hypervisor.Ref, id string, written bool) {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if entry.held == nil {
		entry.held = map[string]bool{}
	}
	entry.held[id] = written
}

// written are the operations of this process that readers have seen.
func (e *Engine) written(ref hypervisor.Ref) []string {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	var ids []string
	for id, written := range entry.held {
		if written {
			ids = append(ids, id)
		}
	}
	return ids
}

func (e *Engine) letGo(ref hypervisor.Ref, id string) {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	delete(entry.held, id)
	if len(entry.held) == 0 {
		entry.held = nil
	}
}

// takeOver makes an operation of a process that is gone this one's.
func (e *Engine) takeOver(ctx context.Context, ref hypervisor.Ref, op *record.Operation) time.Duration {
	e.hold(ref, op.ID, true)
	if op.Step.Completes() {
		return e.finish(ctx, ref, op, record.Failed, fmt.Sprintf("interrupted while the %s was being sent; it may have happened", op.Step))
	}
	// The lease too must be as it was read: else its holder lives.
	lease := op.Lease
	taken := false
	err := e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
		current := rec.Power.Operation
		taken = current.Active() && current.ID == op.ID && current.Lease.Equal(lease)
		if !taken {
			return errUnchanged
		}
		current.Holder = e.holder
		current.Lease = time.Now().UTC().Add(e.lease)
		return nil
	})
	if err != nil {
		return e.retry(ref, "take over", err)
	}
	if taken {
		e.metrics.takenOver()
		e.operationLogger(ref, op).Info("operation taken over", slog.String(logkey.Action, string(op.Action)))
	}
	e.queue.add(ref)
	return 0
}

// release lets another process take over at once what this one has under way.
func (e *Engine) release(ctx context.Context) {
	e.mu.Lock()
	held := map[hypervisor.Ref][]string{}
	for ref, entry := range e.entries {
		entry.mu.Lock()
		if len(entry.held) > 0 {
			held[ref] = slices.Collect(maps.Keys(entry.held))
		}
		entry.mu.Unlock()
	}
	e.mu.Unlock()
	for ref, ids := range held {
		err := e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
			op := rec.Power.Operation
			if !op.Active() || op.Holder != e.holder || !slices.Contains(ids, op.ID) {
				return errUnchanged
			}
			op.Lease = time.Now().UTC()
			return nil
		})
		if err != nil && !errors.Is(err, hypervisor.ErrNotFound) {
			e.logger(ref).Info("can't hand operation over", slog.String(logkey.Error, err.Error()))
		}
	}
}

// keepLease renews the lease while there is nothing else to do.
func (e *Engine) keepLease(ctx context.Context, ref hypervisor.Ref, op *record.Operation, o transition.Observed) time.Duration {
	again := e.lease / 2
	if left := time.Until(op.Lease); left > again {
		again = left - again
	} else if err := e.updateOperation(ctx, ref, op, func(_ *record.Record, op *record.Operation) {
		op.Lease = time.Now().UTC().Add(e.lease)
	}); err != nil {
		return e.retry(ref, "renew lease", err)
	}
	if o.StartSent {
		again = min(again, time.Until(op.StartSent.Add(startSettle))+time.Millisecond)
	}
	return max(min(again, time.Until(op.Deadline)), time.Millisecond)
}

// finish ends an operation that still has the holder and the lease that were
// read.
func (e *Engine) finish(ctx context.Context, ref hypervisor.Ref, op *record.Operation, phase record.Phase, message string) time.Duration {
	ended := *op
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		current := rec.Power.Operation
		if !current.Active() || current.ID != op.ID || current.Holder != op.Holder || !current.Lease.Equal(op.Lease) {
			return errUnchanged
		}
		now := time.Now().UTC()
		current.Phase = phase
		current.End = now
		current.Message = message
		current.Holder = ""
		current.Lease, current.Deadline = time.Time{}, time.Time{}
		if phase == record.Succeeded && current.Step.Completes() {
			rec.Power.Reset = now
		}
		rec.Seen = see(m, rec.Seen)
		if phase == record.Succeeded && m.RunStrategy != hypervisor.RunStrategyHalted {
			rec.Power.RunStrategy = ""
		}
		ended = *current
		return nil
	})
	if err != nil && !errors.Is(err, hypervisor.ErrUnseen) {
		return e.retry(ref, "end operation", err)
	}
	e.succeeded(ref)
	if ended.Phase != phase {
		// Somebody else has changed it: looked at again.
		return retryMin
	}
	e.ended(ref, &ended)
	return 0
}

// ended remembers and reports how an operation ended.
func (e *Engine) ended(ref hypervisor.Ref, op *record.Operation) {
	entry := e.entry(ref)
	entry.mu.Lock()
	entry.last = *op
	entry.mu.Unlock()
	e.letGo(ref, op.ID)
	e.metrics.ended(op)
	attrs := []any{
		slog.String(logkey.Action, string(op.Action)), slog.String(logkey.State, string(op.Phase)),
		slog.Duration(logkey.Duration, op.End.Sub(op.Start)),
	}
	if op.Phase == record.Failed {
		e.operationLogger(ref, op).Warn("operation failed", append(attrs, slog.String(logkey.Error, op.Message))...)
		e.trouble(ref, string(op.Action), op.Message)
	} else {
		e.operationLogger(ref, op).Info("operation ended", attrs...)
	}
	e.followers.Changed(ref)
	e.teller.soon(ref, 0)
}

// updateOperation changes an operation that still is under way and this
// process's; another one is left alone.
func (e *Engine) updateOperation(ctx context.Context, ref hypervisor.Ref, op *record.Operation, f func(*record.Record, *record.Operation)) error {
	replaced := false
	err := e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
		current := rec.Power.Operation
		replaced = !current.Active() || current.ID != op.ID || current.Holder != e.holder
		if replaced {
			return errUnchanged
		}
		f(rec, current)
		*op = *current
		return nil
	})
	if err == nil && replaced {
		return errReplaced
	}
	return err
}

// errReplaced ends work on an operation that is no longer this process's.
var errReplaced = errors.New("operation was replaced")

// retry says when to try again after a refusal.
func (e *Engine) retry(ref hypervisor.Ref, what string, err error) time.Duration {
	_, gone := e.hypervisor.Get(ref)
	if errors.Is(err, errReplaced) || errors.Is(gone, hypervisor.ErrNotFound) {
		e.queue.add(ref)
		return 0
	}
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	delay := min(retryMin<<min(entry.failures, 10), retryMax)
	entry.failures++
	entry.retryAt = time.Now().Add(delay)
	entry.trouble = what + ": " + err.Error()
	e.logger(ref).Info("will try again", slog.String(logkey.Action, what), slog.String(logkey.Error, err.Error()))
	return delay
}

func (e *Engine) succeeded(ref hypervisor.Ref) {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	entry.failures, entry.trouble = 0, ""
}

// waitsFor says what an operation waits for, for people.
func (e *Engine) waitsFor(m *hypervisor.Machine, rec *record.Record, op *record.Operation) string {
	entry := e.entry(m.Ref)
	entry.mu.Lock()
	trouble := entry.trouble
	entry.mu.Unlock()
	if trouble != "" {
		return trouble
	}
	switch o := e.observed(m, rec, op); o.State {
	case transition.Absent:
		return "waits for an instance"
	case transition.Starting:
		return "waits for the instance to start"
	case transition.Stopping:
		return "waits for the guest to stop"
	case transition.Succeeded, transition.Failed, transition.Leaving:
		return "waits for the old instance to go"
	case transition.Lost:
		return "waits for the node of the instance"
	default:
		return ""
	}
}

func (e *Engine) operationLogger(ref hypervisor.Ref, op *record.Operation) *slog.Logger {
	return e.logger(ref).With(slog.String(logkey.Operation, op.ID), slog.String(logkey.Request, op.Request))
}

func giveUpText(m *hypervisor.Machine) string {
	if m.Instance == nil {
		return "the machine is off"
	}
	return fmt.Sprintf("the instance is %s", m.Instance.Phase)
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*hypervisor.ConflictError](err)
	return ok
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*hypervisor.InvalidError](err)
	return ok
}
