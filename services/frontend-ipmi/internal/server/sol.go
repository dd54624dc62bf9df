// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

const (
	// connectTimeout leaves Activate Payload time to be answered within a second.
	connectTimeout = 900 * time.Millisecond
	// A console whose stream has ended is opened again after reopenMin, later up
	// to reopenMax. A stream that lasted reopenMax begins anew with reopenMin.
	reopenMin = 100 * time.Millisecond
	reopenMax = 5 * time.Second
	// breakTimeout is how long a refusal of a break is waited for.
	breakTimeout = time.Second
)

// consoles are the SOL payload instances of a BMC. An endpoint that is locked
// may lock them, not the other way round.
type consoles struct {
	mu    sync.Mutex
	slots [command.SOLInstances]*solInstance
}

// solInstance is an active SOL payload instance: a session's link to the guest's
// serial port. All but what does not change is guarded by the endpoint's lock.
type solInstance struct {
	number int
	owner  uint32          // Id of the session.
	ctx    context.Context // Ends with the instance; carries who opened it.
	cancel context.CancelFunc
	typed  chan struct{} // Has a value when there is input for the guest.

	session *session.Session
	link    *sol.Link
	stream  backend.ConsoleStream // nil while there is none.
	peer    peer                  // Where the session's latest packet came from.
	running bool                  // The activation was answered.
	timer   *time.Timer
}

// reserve takes an instance for a session. A session has one at most: its SOL
// packets don't say which they are for.
func (c *consoles) reserve(taken *solInstance) ipmi.CompletionCode {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[taken.number-1] != nil {
		return ipmi.PayloadActiveElsewhere
	}
	for _, other := range c.slots {
		if other != nil && other.owner == taken.owner {
			return ipmi.PayloadLimitReached
		}
	}
	c.slots[taken.number-1] = taken
	return ipmi.OK
}

// of returns the instance of a session; nil: it has none.
func (c *consoles) of(session uint32) *solInstance {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.slots {
		if k != nil && k.owner == session {
			return k
		}
	}
	return nil
}

func (c *consoles) at(instance int) *solInstance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[instance-1]
}

// remove frees an instance; false: it is free already.
func (c *consoles) remove(k *solInstance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[k.number-1] != k {
		return false
	}
	c.slots[k.number-1] = nil
	return true
}

// payloads implements command.Console for an endpoint.
type payloads struct{ *endpoint }

// Owner implements command.Console.
func (p payloads) Owner(instance int) uint32 {
	if k := p.consoles.at(instance); k != nil {
		return k.owner
	}
	return 0
}

// Activate implements command.Console.
func (p payloads) Activate(ctx context.Context, id uint32, instance int) ipmi.CompletionCode {
	k := &solInstance{number: instance, owner: id, typed: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if code := p.consoles.reserve(k); code != ipmi.OK {
		k.cancel()
		return code
	}
	stream, err := p.open(ctx, k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.release(k)
		return activationCode(err)
	}
	s := p.table.Lookup(time.Now(), id)
	if s == nil || s.State != session.Active || k.ctx.Err() != nil || p.closed {
		p.release(k)
		return ipmi.NotInPresentState // Nobody waits for it: the session has ended.
	}
	k.session, k.stream = s, stream
	k.link = sol.NewLink(time.Now(), p.target.SOL.Timing(), instance > 1)
	k.link.SetAvailable(stream.Connected())
	p.server.metrics.consoles.Inc()
	p.log(ctx, slog.LevelInfo, "SOL activated", append(sessionAttrs(s), slog.Int("instance", instance))...)
	p.server.readers.Go(func() { p.follow(k, stream) })
	p.server.readers.Go(func() { p.typeAt(k) }) //nolint:contextcheck // It has the instance's.
	return ipmi.OK
}

// open connects to the guest's console, which then lasts as long as the
// instance.
func (e *endpoint) open(ctx context.Context, k *solInstance) (backend.ConsoleStream, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	streamCtx, end := context.WithCancel(k.ctx)
	stop := context.AfterFunc(ctx, end)
	stream, err := e.server.cfg.Console.Connect(streamCtx, e.reference, k.number > 1) //nolint:contextcheck // It outlives the call.
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, errors.Join(err, ctx.Err())
	}
	context.AfterFunc(k.ctx, end) //nolint:contextcheck // It outlives the call.
	return stream, nil
}

func activationCode(err error) ipmi.CompletionCode {
	switch grpcstatus.ReasonOf(err) {
	case errorsv1.Reason_REASON_NO_CONSOLE:
		return ipmi.PayloadDisabled
	case errorsv1.Reason_REASON_LIMIT_REACHED:
		return ipmi.PayloadLimitReached
	}
	return backend.CompletionCode(err)
}

// Deactivate implements command.Console.
func (p payloads) Deactivate(ctx context.Context, id uint32, instance int) ipmi.CompletionCode {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.consoles.at(instance)
	if k == nil || k.session == nil {
		return ipmi.PayloadAlreadyDeactivated
	}
	if k.owner != id {
		p.farewell(k)
	}
	p.release(k)
	p.log(ctx, slog.LevelInfo, "SOL deactivated", append(sessionAttrs(k.session), slog.Int("instance", instance))...)
	return ipmi.OK
}

// farewell tells a console that it is ended by somebody else.
func (e *endpoint) farewell(k *solInstance) {
	if k != nil && k.running {
		e.send(seal(k.session, rmcpplus.PayloadSOL, k.link.Farewell()), k.peer)
	}
}

// release ends an instance.
func (e *endpoint) release(k *solInstance) {
	if k == nil || !e.consoles.remove(k) {
		return
	}
	k.cancel()
	k.running = false
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.session != nil {
		e.server.metrics.consoles.Dec()
	}
}

// run lets an instance that a session activated send, as of now: it was told so.
func (e *endpoint) run(s *session.Session, from peer) {
	k := e.consoles.of(s.ID)
	if k == nil || k.session == nil || k.running {
		return
	}
	k.running, k.peer = true, from
	e.pump(k)
}

// heard notes where a session's console is.
func (e *endpoint) heard(s *session.Session, from peer) {
	if k := e.consoles.of(s.ID); k != nil {
		k.peer = from
	}
}

// solPacket acts on a SOL packet of a session. One of a session without instance
// is dropped: ipmitool would take any answer for an acknowledgement, and go on
// as if somebody read what is typed.
func (e *endpoint) solPacket(now time.Time, s *session.Session, payload []byte, _ peer) []byte {
	k := e.consoles.of(s.ID)
	if k == nil || !k.running {
		return nil
	}
	packet, err := sol.ParsePacket(payload)
	if err != nil {
		return nil
	}
	k.link.Receive(now, s.Received, packet)
	if k.link.HasInput() {
		k.wake()
	}
	var answer []byte
	if b := k.link.Next(now); b != nil {
		answer = seal(s, rmcpplus.PayloadSOL, b)
	}
	e.wakeAt(k)
	return answer
}

// pump sends what is due, and has itself called when the next is. The endpoint
// stays locked meanwhile, so that nothing is sent after the answer to a
// deactivation.
func (e *endpoint) pump(k *solInstance) {
	if !k.running {
		return
	}
	for {
		b := k.link.Next(time.Now())
		if b == nil {
			break
		}
		e.send(seal(k.session, rmcpplus.PayloadSOL, b), k.peer)
	}
	e.wakeAt(k)
}

func (e *endpoint) wakeAt(k *solInstance) {
	at, ok := k.link.Wake()
	switch {
	case !ok:
	case k.timer == nil:
		k.timer = time.AfterFunc(time.Until(at), func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.pump(k)
		})
	default:
		k.timer.Reset(time.Until(at))
	}
}

func (k *solInstance) wake() {
	select {
	case k.typed <- struct{}{}:
	default:
	}
}

// follow passes on what the guest says until the instance ends. A stream that
// ends, as when a replica of the service does, is opened again; the session
// does not notice.
func (e *endpoint) follow(k *solInstance, stream backend.ConsoleStream) {
	wait := reopenMin
	for {
		began := time.Now()
		err := e.receive(k, stream)
		if k.ctx.Err() != nil {
			return
		}
		e.mu.Lock()
		k.stream = nil
		k.link.SetAvailable(false)
		e.pump(k)
		e.mu.Unlock()
		if time.Since(began) > reopenMax {
			wait = reopenMin
		}
		for stream = nil; stream == nil; wait = min(2*wait, reopenMax) {
			e.log(k.ctx, slog.LevelInfo, "console lost, to be opened again", slog.Duration(logkey.Duration, wait), slog.String(logkey.Error, err.Error()))
			select {
			case <-k.ctx.Done():
				return
			case <-time.After(wait):
			}
			stream, err = e.open(k.ctx, k)
		}
		e.mu.Lock()
		k.stream = stream
		k.link.SetAvailable(stream.Connected())
		e.pump(k)
		e.mu.Unlock()
	}
}

func (e *endpoint) receive(k *solInstance, stream backend.ConsoleStream) error {
	for {
		event, err := stream.Receive()
		if err != nil {
			return err
		}
		e.mu.Lock()
		if len(event.Output) > 0 {
			k.link.Output(time.Now(), event.Output)
		} else {
			k.link.SetAvailable(event.Connected)
		}
		e.pump(k)
		e.mu.Unlock()
	}
}

// typeAt types at the guest what the console sends, until the instance ends.
func (e *endpoint) typeAt(k *solInstance) {
	refused := false
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.typed:
		}
		for {
			e.mu.Lock()
			stream := k.stream
			characters, generateBreak := k.link.Input()
			more := k.link.HasInput()
			e.pump(k) // There is room again.
			e.mu.Unlock()
			if len(characters) > 0 && stream != nil {
				// Without a stream there is no guest. One that has ended is
				// noticed where it is read.
				_ = stream.Send(characters)
			}
			if generateBreak && !refused {
				refused = e.sendBreak(k)
			}
			if !more {
				break
			}
		}
	}
}

// sendBreak asks for a serial break and tells whether the hypervisor has none.
// That ends the stream which asks, so it is not the one that the console has.
func (e *endpoint) sendBreak(k *solInstance) (refused bool) {
	ctx, cancel := context.WithTimeout(k.ctx, breakTimeout)
	defer cancel()
	stream, err := e.server.cfg.Console.Connect(ctx, e.reference, false)
	if err != nil {
		return false
	}
	if err := stream.Break(); err != nil {
		return false
	}
	for err == nil {
		_, err = stream.Receive()
	}
	if grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_UNSUPPORTED {
		return false
	}
	e.log(ctx, slog.LevelInfo, "serial break ignored: the hypervisor has none", slog.String(logkey.User, k.session.Username))
	return true
}
