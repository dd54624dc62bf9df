// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package session keeps the Redfish sessions of one BMC.
package session

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
)

const (
	// Timeout is after how much idle time a session ends.
	Timeout = 30 * time.Minute
	// Limit is how many sessions a BMC can have. A login beyond it ends the
	// session that was idle longest: clients that never log out would else lock
	// out everybody.
	Limit = 64
)

// Session is a client that is logged in.
type Session struct {
	// ID is the session's name in URIs; it can't be used to log in.
	ID string
	// Account is who logged in.
	Account account.Account
	// Source is the client's address.
	Source string
	// Created is when it logged in.
	Created time.Time

	token tokenDigest
	used  time.Time
}

type tokenDigest [sha256.Size]byte

// Table is the sessions of one BMC. Its zero value is an empty table; one that
// was never used holds no memory of its own.
type Table struct {
	mu       sync.Mutex
	sessions map[tokenDigest]*Session
}

// Create makes a session and returns it with its token.
func (t *Table) Create(who account.Account, source string) (Session, string) {
	now := time.Now()
	token := rand.Text() + rand.Text()
	s := &Session{
		ID: rand.Text()[:16], Account: who, Source: source, Created: now,
		token: sha256.Sum256([]byte(token)), used: now,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if len(t.sessions) >= Limit {
		t.dropOldest(who.Username)
	}
	if t.sessions == nil {
		t.sessions = map[tokenDigest]*Session{}
	}
	t.sessions[s.token] = s
	return *s, token
}

// Use returns the session of a token and counts as its use.
func (t *Table) Use(token string) (Session, bool) {
	key := tokenDigest(sha256.Sum256([]byte(token)))
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.sessions[key]
	if !ok {
		return Session{}, false
	}
	now := time.Now()
	if s.expired(now) {
		t.remove(s)
		return Session{}, false
	}
	s.used = now
	return *s, true
}

// Get returns a session by its id.
func (t *Table) Get(id string) (Session, bool) {
	for _, s := range t.List() {
		if s.ID == id {
			return s, true
		}
	}
	return Session{}, false
}

// List returns the sessions, oldest first.
func (t *Table) List() []Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	var list []Session
	for _, s := range t.sessions {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Session) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Delete ends a session; false when there is none of that id.
func (t *Table) Delete(id string) bool {
	return t.deleteWhere(func(s *Session) bool { return s.ID == id }) > 0
}

// Keep ends all sessions but those that the function wants, and returns how
// many ended.
func (t *Table) Keep(wanted func(Session) bool) int {
	return t.deleteWhere(func(s *Session) bool { return !wanted(*s) })
}

// Expire ends the sessions that were idle for too long and returns how many are
// left.
func (t *Table) Expire() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	return len(t.sessions)
}

func (t *Table) deleteWhere(unwanted func(*Session) bool) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := 0
	for _, s := range t.sessions {
		if unwanted(s) {
			t.remove(s)
			ended++
		}
	}
	return ended
}

func (t *Table) expire(now time.Time) {
	for _, s := range t.sessions {
		if s.expired(now) {
			t.remove(s)
		}
	}
}

// dropOldest ends the session that was idle longest, one of the user's if it
// has any.
func (t *Table) dropOldest(username string) {
	var oldest *Session
	for _, s := range t.sessions {
		if oldest == nil {
			oldest = s
			continue
		}
		own, oldestOwn := s.Account.Username == username, oldest.Account.Username == username
		if own == oldestOwn && s.used.Before(oldest.used) || own && !oldestOwn {
			oldest = s
		}
	}
	if oldest != nil {
		t.remove(oldest)
	}
}

func (t *Table) remove(s *Session) {
	delete(t.sessions, s.token)
	if len(t.sessions) == 0 {
		t.sessions = nil
	}
}

func (s *Session) expired(now time.Time) bool { return now.Sub(s.used) > Timeout }
