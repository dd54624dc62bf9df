// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// Limits of one BMC.
type Limits struct {
	// HalfOpen is how long a login may take.
	HalfOpen time.Duration
	// Idle is how long an active session may say nothing (IPMI v2.0 section
	// 6.12.15).
	Idle time.Duration
	// MaxHalfOpen bounds sessions that are not active yet, MaxHalfOpenPerSource
	// those from one address. Beyond them the oldest one goes.
	MaxHalfOpen          int
	MaxHalfOpenPerSource int
	// MaxActive bounds active sessions. Beyond it none is opened.
	MaxActive int
}

// DefaultLimits are generous against clients and bound what an attacker can make
// a BMC hold: about 100 KiB.
func DefaultLimits() Limits {
	return Limits{
		HalfOpen:             10 * time.Second,
		Idle:                 60 * time.Second,
		MaxHalfOpen:          128,
		MaxHalfOpenPerSource: 64,
		MaxActive:            64,
	}
}

// ErrFull says that there are as many active sessions as may be.
var ErrFull = errors.New("too many active sessions")

// Table of the sessions of one BMC. Use NewTable.
type Table struct {
	limits   Limits
	sessions map[uint32]*Session // nil while there are none: most BMCs are idle.
	active   int
}

// NewTable returns a table without sessions.
func NewTable(limits Limits) Table { return Table{limits: limits} }

// OpenRequest is what a console asks for.
type OpenRequest struct {
	Source    netip.AddrPort
	ConsoleID uint32
	Tag       byte
	Suite     *rmcpplus.Suite
	Requested ipmi.Privilege
}

// Open makes a half-open session. A request that comes again before the console
// named a user gets the session that the first one got. The second result is
// the session that had to go for this one, nil mostly.
func (t *Table) Open(now time.Time, r OpenRequest) (opened, evicted *Session, err error) {
	for _, s := range t.sessions {
		if s.State == Opened && s.Source == r.Source && s.ConsoleID == r.ConsoleID && s.Tag == r.Tag && s.Suite == r.Suite && s.Requested == r.Requested {
			return s, nil, nil
		}
	}
	if t.active >= t.limits.MaxActive {
		return nil, nil, ErrFull
	}
	evicted = t.makeRoom(r.Source.Addr())
	s := &Session{
		ID: t.newID(), ConsoleID: r.ConsoleID, Source: r.Source, Suite: r.Suite, Tag: r.Tag, Requested: r.Requested,
		began: now, expires: now.Add(t.limits.HalfOpen),
	}
	if t.sessions == nil {
		t.sessions = make(map[uint32]*Session)
	}
	t.sessions[s.ID] = s
	return s, evicted, nil
}

// makeRoom closes the oldest half-open session of a source that has too many,
// or of all when there are too many. Those whose console has not shown that it
// receives answers, by naming the id that it was given, go first: a flood of
// Open Session Requests with false addresses does not drive out real logins.
func (t *Table) makeRoom(source netip.Addr) *Session {
	if len(t.sessions)-t.active < t.limits.MaxHalfOpenPerSource {
		return nil
	}
	key := sourceKey(source)
	var fromSource int
	var oldest, oldestOfSource *Session
	for _, s := range t.sessions {
		if s.State == Active {
			continue
		}
		oldest = goesBefore(oldest, s)
		if sourceKey(s.Source.Addr()) == key {
			fromSource++
			oldestOfSource = goesBefore(oldestOfSource, s)
		}
	}
	switch {
	case fromSource >= t.limits.MaxHalfOpenPerSource:
		t.Close(oldestOfSource)
		return oldestOfSource
	case len(t.sessions)-t.active >= t.limits.MaxHalfOpen:
		t.Close(oldest)
		return oldest
	}
	return nil
}

func goesBefore(a, b *Session) *Session {
	if a == nil || b.State < a.State || (b.State == a.State && b.began.Before(a.began)) {
		return b
	}
	return a
}

func (t *Table) newID() uint32 {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // Never fails (crypto/rand).
		id := binary.LittleEndian.Uint32(b[:])
		if id != 0 && t.sessions[id] == nil {
			return id
		}
	}
}

// Lookup returns a session that has not expired, nil when there is none. Expired
// ones are left for Expire.
func (t *Table) Lookup(now time.Time, id uint32) *Session {
	s := t.sessions[id]
	if s == nil || !now.Before(s.expires) {
		return nil
	}
	return s
}

// Activate ends a session's handshake; ErrFull closes the session.
func (t *Table) Activate(now time.Time, s *Session) error {
	if t.active >= t.limits.MaxActive {
		t.Close(s)
		return ErrFull
	}
	s.State = Active
	s.Login = nil
	t.active++
	t.Touch(now, s)
	return nil
}

// Vouch marks the handshakes under way with the source and name of a session
// whose console proved the password.
func (t *Table) Vouch(s *Session) {
	for other := range t.sameLogin(s) {
		other.Login.Vouched = true
	}
}

// CloseSameLogin closes the handshakes under way with the source and name of a
// session.
func (t *Table) CloseSameLogin(s *Session) {
	for other := range t.sameLogin(s) {
		t.Close(other)
	}
}

func (t *Table) sameLogin(s *Session) iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		key := sourceKey(s.Source.Addr())
		for _, other := range t.sessions {
			if other.State == Challenged && other.Username == s.Username && sourceKey(other.Source.Addr()) == key && !yield(other) {
				return
			}
		}
	}
}

// Touch puts off an active session's time-out.
func (t *Table) Touch(now time.Time, s *Session) { s.expires = now.Add(t.limits.Idle) }

// Close ends a session; one that is closed already stays so.
func (t *Table) Close(s *Session) {
	if t.sessions[s.ID] != s {
		return
	}
	if s.State == Active {
		t.active--
	}
	delete(t.sessions, s.ID)
	if len(t.sessions) == 0 {
		t.sessions = nil
	}
	s.State = Closed
	s.Keys = rmcpplus.Keys{}
}

// Expire closes the sessions whose time is over and returns them.
func (t *Table) Expire(now time.Time) []*Session {
	var gone []*Session
	for _, s := range t.sessions {
		if !now.Before(s.expires) {
			gone = append(gone, s)
		}
	}
	for _, s := range gone {
		t.Close(s)
	}
	return gone
}

// NextExpiry returns when Expire has something to do; false: never.
func (t *Table) NextExpiry() (time.Time, bool) {
	var next time.Time
	for _, s := range t.sessions {
		if next.IsZero() || s.expires.Before(next) {
			next = s.expires
		}
	}
	return next, !next.IsZero()
}

// All returns the sessions in no order. They may be closed meanwhile.
func (t *Table) All() iter.Seq[*Session] { return maps.Values(maps.Clone(t.sessions)) }

// Len returns the number of half-open and of active sessions.
func (t *Table) Len() (halfOpen, active int) { return len(t.sessions) - t.active, t.active }

// sourceKey is what counts as one source: an IPv4 address or an IPv6 /64, which
// is what one host can take addresses from.
func sourceKey(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}
