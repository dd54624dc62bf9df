// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// queue hands machines to workers: each at most once at a time, and again when
// it was added in the meantime.
type queue struct {
	mu      sync.Mutex
	waiting []hypervisor.Ref
	dirty   map[hypervisor.Ref]bool
	busy    map[hypervisor.Ref]bool
	wake    chan struct{}
}

func newQueue() *queue {
	return &queue{
		dirty: map[hypervisor.Ref]bool{},
		busy:  map[hypervisor.Ref]bool{},
		wake:  make(chan struct{}, 1),
	}
}

// add asks for a machine to be looked at.
func (q *queue) add(ref hypervisor.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dirty[ref] {
		return
	}
	q.dirty[ref] = true
	if !q.busy[ref] {
		q.waiting = append(q.waiting, ref)
		q.signal()
	}
}

// next waits for a machine; not ok when the context has ended.
func (q *queue) next(ctx context.Context) (hypervisor.Ref, bool) {
	for {
		q.mu.Lock()
		if ctx.Err() == nil && len(q.waiting) > 0 {
			ref := q.waiting[0]
			q.waiting = q.waiting[1:]
			delete(q.dirty, ref)
			q.busy[ref] = true
			if len(q.waiting) > 0 {
				q.signal()
			}
			q.mu.Unlock()
			return ref, true
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return hypervisor.Ref{}, false
		}
	}
}

// done gives a machine back.
func (q *queue) done(ref hypervisor.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, ref)
	if q.dirty[ref] {
		q.waiting = append(q.waiting, ref)
		q.signal()
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
