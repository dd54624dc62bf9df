// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"sync"
	"time"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// moveTime is how long the status of a BMC that is Ready may wait for a hand-over
// to be done. It is less than clients may be without their BMC.
const moveTime = 3 * time.Second

// moves lets EndpointSlices, which clients wait for, come before what is said of
// them: the status of a BMC that is Ready is written when no EndpointSlice has to
// be any more and its new owner has answered, or after moveTime. So most BMCs stay
// Ready, with one write of their status and not three, while the API server writes
// EndpointSlices alone.
type moves struct {
	// again is told of the BMCs that waited.
	again *queue

	mu sync.Mutex
	// pending are the BMCs whose EndpointSlices have not been looked at since the
	// registry changed.
	pending map[registry.Ref]struct{}
	// held is since when BMCs wait.
	held map[registry.Ref]time.Time
}

func newMoves(again *queue) *moves {
	return &moves{again: again, pending: map[registry.Ref]struct{}{}, held: map[registry.Ref]time.Time{}}
}

// changed says that a BMC's EndpointSlices may have to change.
func (m *moves) changed(ref registry.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[ref] = struct{}{}
}

// routed says that a BMC's EndpointSlices are as they are to be.
func (m *moves) routed(ref registry.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.pending[ref]; !ok {
		return
	}
	if delete(m.pending, ref); len(m.pending) > 0 {
		return
	}
	for waiting := range m.held {
		m.again.add(waiting)
	}
}

// hold returns how long the status of a BMC that is Ready is to wait at most; 0: it
// is to be written. Unanswered tells whether its owner has not said yet that it
// serves.
func (m *moves) hold(ref registry.Ref, unanswered bool) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.held[ref]
	if !ok {
		since = time.Now()
	}
	left := moveTime - time.Since(since)
	if left <= 0 || !unanswered && len(m.pending) == 0 {
		delete(m.held, ref)
		return 0
	}
	m.held[ref] = since
	return left
}

// forget drops what is known of a BMC's waiting.
func (m *moves) forget(ref registry.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, ref)
}
