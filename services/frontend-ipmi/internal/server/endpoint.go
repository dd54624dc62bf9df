// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

// refreshGUID is how old a machine's UUID may be when a session is opened.
const refreshGUID = 30 * time.Second

// endpoint is one BMC with its socket.
type endpoint struct {
	server    *Server
	socket    datagramConn
	reference *referencev1.BMCReference
	// parameters are those of SOL.
	parameters *sol.Parameters

	mu      sync.Mutex
	bmc     *bmc
	target  *command.Target // Replaced, never changed.
	table   session.Table
	backoff session.Backoff
	logins  logins
	queues  map[*session.Session]*queue // Of sessions with commands under way.
	// consoles have a lock of their own.
	consoles consoles
	timer    *time.Timer
	timerAt  time.Time // When timer fires; zero: it does not.
	closed   bool

	guidMu sync.Mutex
	guidAt time.Time // When the machine's UUID was last asked for.
}

func newEndpoint(s *Server, b *bmc, sock datagramConn) *endpoint {
	e := &endpoint{server: s, socket: sock, reference: b.reference, table: session.NewTable(s.cfg.Limits)}
	e.parameters = sol.NewParameters()
	e.setBMC(b, b.guid, &command.State{Background: func(f func(context.Context)) {
		s.readers.Go(func() { f(s.ctx) })
	}})
	return e
}

func (e *endpoint) setBMC(b *bmc, systemGUID ipmi.GUID, state *command.State) {
	e.bmc = b
	e.target = &command.Target{
		Reference: b.reference, DeviceGUID: b.guid, SystemGUID: systemGUID,
		Suites: b.suites, HasKg: b.kg != "", Users: b.users(), ClientAddress: b.clientAddress, State: state,
		ClientPort: b.clientPort, SOL: e.parameters,
	}
	if e.server.cfg.Console != nil {
		e.target.Console = payloads{e}
	}
}

// update serves the BMC as the registry says from now on.
func (e *endpoint) update(b *bmc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.bmc
	system := e.target.SystemGUID
	if system == before.guid {
		system = b.guid
	}
	e.setBMC(b, system, e.target.State)
	for s := range e.table.All() {
		if !b.keeps(s, before) {
			e.end(s, "credentials changed")
			continue
		}
		if s.Account != nil {
			s.Account = b.account(s.Username)
		}
	}
}

// serve reads datagrams until the socket is closed.
func (e *endpoint) serve() {
	b := make([]byte, maxDatagram)
	control := make([]byte, controlSize)
	for {
		n, from, err := e.socket.read(b, control)
		if err != nil {
			if isClosed(err) || e.isClosed() {
				return
			}
			// As an ICMP error of an earlier answer. Errors that stay must not
			// spin.
			time.Sleep(time.Millisecond)
			continue
		}
		if answer := e.handle(b[:n], from); answer != nil {
			e.send(answer, from)
		}
	}
}

func (e *endpoint) send(b []byte, to peer) {
	if err := e.socket.write(b, to); err != nil && !isClosed(err) {
		e.log(e.server.ctx, slog.LevelDebug, "answer not sent", slog.String(logkey.Source, to.address.String()), slog.String(logkey.Error, err.Error()))
	}
}

// handle acts on a datagram and returns the datagram to answer with, nil for
// none. It may change b.
func (e *endpoint) handle(b []byte, from peer) (answer []byte) {
	result := datagramPanic
	defer func() {
		if result == datagramPanic {
			// One BMC's defect must not end the others'.
			e.alarm("datagram handler failed",
				slog.String(logkey.Error, panicError(recover()).Error()), slog.String("stack", string(debug.Stack())))
			answer = nil
		}
		e.server.metrics.datagrams.WithLabelValues(result).Inc()
	}()
	answer, result = e.dispatch(b, from)
	return answer
}

func (e *endpoint) dispatch(b []byte, from peer) ([]byte, string) {
	header, err := rmcp.ParseHeader(b)
	if err != nil {
		return nil, datagramMalformed
	}
	if header.Acknowledge {
		return nil, datagramIgnored
	}
	now := time.Now()
	switch header.Class {
	case rmcp.ClassASF:
		ping, err := rmcp.ParsePing(b[rmcp.HeaderSize:])
		if err != nil {
			return nil, datagramIgnored
		}
		if !e.server.limiter.allow(now, from.address.Addr()) {
			return nil, datagramLimited
		}
		return rmcp.Pong(ping).AppendTo(nil), datagramServed
	case rmcp.ClassIPMI:
	default:
		return nil, datagramIgnored
	}
	packet, err := rmcpplus.ParsePacket(b[rmcp.HeaderSize:])
	if err != nil {
		return nil, datagramMalformed
	}
	if packet.SessionID != 0 {
		return e.inSession(now, packet, from)
	}
	if packet.Encrypted || packet.Authenticated {
		return nil, datagramMalformed
	}
	if !e.server.limiter.allow(now, from.address.Addr()) {
		return nil, datagramLimited
	}
	return e.outOfSession(now, packet, from)
}

// outOfSession answers a packet that belongs to no session yet.
func (e *endpoint) outOfSession(now time.Time, packet rmcpplus.Packet, from peer) ([]byte, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var answer []byte
	var answerType rmcpplus.PayloadType
	switch packet.Type {
	case rmcpplus.PayloadIPMI:
		answer, answerType = e.sessionless(packet.Payload), rmcpplus.PayloadIPMI
	case rmcpplus.PayloadOpenSessionRequest:
		answer, answerType = e.openSession(now, packet.Payload, from), rmcpplus.PayloadOpenSessionResponse
	case rmcpplus.PayloadRAKP1:
		answer, answerType = e.rakp1(now, packet.Payload, from), rmcpplus.PayloadRAKP2
	case rmcpplus.PayloadRAKP3:
		answer, answerType = e.rakp3(now, packet.Payload, from), rmcpplus.PayloadRAKP4
	default:
		return nil, datagramIgnored
	}
	if answer == nil {
		return nil, datagramMalformed
	}
	return rmcpplus.AppendPlain(rmcp.AppendHeader(nil, rmcp.ClassIPMI), packet.Format, answerType, answer), datagramServed
}

// sessionless answers a command outside of a session.
func (e *endpoint) sessionless(payload []byte) []byte {
	message, err := ipmi.ParseMessage(payload)
	if err != nil || !message.IsRequest() {
		return nil
	}
	request := &command.Request{Message: message, Target: e.target}
	found, code := e.server.cfg.Mux.Find(request)
	var data []byte
	if found != nil {
		code, data = found.Handle(e.server.ctx, request)
		e.count(found.Name, code)
	}
	return message.AppendResponse(nil, code, data)
}

// payloadHandler acts on the payload of an authentic packet of a session and
// returns the datagram to answer with. The endpoint is locked.
type payloadHandler func(e *endpoint, now time.Time, s *session.Session, payload []byte, from peer) []byte

// payloadHandlers are the payload types of sessions that are served.
var payloadHandlers = map[rmcpplus.PayloadType]payloadHandler{
	rmcpplus.PayloadIPMI: (*endpoint).message,
	rmcpplus.PayloadSOL:  (*endpoint).solPacket,
}

// inSession acts on a packet of a session. What is not authentic, comes again or
// is of no session is dropped without an answer.
func (e *endpoint) inSession(now time.Time, packet rmcpplus.Packet, from peer) ([]byte, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.table.Lookup(now, packet.SessionID)
	if s == nil || s.State != session.Active || packet.Format != rmcpplus.FormatRMCPPlus {
		return nil, datagramUnauthentic
	}
	payload, err := s.Keys.Open(packet)
	if err != nil {
		return nil, datagramUnauthentic
	}
	if !s.Inbound.Accept(packet.Sequence) {
		return nil, datagramReplayed
	}
	e.table.Touch(now, s)
	s.Source, s.Received = from.address, packet.Sequence
	e.heard(s, from)
	s.Proof, s.ProofAnswer = nil, nil
	handle := payloadHandlers[packet.Type]
	if handle == nil {
		return nil, datagramIgnored
	}
	return handle(e, now, s, payload, from), datagramServed
}

// seal makes a datagram of the session.
func seal(s *session.Session, t rmcpplus.PayloadType, payload []byte) []byte {
	return s.Keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), t, s.ConsoleID, s.NextSequence(), payload)
}

// end closes a session and says why.
func (e *endpoint) end(s *session.Session, why string) {
	e.farewell(e.consoles.of(s.ID))
	wasActive := s.State == session.Active
	e.table.Close(s)
	e.ended(s, wasActive, why)
}

func (e *endpoint) ended(s *session.Session, wasActive bool, why string) {
	if !wasActive {
		return
	}
	e.server.metrics.sessions.Dec()
	e.release(e.consoles.of(s.ID))
	e.target.Options.SessionEnded(s.ID)
	e.parameters.SessionEnded(s.ID)
	e.log(e.server.ctx, slog.LevelInfo, "IPMI session ended", append(sessionAttrs(s), slog.String(logkey.Reason, why))...)
}

// abandoned notes that a half-open session is gone whose console had its time.
func (e *endpoint) abandoned(now time.Time, s *session.Session, why string) {
	if !s.Unproven() || s.Login.Vouched {
		return
	}
	e.backoff.FellSilent(now, s.Began(), s.Source.Addr(), s.Username)
	e.reportFailure(s, why)
}

// loginFailed notes that a console tried a wrong password. One try is what it
// gets between two pauses: what it began beside this one ends as well.
func (e *endpoint) loginFailed(now time.Time, s *session.Session, why string) {
	if e.backoff.Failed(now, s.Source.Addr(), s.Username) {
		e.table.CloseSameLogin(s)
	}
	e.reportFailure(s, why)
}

func (e *endpoint) reportFailure(s *session.Session, why string) {
	e.server.metrics.logins.WithLabelValues(loginFailed).Inc()
	e.noteLogin(time.Now(), s, false)
	e.alarm("IPMI login failed", append(sessionAttrs(s), slog.String(logkey.Reason, why))...)
}

// expireBy makes expire run at a time or before.
func (e *endpoint) expireBy(at time.Time) {
	switch {
	case e.closed, !e.timerAt.IsZero() && !at.Before(e.timerAt):
		return
	case e.timer == nil:
		e.timer = time.AfterFunc(time.Until(at), e.expire)
	default:
		e.timer.Reset(time.Until(at))
	}
	e.timerAt = at
}

// expire ends the sessions whose time is over.
func (e *endpoint) expire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.timerAt = time.Time{}
	now := time.Now()
	for _, s := range e.table.Expire(now) {
		e.ended(s, s.Username != "" && !s.Unproven(), "idle")
		e.abandoned(now, s, "the console fell silent, as it does when it finds the password wrong")
	}
	if next, ok := e.table.NextExpiry(); ok {
		e.expireBy(next)
	}
}

// drain takes no further datagrams.
func (e *endpoint) drain() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.socket.stopReading() // isClosed then ends the loop.
}

// close ends all sessions and closes the socket.
func (e *endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	for s := range e.table.All() {
		e.end(s, "no longer served here")
	}
	e.target.Close()
	e.socket.close()
}

func (e *endpoint) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// wantGUID asks for the machine's UUID when that was not done lately.
func (e *endpoint) wantGUID(now time.Time) {
	e.guidMu.Lock()
	defer e.guidMu.Unlock()
	if e.server.cfg.Inventory == nil || (!e.guidAt.IsZero() && now.Sub(e.guidAt) < refreshGUID) {
		return
	}
	select {
	case e.server.lookups <- e:
		e.guidAt = now
	default: // The next session asks again.
	}
}

// lookUpGUID sets the system GUID to the machine's UUID. Where that is not known
// the last known one stays, at first the BMC's own.
func (e *endpoint) lookUpGUID(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mutateTimeout)
	defer cancel()
	uuid, err := e.server.cfg.Inventory.FirmwareUUID(ctx, e.reference)
	if err != nil || uuid == "" {
		return
	}
	guid, err := ipmi.ParseGUID(uuid)
	if err != nil {
		e.log(ctx, slog.LevelWarn, "machine has a UUID that is none", slog.String(logkey.Error, err.Error()))
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.target.SystemGUID != guid {
		e.setBMC(e.bmc, guid, e.target.State)
	}
}

// sessions are the active sessions, oldest first. The endpoint is locked.
func (e *endpoint) sessions() []command.SessionInfo {
	var active []*session.Session
	for s := range e.table.All() {
		if s.State == session.Active {
			active = append(active, s)
		}
	}
	slices.SortFunc(active, func(a, b *session.Session) int { return a.Began().Compare(b.Began()) })
	list := make([]command.SessionInfo, len(active))
	for i, s := range active {
		list[i] = command.SessionInfo{ID: s.ID, User: s.Username, Level: s.Level, Source: s.Source}
	}
	return list
}

// localOf is the address at which a datagram came.
func (e *endpoint) localOf(from peer) netip.Addr {
	if from.local.IsValid() {
		return from.local
	}
	return e.server.listen
}

func (e *endpoint) count(name string, code ipmi.CompletionCode) {
	e.server.metrics.commands.WithLabelValues(name, code.String()).Inc()
}

// log writes a line with the BMC's name.
func (e *endpoint) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	if !e.server.cfg.Log.Enabled(ctx, level) {
		return
	}
	r := e.reference
	e.server.cfg.Log.LogAttrs(ctx, level, message, append([]slog.Attr{
		slog.String(logkey.Namespace, r.GetNamespace()), slog.String(logkey.BMC, r.GetName()),
	}, attrs...)...)
}

// Lines that strangers can cause: as many a second, and at once.
const (
	alarmRate  = 10
	alarmBurst = 100
)

// alarm writes a warning of what somebody without a session did. A flood of them
// is cut; the metrics count on.
func (e *endpoint) alarm(message string, attrs ...slog.Attr) {
	if e.server.alarms.take(time.Now(), alarmRate, alarmBurst) {
		e.log(e.server.ctx, slog.LevelWarn, message, attrs...)
	}
}

func sessionAttrs(s *session.Session) []slog.Attr {
	return []slog.Attr{
		slog.String(logkey.User, s.Username), slog.String(logkey.Source, s.Source.String()),
		slog.String(logkey.Protocol, protocolName),
	}
}
