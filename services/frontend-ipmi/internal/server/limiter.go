// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// limiter bounds the datagrams outside of sessions that are answered for each
// source, over all BMCs. It is what keeps the frontend from being a reflector
// worth having, and a single host from taking all of its time. Sources share a
// fixed number of buckets, so it does not grow.
type limiter struct {
	seed    maphash.Seed
	rate    float64
	burst   float64
	buckets [1024]bucket
}

type bucket struct {
	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newLimiter(perSecond int) *limiter {
	return &limiter{seed: maphash.MakeSeed(), rate: float64(perSecond), burst: float64(perSecond)}
}

// allow takes a token of the source's bucket.
func (l *limiter) allow(now time.Time, source netip.Addr) bool {
	key := source.As16()
	hash := maphash.Bytes(l.seed, key[:])
	b := &l.buckets[hash%uint64(len(l.buckets))]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.IsZero() {
		b.tokens = l.burst
	} else {
		b.tokens = min(l.burst, b.tokens+now.Sub(b.last).Seconds()*l.rate)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
