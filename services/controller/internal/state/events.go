// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/record"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// MaxSubscriptions is how many event subscriptions a BMC may have.
const MaxSubscriptions = 20

const (
	// writeInterval is the least time between two writes of a BMC's log: what
	// comes in between is written together.
	writeInterval = 500 * time.Millisecond
	// maxWaiting bounds the entries that wait to be written, for each BMC.
	maxWaiting = 4 * record.Capacity
)

// logs writes the event logs.
type logs struct {
	store   *Store
	mu      sync.Mutex
	writers map[registry.Ref]*writer
	group   sync.WaitGroup
}

// writer collects what is to be added to one BMC's log. It is there from the
// first entry until a while after the last write.
type writer struct {
	events  []*statev1.Event
	waiting []chan<- written
}

// written is what became of a batch.
type written struct {
	revision string
	err      error
}

// Events returns a BMC's event log from behind a sequence on, and its revision.
// Callers must not change the entries.
func (s *Store) Events(ctx context.Context, ref registry.Ref, after uint64) ([]*statev1.Event, string, error) {
	log, revision, err := s.log(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	first, _ := slices.BinarySearchFunc(log.Events, after+1, func(e *statev1.Event, sequence uint64) int {
		if e.GetSequence() < sequence {
			return -1
		}
		return 1
	})
	return log.Events[first:], revision, nil
}

// log reads a BMC's log.
func (s *Store) log(ctx context.Context, ref registry.Ref) (*record.EventLog, string, error) {
	uid, err := s.uid(ref)
	if err != nil {
		return nil, "", err
	}
	o, err := s.states.read(ctx, ref, uid)
	if err != nil {
		return nil, "", s.translate(ctx, ref, err)
	}
	if o == nil {
		o = &object{}
	}
	return record.ParseLog(o.data), record.RevisionOf(o.data), nil
}

// Append adds entries to a BMC's event log and returns when they are kept. The
// store gives them their sequences.
func (s *Store) Append(ctx context.Context, ref registry.Ref, events []*statev1.Event) (revision string, err error) {
	if _, err := s.uid(ref); err != nil {
		return "", err
	}
	own := make([]*statev1.Event, len(events))
	for i, event := range events {
		own[i] = proto.CloneOf(event)
	}
	done := make(chan written, 1)
	l := s.logs
	l.mu.Lock()
	w := l.writers[ref]
	if w != nil && len(w.events)+len(own) > maxWaiting {
		l.mu.Unlock()
		return "", grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "too many entries wait to be added to the log of %s", ref)
	}
	fresh := w == nil
	if fresh {
		w = &writer{}
		l.writers[ref] = w
	}
	w.events = append(w.events, own...)
	w.waiting = append(w.waiting, done)
	l.mu.Unlock()
	if fresh {
		l.group.Go(func() { l.write(context.WithoutCancel(ctx), ref, w) })
	}
	select {
	case result := <-done:
		return result.revision, result.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// write writes batches until none is left.
func (l *logs) write(ctx context.Context, ref registry.Ref, w *writer) {
	for {
		l.mu.Lock()
		events, waiting := w.events, w.waiting
		w.events, w.waiting = nil, nil
		if len(waiting) == 0 {
			delete(l.writers, ref)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		batch, cancel := context.WithTimeout(ctx, writeTime)
		revision, err := l.store.add(batch, ref, events)
		cancel()
		for _, done := range waiting {
			done <- written{revision, err}
		}
		time.Sleep(writeInterval)
	}
}

// wait waits until all that was accepted is written.
func (l *logs) wait() { l.group.Wait() }

// add writes one batch.
func (s *Store) add(ctx context.Context, ref registry.Ref, events []*statev1.Event) (string, error) {
	return s.changeLog(ctx, ref, func(log *record.EventLog, _ string) error {
		if !log.Add(events) && len(log.Unreadable) == 0 {
			return errUnchanged
		}
		return nil
	})
}

// Clear empties a BMC's event log. STALE_REVISION when it is not of the revision
// that the caller knows; empty: whichever it is of.
func (s *Store) Clear(ctx context.Context, ref registry.Ref, revision string) (string, error) {
	return s.changeLog(ctx, ref, func(log *record.EventLog, now string) error {
		if revision != "" && revision != now {
			return grpcstatus.New(errorsv1.Reason_REASON_STALE_REVISION, "the event log has changed since")
		}
		if len(log.Events) == 0 && len(log.Unreadable) == 0 {
			return errUnchanged
		}
		log.Events = nil
		return nil
	})
}

// changeLog changes a BMC's log and returns its revision.
func (s *Store) changeLog(ctx context.Context, ref registry.Ref, apply func(log *record.EventLog, revision string) error) (string, error) {
	o, err := s.states.change(ctx, ref, func(data map[string][]byte) error {
		log := record.ParseLog(data)
		if err := apply(log, record.RevisionOf(data)); err != nil {
			return err
		}
		if n := len(log.Unreadable); n > 0 {
			s.config.Log.LogAttrs(ctx, slog.LevelWarn, "lines of an event log can't be read; they are kept apart",
				slog.String(logkey.Namespace, ref.Namespace), slog.String(logkey.BMC, ref.Name), slog.Int("lines", n))
		}
		return log.Write(data)
	})
	if err != nil {
		return "", err
	}
	s.hub.publish(ref, o)
	return record.RevisionOf(o.data), nil
}

// Subscriptions returns a BMC's event subscriptions.
func (s *Store) Subscriptions(ctx context.Context, ref registry.Ref) ([]*statev1.Subscription, error) {
	uid, err := s.uid(ref)
	if err != nil {
		return nil, err
	}
	o, err := s.subscriptions.read(ctx, ref, uid)
	if err != nil || o == nil {
		return nil, s.translate(ctx, ref, err)
	}
	subscriptions, _ := record.ParseSubscriptions(o.data)
	return subscriptions, nil
}

// Subscribe adds an event subscription and gives it its id. LIMIT_REACHED when
// the BMC has MaxSubscriptions.
func (s *Store) Subscribe(ctx context.Context, ref registry.Ref, wanted *statev1.Subscription) (*statev1.Subscription, error) {
	added := proto.CloneOf(wanted)
	added.Id = record.NewID()
	err := s.changeSubscriptions(ctx, ref, func(list []*statev1.Subscription) ([]*statev1.Subscription, error) {
		if len(list) >= MaxSubscriptions {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the BMC has %d event subscriptions already", MaxSubscriptions)
		}
		return append(list, added), nil
	})
	return added, err
}

// UpdateSubscription changes an event subscription and returns it. ENTRY_NOT_FOUND
// when it is not there.
func (s *Store) UpdateSubscription(ctx context.Context, ref registry.Ref, id string, change func(*statev1.Subscription)) (*statev1.Subscription, error) {
	var changed *statev1.Subscription
	err := s.changeSubscriptions(ctx, ref, func(list []*statev1.Subscription) ([]*statev1.Subscription, error) {
		i := slices.IndexFunc(list, func(one *statev1.Subscription) bool { return one.GetId() == id })
		if i < 0 {
			return nil, errNoSubscription()
		}
		changed = list[i]
		change(changed)
		return list, nil
	})
	return changed, err
}

func errNoSubscription() error {
	return grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "the BMC has no such event subscription")
}

// Unsubscribe removes an event subscription. ENTRY_NOT_FOUND when it is not
// there.
func (s *Store) Unsubscribe(ctx context.Context, ref registry.Ref, id string) error {
	return s.changeSubscriptions(ctx, ref, func(list []*statev1.Subscription) ([]*statev1.Subscription, error) {
		i := slices.IndexFunc(list, func(one *statev1.Subscription) bool { return one.GetId() == id })
		if i < 0 {
			return nil, errNoSubscription()
		}
		return slices.Delete(list, i, i+1), nil
	})
}

func (s *Store) changeSubscriptions(ctx context.Context, ref registry.Ref, apply func([]*statev1.Subscription) ([]*statev1.Subscription, error)) error {
	_, err := s.subscriptions.change(ctx, ref, func(data map[string][]byte) error {
		list, unreadable := record.ParseSubscriptions(data)
		list, err := apply(list)
		if err != nil {
			return err
		}
		if err := record.WriteSubscriptions(data, list); err != nil {
			return err
		}
		record.KeepUnreadable(data, unreadable)
		return nil
	})
	return err
}
