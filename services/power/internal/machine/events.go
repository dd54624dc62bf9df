// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/power/internal/record"
)

const (
	tellers = 8
	// tellTimeout bounds what it takes to add entries to a log.
	tellTimeout = 10 * time.Second
	// turnSlots and turn spread the replicas: each has its turn to tell of a
	// machine's changes, and whoever comes later finds them told.
	turnSlots = 8
	turn      = 100 * time.Millisecond
	// Times after which a log that can't be written is tried again.
	tellRetryMin = time.Second
	tellRetryMax = time.Minute
)

// EventLog keeps the event logs of the machines' BMCs.
type EventLog interface {
	// Append adds entries to the logs of a machine's BMCs. Those whose id is
	// there already are left out.
	Append(ctx context.Context, machine hypervisor.Ref, events []*statev1.Event) error
}

// teller tells the event logs what becomes of machines. All replicas look at all
// machines; an event is told once all the same. Its id follows from what has
// happened, so that a log takes it from one of them alone, and what has been told
// is written down beside the machine when the log has it, so that nobody tells it
// later, when the log may have been emptied. What happens while no replica
// watches is told afterwards, as far as it shows.
type teller struct {
	engine *Engine
	log    EventLog
	queue  *queue

	mu      sync.Mutex
	timers  map[hypervisor.Ref]*time.Timer
	refused map[hypervisor.Ref]int // In a row.
}

// newTeller makes a teller; one without a log does nothing.
func newTeller(e *Engine, log EventLog) *teller {
	return &teller{
		engine: e, log: log, queue: newQueue(),
		timers: map[hypervisor.Ref]*time.Timer{}, refused: map[hypervisor.Ref]int{},
	}
}

// changed is told of a machine that may have changed.
func (t *teller) changed(ref hypervisor.Ref) {
	if t.log == nil {
		return
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(t.engine.holder + " " + ref.String())) // Never fails (hash.Hash).
	t.soon(ref, time.Duration(1+hash.Sum32()%turnSlots)*turn)
}

// soon has a machine looked at after a while, or when it is to be anyway.
func (t *teller) soon(ref hypervisor.Ref, after time.Duration) {
	if t.log == nil {
		return
	}
	if after == 0 {
		t.queue.add(ref)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timers[ref] != nil {
		return
	}
	t.timers[ref] = time.AfterFunc(after, func() {
		t.mu.Lock()
		delete(t.timers, ref)
		t.mu.Unlock()
		t.queue.add(ref)
	})
}

// run starts the workers, which end with the context.
func (t *teller) run(ctx context.Context, workers *sync.WaitGroup) {
	if t.log == nil {
		return
	}
	for range tellers {
		workers.Go(func() {
			for {
				ref, ok := t.queue.next(ctx)
				if !ok {
					return
				}
				t.look(ctx, ref)
				t.queue.done(ref)
			}
		})
	}
	workers.Go(func() {
		<-ctx.Done()
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, timer := range t.timers {
			timer.Stop()
		}
	})
}

// look tells of what is new about a machine.
func (t *teller) look(ctx context.Context, ref hypervisor.Ref) {
	err := t.tell(ctx, ref)
	t.mu.Lock()
	if err == nil {
		delete(t.refused, ref)
		t.mu.Unlock()
		return
	}
	refusals := t.refused[ref]
	t.refused[ref] = refusals + 1
	t.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelDebug
	if refusals == 0 {
		level = slog.LevelWarn
	}
	t.engine.logger(ref).Log(ctx, level, "event log not written", slog.String(logkey.Error, err.Error()))
	t.soon(ref, min(tellRetryMin<<min(refusals, 10), tellRetryMax))
}

func (t *teller) tell(ctx context.Context, ref hypervisor.Ref) error {
	m, rec, err := t.engine.read(ref)
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	events, now := news(m, rec, time.Now().UTC())
	if now == told(rec) {
		return nil
	}
	if len(events) > 0 {
		within, cancel := context.WithTimeout(ctx, tellTimeout)
		defer cancel()
		if err := t.log.Append(within, ref, events); err != nil {
			if errors.Is(err, hypervisor.ErrNoBMC) {
				return nil
			}
			return err
		}
	}
	before := told(rec)
	err = t.engine.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
		if told(rec) != before {
			return errUnchanged // By another replica.
		}
		rec.Told = &now
		return nil
	})
	if errors.Is(err, hypervisor.ErrUnseen) || errors.Is(err, hypervisor.ErrNotFound) {
		return nil
	}
	return err
}

func told(rec *record.Record) record.Told {
	if rec.Told == nil {
		return record.Told{}
	}
	return *rec.Told
}

// news returns what has happened to a machine since the event log was told last,
// in its order, and what the log has been told with that.
func news(m *hypervisor.Machine, rec *record.Record, now time.Time) ([]*statev1.Event, record.Told) {
	was, is := told(rec), told(rec)
	var events []*statev1.Event
	add := func(e *statev1.Event, at time.Time) {
		e.Time = timestamppb.New(at)
		events = append(events, e)
	}
	runs := m.Instance
	if runs != nil && (runs.Started.IsZero() || runs.Phase.Final()) {
		runs = nil
	}

	if was.InstanceUID != "" && (runs == nil || runs.UID != was.InstanceUID) {
		at := now
		if m.Instance != nil && m.Instance.UID != was.InstanceUID && m.Instance.Created.Before(at) {
			at = m.Instance.Created // It had ended by then.
		}
		add(endEvent(stopCause(was.InstanceUID, m.Instance, rec.Power.Operation), was.InstanceUID), at)
		is.InstanceUID, is.Node, is.Moves = "", "", 0
	}

	stands := standing(rec.Override)
	is.Override, is.OverrideID = describe(stands), ""
	if stands != nil {
		is.OverrideID = stands.ID
	}
	used := rec.Power.UsedOverride
	switch {
	case is.Override == was.Override:
	case is.Override != "":
		add(bootEvent("boot-set-"+is.OverrideID, "The boot override was set: "+is.Override+"."), now)
	case was.OverrideID != used:
		add(bootEvent("boot-clear-"+was.OverrideID, "The boot override was taken back."), now)
	}

	if runs != nil && runs.UID != is.InstanceUID {
		add(&statev1.Event{
			Id: "on-" + runs.UID, Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_POWER,
			Code: statev1.EventCode_EVENT_CODE_POWERED_ON, Message: "The machine was powered on.",
		}, runs.Started)
		is.InstanceUID, is.Node, is.Moves = runs.UID, runs.Node, 0
	}
	if used != was.UsedID {
		e := bootEvent("boot-used-"+used, "The machine was started with the one-time boot override.")
		e.Code = statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_USED
		add(e, now)
		is.UsedID = used
	}
	if runs != nil && runs.Node != is.Node {
		if is.Node != "" {
			is.Moves++
			add(&statev1.Event{
				Id: "moved-" + runs.UID + "-" + strconv.Itoa(is.Moves), Severity: statev1.EventSeverity_EVENT_SEVERITY_OK,
				Kind: statev1.EventKind_EVENT_KIND_MACHINE, Code: statev1.EventCode_EVENT_CODE_MOVED, Message: "Moved: the machine runs on another node of the cluster now.",
			}, now)
		}
		is.Node = runs.Node
	}
	if reset := rec.Power.Reset; reset.After(was.Reset) {
		add(&statev1.Event{
			Id: "reset-" + strconv.FormatInt(reset.UnixNano(), 36), Severity: statev1.EventSeverity_EVENT_SEVERITY_OK,
			Kind: statev1.EventKind_EVENT_KIND_POWER, Code: statev1.EventCode_EVENT_CODE_RESET, Message: "The running machine was reset.",
		}, reset)
		is.Reset = reset
	}
	return events, is
}

func endEvent(cause StopCause, uid string) *statev1.Event {
	e := &statev1.Event{
		Id: "off-" + uid, Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_POWER,
	}
	switch cause {
	case StopCauseAction:
		e.Code, e.Message = statev1.EventCode_EVENT_CODE_POWERED_OFF, "The machine was powered off."
	case StopCauseFailure:
		e.Kind, e.Severity = statev1.EventKind_EVENT_KIND_MACHINE, statev1.EventSeverity_EVENT_SEVERITY_CRITICAL
		e.Code, e.Message = statev1.EventCode_EVENT_CODE_FAILED, "The guest or its hypervisor process failed."
	case StopCauseExternal, StopCauseUnknown, StopCauseNone:
		e.Code, e.Message = statev1.EventCode_EVENT_CODE_STOPPED, "The guest switched itself off, or was stopped past the BMC."
	}
	return e
}

func bootEvent(id, message string) *statev1.Event {
	return &statev1.Event{
		Id: id, Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_BOOT,
		Code: statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_CHANGED, Message: message,
	}
}

// standing is the override that counts for the machine's next instance; nil when
// none does.
func standing(o *record.Override) *record.Override {
	if o != nil && o.Stage == record.Restoring {
		o = o.Next
	}
	if !o.Active() {
		return nil
	}
	return o
}

// describe is an override in words.
func describe(o *record.Override) string {
	if o == nil {
		return ""
	}
	text := string(o.Target)
	if o.Persistence == record.Once {
		text += ", once"
	} else {
		text += ", until it is taken back"
	}
	if o.Mode != "" {
		text += ", " + string(o.Mode)
	}
	return text
}
