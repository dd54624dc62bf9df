// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/hex"
	"log/slog"
	"time"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// How long other services may take. Reads come from a cache: what takes longer
// than a client's first time-out is broken. A change that is slow is not: the
// client's second try finds it under way, and its answer is right in the end.
const (
	readTimeout   = 900 * time.Millisecond
	mutateTimeout = 3 * time.Second
)

const protocolName = "ipmi"

// job is a command that waits for other services, or for the one before it.
type job struct {
	command *command.Command
	request command.Request
	pending *session.Request
	from    peer
}

// queue has the jobs of a session that are not begun. The goroutine that works
// on it runs as long as it exists.
type queue struct {
	jobs []job
}

// message acts on an IPMI message of a session.
func (e *endpoint) message(now time.Time, s *session.Session, payload []byte, from peer) []byte {
	message, err := ipmi.ParseMessage(payload)
	if err != nil || !message.IsRequest() {
		return nil
	}
	view := command.Session{ID: s.ID, Level: s.Level, Max: s.Max}
	request := command.Request{Message: message, Target: e.target, Session: &view, Local: e.localOf(from), Sessions: e.sessions}
	found, code := e.server.cfg.Mux.Find(&request)
	switch {
	case found == nil:
		return e.answer(s, message, code, nil)
	case found.Backend:
		return e.enqueue(now, s, found, request, payload, from)
	}
	code, data := found.Handle(e.server.ctx, &request)
	e.count(found.Name, code)
	s.Level = view.Level
	answer := e.answer(s, message, code, data)
	if view.Closed {
		e.release(e.consoles.of(s.ID)) // It needs no farewell.
		e.end(s, "closed by the console")
	}
	return answer
}

func (e *endpoint) answer(s *session.Session, message ipmi.Message, code ipmi.CompletionCode, data []byte) []byte {
	return seal(s, rmcpplus.PayloadIPMI, message.AppendResponse(nil, code, data))
}

// enqueue has a command carried out that needs other services. A request that
// came before is answered as before or, while it is under way, once that is
// done.
func (e *endpoint) enqueue(now time.Time, s *session.Session, found *command.Command, request command.Request, payload []byte, from peer) []byte {
	if e.closed { // Shutdown waits for the workers that there are, and no more.
		return nil
	}
	pending, verdict := s.Requests.Begin(now, payload, found.Mutates)
	switch {
	case verdict == session.Underway:
		return nil
	case verdict == session.Answered:
		code, data := pending.Answer()
		return e.answer(s, request.Message, code, data)
	case pending == nil:
		e.count(found.Name, ipmi.NodeBusy)
		return e.answer(s, request.Message, ipmi.NodeBusy, nil)
	}
	request.Data = append([]byte(nil), request.Data...) // The datagram's buffer is read into again.
	j := job{command: found, request: request, pending: pending, from: from}
	if q := e.queues[s]; q != nil {
		q.jobs = append(q.jobs, j) // At most as many as s.Requests remembers.
		return nil
	}
	select {
	case e.server.slots <- struct{}{}:
	default:
		s.Requests.Forget(pending)
		e.count(found.Name, ipmi.NodeBusy)
		return e.answer(s, request.Message, ipmi.NodeBusy, nil)
	}
	if e.queues == nil {
		e.queues = map[*session.Session]*queue{}
	}
	e.queues[s] = &queue{jobs: []job{j}}
	e.server.workers.Go(func() {
		defer func() { <-e.server.slots }()
		e.work(s)
	})
	return nil
}

// work carries out a session's commands until there are none left.
func (e *endpoint) work(s *session.Session) {
	for {
		e.mu.Lock()
		q := e.queues[s]
		if len(q.jobs) == 0 {
			delete(e.queues, s)
			if len(e.queues) == 0 {
				e.queues = nil
			}
			e.mu.Unlock()
			return
		}
		j := q.jobs[0]
		q.jobs = q.jobs[1:]
		e.mu.Unlock()

		code, data := e.call(s.Username, j)

		e.mu.Lock()
		s.Requests.Done(time.Now(), j.pending, code, data)
		var answer []byte
		if s.State == session.Active { // It may have ended meanwhile.
			answer = e.answer(s, j.request.Message, code, data)
		}
		e.mu.Unlock()
		if answer != nil {
			e.send(answer, j.from)
			e.mu.Lock()
			e.run(s, j.from)
			e.mu.Unlock()
		}
	}
}

// call carries out one command under a request id of its own, which goes to the
// backend and into the log.
func (e *endpoint) call(user string, j job) (code ipmi.CompletionCode, data []byte) {
	timeout, level := readTimeout, slog.LevelDebug
	if j.command.Mutates {
		timeout, level = mutateTimeout, slog.LevelInfo
	}
	ctx, cancel := context.WithTimeout(e.server.ctx, timeout)
	defer cancel()
	id := callctx.NewRequestID()
	ctx = callctx.WithRequestID(ctx, id)
	ctx = callctx.WithCaller(ctx, callctx.Caller{User: user, Address: j.from.address.String(), Protocol: protocolName})
	start := time.Now()
	defer func() {
		if v := recover(); v != nil {
			e.log(ctx, slog.LevelError, "IPMI command failed", slog.String(logkey.Request, id), slog.String(logkey.Error, panicError(v).Error()))
			code, data = ipmi.Unspecified, nil
		}
		took := time.Since(start)
		e.count(j.command.Name, code)
		e.server.metrics.duration.WithLabelValues(j.command.Name).Observe(took.Seconds())
		if code != ipmi.OK && level < slog.LevelInfo {
			level = slog.LevelInfo
		}
		attrs := []slog.Attr{
			slog.String(logkey.Request, id), slog.String(logkey.User, user),
			slog.String(logkey.Source, j.from.address.String()), slog.String(logkey.Protocol, protocolName),
			slog.String(logkey.Action, j.command.Name), slog.String(logkey.Code, code.String()), slog.Duration(logkey.Duration, took),
		}
		if j.command.LogData {
			attrs = append(attrs, slog.String("data", hex.EncodeToString(j.request.Data)))
		}
		e.log(ctx, level, "IPMI command", attrs...)
	}()
	return j.command.Handle(ctx, &j.request)
}
