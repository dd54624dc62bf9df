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

func newLimiter(perSecond int) *limiter {
	return &limiter{seed: maphash.MakeSeed(), rate: float64(perSecond), burst: float64(perSecond)}
}

// allow takes a token of the source's bucket.
func (l *limiter) allow(now time.Time, source netip.Addr) bool {
	key := source.As16()
	hash := maphash.Bytes(l.seed, key[:])
	return l.buckets[hash%uint64(len(l.buckets))].take(now, l.rate, l.burst)
}

// bucket is a token bucket: full at first.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	last   time.Time
}

// take takes a token, of those that come at a rate per second up to burst.
func (b *bucket) take(now time.Time, rate, burst float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+now.Sub(b.last).Seconds()*rate)
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
