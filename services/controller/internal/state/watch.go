// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/record"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// maxBehind is how many entries a watcher may be behind.
const maxBehind = 2 * record.Capacity

// hub passes new entries on to watchers.
type hub struct {
	store *Store

	mu       sync.Mutex
	watchers map[registry.Ref]map[*Watcher]struct{}
	// changed are watched BMCs whose logs are to be read.
	changed map[registry.Ref]struct{}
	wake    chan struct{}
}

func newHub(s *Store) *hub {
	return &hub{
		store: s, watchers: map[registry.Ref]map[*Watcher]struct{}{},
		changed: map[registry.Ref]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// Watcher gets the new entries of one BMC's event log.
type Watcher struct {
	hub *hub
	ref registry.Ref
	// begun: last is known.
	begun bool
	// The object that was last looked at, and the last entry that was passed on.
	object  types.UID
	version string
	last    uint64
	events  chan *statev1.Event
	err     error
}

// Watch returns a watcher of the entries that are added from now on.
func (s *Store) Watch(ctx context.Context, ref registry.Ref) (*Watcher, error) {
	w := &Watcher{hub: s.hub, ref: ref, events: make(chan *statev1.Event, maxBehind)}
	s.hub.add(w)
	uid, err := s.uid(ref)
	if err != nil {
		w.Close()
		return nil, err
	}
	o, err := s.states.read(ctx, ref, uid)
	if err != nil {
		w.Close()
		return nil, s.translate(ctx, ref, err)
	}
	s.hub.begin(w, o)
	// What was added in between has not been passed on.
	s.hub.refresh(ref)
	return w, nil
}

// Events returns a channel of new entries. It is closed when the watch ends; Err
// says why.
func (w *Watcher) Events() <-chan *statev1.Event { return w.events }

// Err returns why the watch has ended; nil when it was closed.
func (w *Watcher) Err() error {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.err
}

// Close ends the watch.
func (w *Watcher) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.hub.drop(w, nil)
}

func (h *hub) add(w *Watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers[w.ref] == nil {
		h.watchers[w.ref] = map[*Watcher]struct{}{}
	}
	h.watchers[w.ref][w] = struct{}{}
}

// drop ends a watch. The hub is locked.
func (h *hub) drop(w *Watcher, err error) {
	if _, ok := h.watchers[w.ref][w]; !ok {
		return
	}
	w.err = err
	close(w.events)
	delete(h.watchers[w.ref], w)
	if len(h.watchers[w.ref]) == 0 {
		delete(h.watchers, w.ref)
	}
}

// begin tells a watcher what there is already.
func (h *hub) begin(w *Watcher, o *object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.begun = true
	if o != nil {
		w.object, w.version, w.last = o.UID, o.ResourceVersion, record.ParseLog(o.data).Next-1
	}
}

// end ends the watches of a BMC.
func (h *hub) end(ref registry.Ref, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers[ref] {
		h.drop(w, err)
	}
}

// refresh makes a BMC's log be read again, if somebody watches it.
func (h *hub) refresh(ref registry.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers[ref]) == 0 {
		return
	}
	h.changed[ref] = struct{}{}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run reads logs that have changed until the context ends.
func (h *hub) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		h.mu.Lock()
		changed := h.changed
		h.changed = map[registry.Ref]struct{}{}
		h.mu.Unlock()
		for ref := range changed {
			h.read(ctx, ref)
		}
	}
}

func (h *hub) read(ctx context.Context, ref registry.Ref) {
	s := h.store
	uid, err := s.uid(ref)
	if err != nil {
		return // It is gone, which ends the watches, or nothing is known yet.
	}
	o, err := s.states.read(ctx, ref, uid)
	if err != nil {
		// Whoever reads the log gets the error.
		s.config.Log.LogAttrs(ctx, slog.LevelWarn, "can't read an event log that is being watched",
			slog.String(logkey.Namespace, ref.Namespace), slog.String(logkey.BMC, ref.Name), slog.String(logkey.Error, err.Error()))
		h.end(ref, s.translate(ctx, ref, err))
		return
	}
	if o != nil {
		h.publish(ref, o)
	}
}

// publish passes on the entries of a log that watchers have not had. Logs may
// come in any order.
func (h *hub) publish(ref registry.Ref, o *object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers[ref]) == 0 {
		return
	}
	log := record.ParseLog(o.data)
	for w := range h.watchers[ref] {
		if !w.begun {
			continue
		}
		if w.object == o.UID && !newer(o.ResourceVersion, w.version) {
			continue
		}
		if w.object != o.UID || log.Next <= w.last {
			w.last = 0 // It begins anew.
		}
		w.object, w.version = o.UID, o.ResourceVersion
		for _, event := range log.Events {
			if event.GetSequence() <= w.last {
				continue
			}
			select {
			case w.events <- event:
				w.last = event.GetSequence()
				continue
			default:
			}
			h.drop(w, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the reader is more than %d entries behind", maxBehind))
			break
		}
	}
}
