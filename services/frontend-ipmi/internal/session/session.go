// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package session keeps the sessions of one BMC: half-open and active ones with
// their limits and time-outs, the window of sequence numbers, requests that may
// come again, and the back-off after failed logins. It knows no sockets and no
// clock: callers pass the time, and a lock of theirs guards each BMC's state.
package session

import (
	"net/netip"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// State of a session.
type State int

// A session is Opened by Open Session, Challenged once RAKP message 2 was sent,
// Active once the console proved the password, and Closed in the end.
const (
	Opened State = iota
	Challenged
	Active
	Closed
)

// Account that may log in.
type Account struct {
	Name      string
	Password  string
	Privilege ipmi.Privilege
}

// Session of one console.
type Session struct {
	// ID is what the console sends to the BMC, ConsoleID what the BMC sends to
	// the console. The console's may repeat, also in one BMC.
	ID        uint32
	ConsoleID uint32
	// Source is where the session was opened from and, once it is active, where
	// its latest authentic packet came from.
	Source netip.AddrPort
	State  State
	Suite  *rmcpplus.Suite
	// Tag and Requested are of the Open Session Request.
	Tag       byte
	Requested ipmi.Privilege
	// Login is set while Challenged.
	Login *Login
	// Username is the name that the console gave, set with Login.
	Username string
	// Account is who logs in; nil for a name that nobody has.
	Account *Account
	// Level is the present privilege level, Max the highest that it can get.
	Level ipmi.Privilege
	Max   ipmi.Privilege
	Keys  rmcpplus.Keys
	// Inbound are the sequence numbers that came, Received the latest to come,
	// which need not be the highest.
	Inbound  Window
	Received uint32
	// Requests are those that must not be acted on twice.
	Requests Requests
	// Proof and ProofAnswer are RAKP messages 3 and 4, kept until the console's
	// first packet shows that it got the answer.
	Proof       []byte
	ProofAnswer []byte

	outbound uint32
	began    time.Time
	expires  time.Time
}

// Login is the part of a session that ends with the handshake.
type Login struct {
	rmcpplus.Handshake
	// Key is the password, or for a name that nobody has bytes that nobody
	// knows.
	Key []byte
	// Vouched: since the handshake began, another one of the same source and
	// name proved the password. So silence does not mean a wrong one.
	Vouched bool
}

// Unproven tells, also of a closed session, that its console was challenged and
// never proved the password. A console that finds the challenge wrong falls
// silent, so that is what a wrong password mostly looks like.
func (s *Session) Unproven() bool { return s.Login != nil }

// Began returns when the handshake began.
func (s *Session) Began() time.Time { return s.began }

// NextSequence returns the sequence number of the next packet to the console:
// from 1, and never 0 (IPMI v2.0 section 6.12.9).
func (s *Session) NextSequence() uint32 {
	s.outbound++
	if s.outbound == 0 {
		s.outbound = 1
	}
	return s.outbound
}

// Window is the sliding window of the sequence numbers of authenticated packets
// (IPMI v2.0 section 6.12.13): a number is taken once, and when it is at most 15
// ahead of the highest that came or 16 behind it. A session begins as if 0 had
// come.
type Window struct {
	highest uint32
	seen    uint32 // Bit i: highest-i came.
}

const (
	windowAhead  = 15
	windowBehind = 16
)

// Accept takes a number that is new and within the window. Number 0 never is:
// it marks packets outside of a session.
func (w *Window) Accept(n uint32) bool {
	if n == 0 {
		return false
	}
	switch ahead := int32(n - w.highest); { // #nosec G115 -- wraps around as sequence numbers do.
	case ahead > windowAhead, ahead < -windowBehind:
		return false
	case ahead > 0:
		w.seen = w.seen<<uint32(ahead) | 1
		w.highest = n
		return true
	default:
		bit := uint32(1) << uint32(-ahead)
		if w.seen&bit != 0 {
			return false
		}
		w.seen |= bit
		return true
	}
}
