// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"net/netip"
	"time"
)

// Back-off after failed logins: the first freeFailures cost nothing, then each
// doubles the pause from firstPause to maxPause. The pause is short enough that
// one tenant behind an address that many share can't lock out the others for
// long, and long enough that guessing over the network is hopeless.
const (
	freeFailures = 5
	firstPause   = time.Second
	maxPause     = 30 * time.Second
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
	count int
	last  time.Time
	until time.Time
}

// Wait tells whether a login has to be refused for now.
func (b *Backoff) Wait(now time.Time, source netip.Addr, user string) bool {
	return now.Before(b.failures[backoffKey{sourceKey(source), user}].until)
}

// Failed counts a failed login.
func (b *Backoff) Failed(now time.Time, source netip.Addr, user string) {
	key := backoffKey{sourceKey(source), user}
	e := b.failures[key]
	if now.Sub(e.last) > forgetAfter {
		e.count = 0
	}
	e.count++
	e.last = now
	if over := e.count - freeFailures; over > 0 {
		e.until = now.Add(min(firstPause<<min(over-1, 10), maxPause))
	}
	if b.failures == nil {
		b.failures = make(map[backoffKey]backoffEntry)
	}
	b.failures[key] = e
	if len(b.failures) > maxTracked {
		b.forget(now)
	}
}

// Succeeded forgets the failures of a user from a source.
func (b *Backoff) Succeeded(source netip.Addr, user string) {
	delete(b.failures, backoffKey{sourceKey(source), user})
	if len(b.failures) == 0 {
		b.failures = nil
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
