// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"sync"
	"time"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// Times of a controller's start.
const (
	// openTime is how long it waits for the BMCs that there are, one of which may
	// fail for long.
	openTime = 30 * time.Second
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

// left is how many BMCs have not been looked at yet.
func (s *start) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.todo)
}

// settling tells whether frontends may not have answered yet.
func (s *start) settling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.grace)
}
