// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"net/netip"
	"time"
)

// Back-off after failed logins: the first freeFailures cost nothing, then each
// doubles the pause from firstPause to maxPause. While a pause lasts, a right
// password is refused like a wrong one, or a guesser would learn from the answer
// which it was. So maxPause is how long one bad try can keep the right password
// of somebody behind the same address out: short enough for the next try of any
// client, and still so long that guessing over the network is slow. The Redfish
// frontend has the same numbers.
//
// A login that succeeds brings the pause back to firstPause, and no more:
// whoever guesses beside a client that knows the password does not get the free
// failures again. What is left goes forgetAfter the last failure. Pauses follow
// failures alone, so a client with the right password and nobody beside it
// never waits.
const (
	freeFailures = 5
	firstPause   = time.Second
	maxPause     = 4 * time.Second
	forgetAfter  = 10 * time.Minute
	maxTracked   = 256
)

// Backoff counts failed logins by source and user name, existing or not.
type Backoff struct {
	failures map[backoffKey]backoffEntry // nil while there are none.
}

type backoffKey struct {
	source netip.Addr
	user   string
}

type backoffEntry struct {
	count  int
	last   time.Time
	until  time.Time
	silent time.Time // When a silent console was last counted.
}

// Wait tells whether a login has to be refused for now.
func (b *Backoff) Wait(now time.Time, source netip.Addr, user string) bool {
	return now.Before(b.failures[backoffKey{sourceKey(source), user}].until)
}

// Failed counts a failed login. It tells whether a pause follows.
func (b *Backoff) Failed(now time.Time, source netip.Addr, user string) bool {
	key := backoffKey{sourceKey(source), user}
	return b.failed(now, key, b.failures[key])
}

// FellSilent counts a console that was challenged, in a handshake that began at
// some time, and never proved the password. Such handshakes last until they time
// out, and any number can be begun meanwhile: those that ran side by side count
// as one.
func (b *Backoff) FellSilent(now, began time.Time, source netip.Addr, user string) {
	key := backoffKey{sourceKey(source), user}
	e := b.failures[key]
	if began.Before(e.silent) {
		return
	}
	e.silent = now
	b.failed(now, key, e)
}

func (b *Backoff) failed(now time.Time, key backoffKey, e backoffEntry) bool {
	if now.Sub(e.last) > forgetAfter {
		e.count = 0
	}
	e.count++
	e.last = now
	over := e.count - freeFailures
	if over > 0 {
		e.until = now.Add(min(firstPause<<min(over-1, 10), maxPause))
	}
	if b.failures == nil {
		b.failures = make(map[backoffKey]backoffEntry)
	}
	b.failures[key] = e
	if len(b.failures) > maxTracked {
		b.forget(now)
	}
	return over > 0
}

// Succeeded brings the pause of a user from a source back to the first one.
func (b *Backoff) Succeeded(source netip.Addr, user string) {
	key := backoffKey{sourceKey(source), user}
	if e, ok := b.failures[key]; ok {
		e.count = min(e.count, freeFailures)
		b.failures[key] = e
	}
}

// forget drops what is old, and the oldest one in any case.
func (b *Backoff) forget(now time.Time) {
	var oldest backoffKey
	var at time.Time
	for key, e := range b.failures {
		if now.Sub(e.last) > forgetAfter {
			delete(b.failures, key)
			continue
		}
		if at.IsZero() || e.last.Before(at) {
			oldest, at = key, e.last
		}
	}
	if len(b.failures) > maxTracked {
		delete(b.failures, oldest)
	}
}
