// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"time"

	"kubevirtbmc.dev/pkg/logkey"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// Logins go into the event log, but not each of them: provisioners log in every
// few seconds, and nobody who fails may push out all else.
const (
	// loginAgain is when a user from an address that is known counts as new.
	loginAgain = 24 * time.Hour
	// failureAgain is the least time between two entries of logins that failed.
	failureAgain = time.Minute
	// maxKnown bounds the users and addresses that are known, for each BMC.
	maxKnown = 128
	// entryQueue bounds the entries that wait, over all BMCs.
	entryQueue   = 1024
	entryWorkers = 4
	entryTimeout = 10 * time.Second
)

// logins are those that an endpoint's event log has. The zero value is ready.
type logins struct {
	known   map[string]time.Time
	failure time.Time
}

// isNew tells whether a login is one for the log, and takes it as known.
func (l *logins) isNew(now time.Time, who string) bool {
	if at, ok := l.known[who]; ok && now.Sub(at) < loginAgain {
		return false
	}
	if l.known == nil || len(l.known) >= maxKnown {
		l.known = map[string]time.Time{}
	}
	l.known[who] = now
	return true
}

// isNewFailure tells the same of a login that failed.
func (l *logins) isNewFailure(now time.Time) bool {
	if !l.failure.IsZero() && now.Sub(l.failure) < failureAgain {
		return false
	}
	l.failure = now
	return true
}

// entry is one for a BMC's event log.
type entry struct {
	endpoint *endpoint
	event    *statev1.Event
}

// noteLogin has a login put into the event log. The endpoint is locked.
func (e *endpoint) noteLogin(now time.Time, s *session.Session, ok bool) {
	if e.server.cfg.Events == nil {
		return
	}
	who := s.Username + " from " + s.Source.Addr().Unmap().String() + " over " + protocolName
	if (ok && !e.logins.isNew(now, who)) || (!ok && !e.logins.isNewFailure(now)) {
		return
	}
	select {
	case e.server.entries <- entry{e, command.LoginEvent(now, who, ok)}:
	default: // The log of this process has it.
	}
}

// keepEntries puts entries into event logs.
func (s *Server) keepEntries() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case n := <-s.entries:
			ctx, cancel := context.WithTimeout(s.ctx, entryTimeout)
			if err := s.cfg.Events.Append(ctx, n.endpoint.reference, n.event); err != nil {
				n.endpoint.log(ctx, slog.LevelWarn, "login not put into the event log", slog.String(logkey.Error, err.Error()))
			}
			cancel()
		}
	}
}
