// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package follow lets many readers follow machines over one subscription.
package follow

import (
	"context"
	"sync"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Hub tells readers of the changes of the machine that each follows.
type Hub struct {
	mu      sync.Mutex
	readers map[hypervisor.Ref]map[chan struct{}]struct{}
}

// NewHub makes a hub. Changed makes it tell.
func NewHub() *Hub {
	return &Hub{readers: map[hypervisor.Ref]map[chan struct{}]struct{}{}}
}

// Changed tells those who follow a machine that it has changed. It does not
// block: a reader that has not seen an earlier change sees both at once.
func (h *Hub) Changed(ref hypervisor.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for reader := range h.readers[ref] {
		select {
		case reader <- struct{}{}:
		default:
		}
	}
}

// Follow returns a channel that has a value after each change of a machine.
func (h *Hub) Follow(ref hypervisor.Ref) (changes <-chan struct{}, cancel func()) {
	reader := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.readers[ref] == nil {
		h.readers[ref] = map[chan struct{}]struct{}{}
	}
	h.readers[ref][reader] = struct{}{}
	return reader, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.readers[ref], reader)
		if len(h.readers[ref]) == 0 {
			delete(h.readers, ref)
		}
	}
}

// Send sends what read returns, at once and again after each change, until the
// context ends or one of the functions fails. What equals the one before is left
// out; a receiver that is slow misses those in between, never the last one.
func Send[M any](ctx context.Context, changes <-chan struct{}, read func() (M, error), equal func(a, b M) bool, send func(M) error) error {
	var last M
	for first := true; ; first = false {
		now, err := read()
		if err != nil {
			return err
		}
		if first || !equal(now, last) {
			if err := send(now); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
