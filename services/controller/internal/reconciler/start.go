// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// Times of a controller's start.
const (
	// DefaultOpenTime is how long it waits for one more of the BMCs that there are,
	// some of which may fail for long.
	DefaultOpenTime = 10 * time.Second
	// graceTime is how long it waits for the frontends' answers before it says
	// that they do not serve.
	graceTime = registry.DefaultSettleTime + 6*time.Second
)

// start is how far the controller is after it became the leader.
type start struct {
	ready chan struct{} // closed when the reconcilers may begin

	mu    sync.Mutex
	todo  map[registry.Ref]struct{} // BMCs that have not been looked at yet
	empty chan struct{}             // closed when there are none
	grace time.Time                 // until when frontends may not have answered
	// opened: the registry answers, or is about to.
	opened bool
}

func newStart() *start {
	return &start{ready: make(chan struct{}), empty: make(chan struct{})}
}

// begin lets the reconcilers begin with the BMCs that there are.
func (s *start) begin(refs []registry.Ref) {
	s.mu.Lock()
	s.todo = map[registry.Ref]struct{}{}
	for _, ref := range refs {
		s.todo[ref] = struct{}{}
	}
	if len(s.todo) == 0 {
		close(s.empty)
	}
	s.grace = time.Now().Add(graceTime)
	s.mu.Unlock()
	close(s.ready)
}

// wait waits for begin.
func (s *start) wait(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// done says that a BMC has been looked at.
func (s *start) done(ref registry.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.todo[ref]; ok {
		if delete(s.todo, ref); len(s.todo) == 0 {
			close(s.empty)
		}
	}
}

// pending tells whether a BMC has not been looked at yet.
func (s *start) pending(ref registry.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.todo[ref]
	return ok
}

// left are the BMCs that have not been looked at yet.
func (s *start) left() []registry.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.todo))
}

// all waits until all BMCs have been looked at, or none has for a while: however
// many there are and however slow the API server is, that takes longer only where
// something fails. It is false when the context ends before.
func (s *start) all(ctx context.Context, while time.Duration) bool {
	left := len(s.left())
	for {
		select {
		case <-s.empty:
			return true
		case <-ctx.Done():
			return false
		case <-time.After(while):
		}
		now := len(s.left())
		if now == left {
			return true
		}
		left = now
	}
}

// open says that the registry answers.
func (s *start) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
}

// opening tells whether the registry waits for BMCs to be looked at: what others do
// not wait for comes later.
func (s *start) opening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.opened
}

// settling tells whether frontends may not have answered yet.
func (s *start) settling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.grace)
}
