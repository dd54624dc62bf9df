// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"time"

	"kubevirtbmc.dev/pkg/ipmiuser"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// openSession answers an Open Session Request (IPMI v2.0 section 13.17).
func (e *endpoint) openSession(now time.Time, payload []byte, from peer) []byte {
	request, err := rmcpplus.ParseOpenSessionRequest(payload)
	if errors.Is(err, rmcpplus.ErrShort) {
		return nil
	}
	response := rmcpplus.OpenSessionResponse{Tag: request.Tag, ConsoleID: request.ConsoleID}
	suite := request.Choose(e.bmc.suites)
	level := ipmi.Privilege(request.Privilege)
	if level == ipmi.PrivilegeNone {
		// The highest that there is. FreeIPMI wants to see a real level.
		level = ipmi.PrivilegeAdministrator
	}
	switch {
	case err != nil, request.ConsoleID == 0:
		response.Status = rmcpplus.StatusIllegalParameter
	case level > ipmi.PrivilegeOEM:
		response.Status = rmcpplus.StatusInvalidRole
	case level == ipmi.PrivilegeOEM:
		response.Status = rmcpplus.StatusUnauthorizedRole
	case suite == nil:
		response.Status = rmcpplus.StatusNoCipherSuiteMatch
	}
	if response.Status != rmcpplus.StatusOK {
		return response.AppendTo(nil)
	}
	opened, evicted, err := e.table.Open(now, session.OpenRequest{
		Source: from.address, ConsoleID: request.ConsoleID, Tag: request.Tag, Suite: suite, Requested: level,
	})
	if evicted != nil && evicted.Unproven() {
		// It says nothing about the password.
		e.server.metrics.logins.WithLabelValues(loginFull).Inc()
	}
	if err != nil {
		e.server.metrics.logins.WithLabelValues(loginFull).Inc()
		response.Status = rmcpplus.StatusInsufficientResources
		return response.AppendTo(nil)
	}
	e.expireBy(now.Add(e.server.cfg.Limits.HalfOpen))
	e.wantGUID(now)
	response.Privilege = byte(level)
	response.BMCID = opened.ID
	response.Algorithms = suite.Algorithms
	return response.AppendTo(nil)
}

// rakp1 answers RAKP message 1 (IPMI v2.0 section 13.20) with a challenge. A
// name that nobody has gets one as well, made in the same way with a key that
// nobody knows: neither the answer nor its time tells which names exist.
func (e *endpoint) rakp1(now time.Time, payload []byte, from peer) []byte {
	request, err := rmcpplus.ParseRAKP1(payload)
	if errors.Is(err, rmcpplus.ErrShort) {
		return nil
	}
	answer := rmcpplus.RAKP2{Tag: request.Tag}
	s := e.table.Lookup(now, request.BMCID)
	if s == nil || s.State == session.Active || s.Source.Addr() != from.address.Addr() {
		answer.Status = rmcpplus.StatusInvalidSessionID
		return answer.AppendTo(nil)
	}
	answer.ConsoleID = s.ConsoleID
	switch role := ipmi.Privilege(request.RequestedPrivilege()); {
	case err != nil:
		answer.Status = rmcpplus.StatusInvalidNameLength
	case role == ipmi.PrivilegeNone, role > ipmi.PrivilegeOEM:
		answer.Status = rmcpplus.StatusInvalidRole
	case role > s.Requested:
		answer.Status = rmcpplus.StatusUnauthorizedRole
	case s.State == session.Challenged && !sameLogin(s, request):
		answer.Status = rmcpplus.StatusInvalidSessionID
		e.abandoned(now, s, "the console started over within one login")
	case s.State == session.Opened && e.backoff.Wait(now, from.address.Addr(), request.Username):
		answer.Status = rmcpplus.StatusInsufficientResources
		e.server.metrics.logins.WithLabelValues(loginBackoff).Inc()
	}
	if answer.Status != rmcpplus.StatusOK {
		e.table.Close(s)
		return answer.AppendTo(nil)
	}
	if s.State == session.Opened {
		e.challenge(s, request)
	}
	answer.BMCRandom = s.Login.BMCRandom
	answer.GUID = s.Login.GUID
	answer.Code = s.Suite.RAKP2Code(s.Login.Key, &s.Login.Handshake)
	return answer.AppendTo(nil)
}

func sameLogin(s *session.Session, request rmcpplus.RAKP1) bool {
	return s.Username == request.Username && s.Login.Role == request.Role && s.Login.ConsoleRandom == request.ConsoleRandom
}

func (e *endpoint) challenge(s *session.Session, request rmcpplus.RAKP1) {
	login := &session.Login{Handshake: rmcpplus.Handshake{
		ConsoleID: s.ConsoleID, BMCID: s.ID, ConsoleRandom: request.ConsoleRandom,
		GUID: e.target.SystemGUID, Role: request.Role, Username: request.Username,
	}}
	_, _ = rand.Read(login.BMCRandom[:]) // Never fails (crypto/rand).
	// Computed for every name, so that names differ in nothing.
	login.Key = e.server.secretOf(request.Username)
	s.Account = e.bmc.account(request.Username)
	if s.Account != nil {
		login.Key = []byte(s.Account.Password)
	}
	s.Username, s.Login, s.State = request.Username, login, session.Challenged
}

// secretOf is a key for a name that nobody can compute.
func (s *Server) secretOf(username string) []byte {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte(username))
	return mac.Sum(nil)[:ipmiuser.MaxPassword]
}

// rakp3 answers RAKP message 3 (IPMI v2.0 section 13.22) and opens the session.
func (e *endpoint) rakp3(now time.Time, payload []byte, from peer) []byte {
	request, err := rmcpplus.ParseRAKP3(payload)
	if err != nil {
		return nil
	}
	answer := rmcpplus.RAKP4{Tag: request.Tag}
	s := e.table.Lookup(now, request.BMCID)
	switch {
	case s == nil, s.Source.Addr() != from.address.Addr(), s.State == session.Opened:
		answer.Status = rmcpplus.StatusInvalidSessionID
		return answer.AppendTo(nil)
	case s.State == session.Active:
		if len(s.Proof) > 0 && rmcpplus.Equal(s.Proof, payload) {
			return s.ProofAnswer // The first one was lost.
		}
		answer.Status = rmcpplus.StatusInvalidSessionID
		return answer.AppendTo(nil)
	}
	answer.ConsoleID = s.ConsoleID
	if request.Status != rmcpplus.StatusOK {
		e.table.Close(s)
		e.loginFailed(now, s, "the console found the password wrong")
		return nil
	}
	proven := rmcpplus.Equal(s.Suite.RAKP3Code(s.Login.Key, &s.Login.Handshake), request.Code)
	if !proven || s.Account == nil {
		e.table.Close(s)
		e.loginFailed(now, s, "wrong password or unknown user")
		answer.Status = rmcpplus.StatusInvalidCheckValue
		return answer.AppendTo(nil)
	}
	key := s.Login.Key
	if e.bmc.kg != "" {
		key = []byte(e.bmc.kg)
	}
	sessionKey := s.Suite.SessionKey(key, &s.Login.Handshake)
	answer.Check = s.Suite.RAKP4Check(sessionKey, &s.Login.Handshake)
	// A role above the user's limit is cut to it: Set Session Privilege Level
	// then refuses what is above, and until here nothing told who the user is.
	role := ipmi.Privilege(s.Login.Role & 0x0F)
	s.Max = min(s.Account.Privilege, role, s.Requested)
	s.Level = min(ipmi.PrivilegeUser, s.Max)
	s.Keys = s.Suite.Keys(sessionKey)
	if err := e.table.Activate(now, s); err != nil {
		e.server.metrics.logins.WithLabelValues(loginFull).Inc()
		answer.Status, answer.Check = rmcpplus.StatusInsufficientResources, nil
		return answer.AppendTo(nil)
	}
	e.backoff.Succeeded(s.Source.Addr(), s.Username)
	e.table.Vouch(s)
	e.server.metrics.sessions.Inc()
	e.server.metrics.logins.WithLabelValues(loginSucceeded).Inc()
	e.noteLogin(now, s, true)
	e.expireBy(now.Add(e.server.cfg.Limits.Idle))
	e.log(e.server.ctx, slog.LevelInfo, "IPMI session opened", append(sessionAttrs(s), slog.Int("cipher_suite", int(s.Suite.ID)))...)
	s.Proof, s.ProofAnswer = append([]byte(nil), payload...), answer.AppendTo(nil)
	return s.ProofAnswer
}
