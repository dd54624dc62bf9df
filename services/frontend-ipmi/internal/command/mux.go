// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package command carries out IPMI commands: a Mux finds the command of a
// request by network function and number, checks session, privilege and length,
// and each file beside this one has the commands of one group.
package command

import (
	"context"
	"net/netip"
	"sync"
	"time"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/watchdog"
)

// Session is what a command sees and may change of the session that it came in.
type Session struct {
	ID     uint32
	Level  ipmi.Privilege
	Max    ipmi.Privilege
	Closed bool
}

// Target is the BMC that a command is for.
type Target struct {
	Reference  *referencev1.BMCReference
	DeviceGUID ipmi.GUID
	SystemGUID ipmi.GUID
	// Suites are the cipher suites that it offers, most wanted first.
	Suites []*rmcpplus.Suite
	// HasKg tells that a key-generating key is set.
	HasKg bool
	// ClientPort is the UDP port that clients use.
	ClientPort uint16
	// SOL are the SOL configuration parameters.
	SOL *sol.Parameters
	// Console has the SOL payload instances; nil: there is no ConsoleService.
	Console Console
	// Users are who may log in, in the registry's order; at most 62.
	Users []User
	// ClientAddress is the address that clients use; not valid: that at which
	// they reach the frontend.
	ClientAddress netip.Addr
	// State is what the frontend itself keeps of the BMC.
	*State
}

// State is what commands keep of a BMC, for as long as the frontend serves it.
type State struct {
	Options BootOptions
	// SDR is the reservation of the SDR repository.
	SDR Reservation
	// SEL is the reservation of the System Event Log.
	SEL Reservation
	// Background runs a function beside the commands, under a context that ends
	// with the server.
	Background func(func(context.Context))

	identifyMu     sync.Mutex
	identifyForced bool
	identifyUntil  time.Time

	dogMu     sync.Mutex
	dog       *watchdog.Timer
	dogClosed bool
	// barked is the operation that the watchdog timer has asked for last.
	barked string
}

// noteWatchdog remembers what the watchdog timer has asked for.
func (s *State) noteWatchdog(operation string) {
	s.dogMu.Lock()
	defer s.dogMu.Unlock()
	s.barked = operation
}

// byWatchdog tells whether the watchdog timer has asked for an operation.
func (s *State) byWatchdog(operation string) bool {
	s.dogMu.Lock()
	defer s.dogMu.Unlock()
	return operation != "" && s.barked == operation
}

// SessionInfo is what commands tell of an active session.
type SessionInfo struct {
	ID    uint32
	User  string
	Level ipmi.Privilege
	// Source is the console's address.
	Source netip.AddrPort
}

// Request is a command to carry out.
type Request struct {
	ipmi.Message
	Target *Target
	// Session is nil outside of a session.
	Session *Session
	// Local is the address at which the request came.
	Local netip.Addr
	// Sessions returns the active sessions, oldest first. Commands that call
	// other services must not call it. Nil: there are none.
	Sessions func() []SessionInfo
}

func (r *Request) sessions() []SessionInfo {
	if r.Sessions == nil {
		return nil
	}
	return r.Sessions()
}

// Handler carries out a command and returns its completion code and the data
// that follows it.
type Handler func(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte)

// Command is an entry of a Mux.
type Command struct {
	// Name is a short name for logs and metrics.
	Name   string
	Handle Handler
	// Privilege that a session needs.
	Privilege ipmi.Privilege
	// Sessionless commands may also come outside of a session.
	Sessionless bool
	// MinLength and MaxLength bound the request's data.
	MinLength, MaxLength int
	// Backend tells that Handle calls other services: it may block, gets a
	// context that ends, and must not touch Request.Session.
	Backend bool
	// Mutates tells that doing it twice is not the same as once.
	Mutates bool
	// LogData tells that the request's data may be logged: it has no secrets.
	LogData bool
}

// Mux finds commands.
type Mux struct {
	commands map[key]*Command
}

type key struct {
	netFn  ipmi.NetFn
	number byte
}

// NewMux returns a mux without commands.
func NewMux() *Mux { return &Mux{commands: map[key]*Command{}} }

// Handle adds a command. It panics when there is one already, or when strangers
// could have it call other services: those are defects.
func (m *Mux) Handle(netFn ipmi.NetFn, number byte, c Command) {
	k := key{netFn, number}
	if c.Sessionless && c.Backend {
		panic("command: " + c.Name + " needs a session to call other services")
	}
	if m.commands[k] != nil {
		panic("command: " + c.Name + " takes the place of " + m.commands[k].Name)
	}
	m.commands[k] = &c
}

// Find returns the command of a request when it may be carried out, else the
// completion code that refuses it.
func (m *Mux) Find(r *Request) (*Command, ipmi.CompletionCode) {
	if r.ToAddress != ipmi.AddressBMC {
		return nil, ipmi.DestinationNotThere
	}
	c := m.commands[key{r.NetFn, r.Command}]
	if r.Session == nil && (c == nil || !c.Sessionless) {
		if isV15Login(r) {
			return nil, ipmi.InvalidCommand
		}
		return nil, ipmi.InsufficientPrivilege
	}
	switch {
	case c == nil:
		return nil, ipmi.InvalidCommand
	case r.ToLUN != 0:
		return nil, ipmi.InvalidForLUN
	case r.Session != nil && r.Session.Level < c.Privilege:
		return nil, ipmi.InsufficientPrivilege
	case len(r.Data) < c.MinLength, len(r.Data) > c.MaxLength:
		return nil, ipmi.InvalidLength
	}
	return c, ipmi.OK
}

// isV15Login tells the commands by which an IPMI v1.5 session begins. They do
// not exist here, which is another answer than that they need a session.
func isV15Login(r *Request) bool {
	const getSessionChallenge, activateSession = 0x39, 0x3A
	return r.NetFn == ipmi.NetFnApp && (r.Command == getSessionChallenge || r.Command == activateSession)
}
