// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// Limits of the login back-off: the first FreeFailures cost nothing, then each
// doubles the pause from firstPause to MaxPause. A person who mistypes does not
// notice it; a program that guesses gets one try in MaxPause. While a pause
// lasts, a right password is refused like a wrong one, or a guesser would learn
// which it was; so MaxPause is also how long one bad try can keep the right
// password of somebody behind the same address out. The IPMI frontend has the
// same numbers.
//
// A login that succeeds brings the pause back to firstPause, and no more:
// whoever guesses beside a client that knows the password does not get the free
// failures again. What is left goes forgetAfter the last failure. Pauses follow
// failures alone, so a client with the right password and nobody beside it
// never waits.
const (
	FreeFailures = 5
	firstPause   = time.Second
	MaxPause     = 4 * time.Second
	forgetAfter  = 10 * time.Minute
	maxEntries   = 1 << 16
	userBuckets  = 1 << 8
)

// Backoff slows down failing logins, per BMC, source and user: somebody who
// guesses from one address locks out neither other users nor other addresses.
// Its zero value is not usable.
type Backoff struct {
	now  func() time.Time
	seed maphash.Seed

	mu      sync.Mutex
	entries map[attempt]*failures
}

// attempt is what failures are counted for. Users are counted in buckets, so
// that a source can't fill the table with names, and so that names which do not
// exist are treated as those which do.
type attempt struct {
	bmc    any
	source netip.Prefix
	user   uint16
}

type failures struct {
	count int
	last  time.Time
	until time.Time
}

// NewBackoff returns a back-off without any failures.
func NewBackoff() *Backoff {
	return &Backoff{now: time.Now, seed: maphash.MakeSeed(), entries: map[attempt]*failures{}}
}

// Wait returns how long the user's next login from the source has to wait; 0:
// it may go on.
func (b *Backoff) Wait(bmc any, source netip.Addr, user string) time.Duration {
	key := b.key(bmc, source, user)
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.entries[key]
	if !ok {
		return 0
	}
	return max(0, f.until.Sub(b.now()))
}

// Failed counts a failed login.
func (b *Backoff) Failed(bmc any, source netip.Addr, user string) {
	key := b.key(bmc, source, user)
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.entries[key]
	if !ok || now.Sub(f.last) > forgetAfter {
		b.makeRoom(now)
		f = &failures{}
		b.entries[key] = f
	}
	f.count++
	f.last = now
	if over := f.count - FreeFailures; over > 0 {
		f.until = now.Add(min(MaxPause, firstPause<<min(over-1, 10)))
	}
}

// Succeeded brings the pause of a user from a source back to the first one.
func (b *Backoff) Succeeded(bmc any, source netip.Addr, user string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.entries[b.key(bmc, source, user)]; ok {
		f.count = min(f.count, FreeFailures)
	}
}

// ForgetUser drops the failures of a BMC's user, from all sources.
func (b *Backoff) ForgetUser(bmc any, user string) {
	bucket := b.bucket(user)
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.entries {
		if key.bmc == bmc && key.user == bucket {
			delete(b.entries, key)
		}
	}
}

// Forget drops all failures of a BMC.
func (b *Backoff) Forget(bmc any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.entries {
		if key.bmc == bmc {
			delete(b.entries, key)
		}
	}
}

// makeRoom keeps the table bounded: it drops what is old, and where all is
// fresh, any entries. It makes room for many at a time, so that it seldom has to
// look at all of them.
func (b *Backoff) makeRoom(now time.Time) {
	if len(b.entries) < maxEntries {
		return
	}
	for key, f := range b.entries {
		if now.Sub(f.last) > forgetAfter {
			delete(b.entries, key)
		}
	}
	for key := range b.entries {
		if len(b.entries) <= maxEntries-maxEntries/8 {
			return
		}
		delete(b.entries, key)
	}
}

func (b *Backoff) key(bmc any, source netip.Addr, user string) attempt {
	source = source.Unmap()
	bits := source.BitLen()
	if source.Is6() {
		bits = 64 // What one subscriber usually has.
	}
	prefix, _ := source.WithZone("").Prefix(bits) // The zero prefix for the zero address.
	return attempt{bmc, prefix, b.bucket(user)}
}

func (b *Backoff) bucket(user string) uint16 {
	return uint16(maphash.String(b.seed, user) % userBuckets)
}
