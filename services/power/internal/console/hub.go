// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package console shares one connection to a machine's serial port among all
// who watch it. KubeVirt ends a serial connection when another one comes, so
// two of ours would throw each other out.
//
// The connection exists while somebody watches, and follows the machine over
// power cycles and migrations. When it ends although the same guest runs on where
// it ran, somebody has taken the console by other means (virtctl), or something
// between has been restarted: KubeVirt does not tell which. So it is taken back
// once, after a while; if it ends soon again somebody else is there, and it is
// left to them until a client types, another one connects, or the guest starts
// anew or moves.
package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// maxUnread is how many bytes may wait for a client, each message counted as
	// messageSize bytes more.
	maxUnread   = 256 << 10
	messageSize = 64
	// maxClients is how many may watch a machine.
	maxClients = 32

	readSize = 16 << 10

	// retakeAfter is when a connection that has ended without a reason is opened
	// again, contested how soon it ends then if somebody else wants it.
	retakeAfter = time.Minute
	contested   = time.Minute

	openTimeout = 15 * time.Second
	retryMin    = 100 * time.Millisecond
	retryMax    = 5 * time.Second
)

var (
	// ErrNoConsole says that the machine has no serial console.
	ErrNoConsole = errors.New("machine has no serial console")
	// ErrTooSlow ends a client that does not keep up with the output.
	ErrTooSlow = errors.New("console client reads too slowly")
	// ErrTooMany says that the machine's console has as many clients as it can.
	ErrTooMany = errors.New("too many console clients")
	// ErrReadOnly refuses the input of a client that only watches.
	ErrReadOnly = errors.New("console client is read-only")
)

// Config of a hub.
type Config struct {
	Machines hypervisor.Machines
	Console  hypervisor.Console
	Log      *slog.Logger
}

// Hub shares the consoles of all machines.
type Hub struct {
	config Config

	mu    sync.Mutex
	lines map[hypervisor.Ref]*line
}

// New makes a hub.
func New(config Config) *Hub {
	return &Hub{config: config, lines: map[hypervisor.Ref]*line{}}
}

// Connect adds a client to a machine's console. The first message that it gets
// is a state.
func (h *Hub) Connect(ref hypervisor.Ref, readOnly bool) (*Client, error) {
	m, err := h.config.Machines.Get(ref)
	if err != nil {
		return nil, err
	}
	if !m.Hardware.SerialConsole {
		return nil, ErrNoConsole
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lines[ref]
	if l == nil {
		ctx, cancel := context.WithCancel(context.Background())
		l = &line{hub: h, ref: ref, cancel: cancel, clients: map[*Client]struct{}{}, wanted: make(chan struct{}, 1)}
		h.lines[ref] = l
		go l.run(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.clients) >= maxClients {
		return nil, ErrTooMany
	}
	c := &Client{line: l, readOnly: readOnly, wake: make(chan struct{}, 1), tooSlow: make(chan struct{})}
	l.clients[c] = struct{}{}
	c.put(Message{State: l.state()})
	l.want()
	return c, nil
}

// leave removes a client; the last one ends the connection.
func (h *Hub) leave(c *Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clients, c)
	if len(l.clients) == 0 {
		if h.lines[l.ref] == l {
			delete(h.lines, l.ref)
		}
		l.cancel()
	}
}

// line is the shared connection of one machine.
type line struct {
	hub    *Hub
	ref    hypervisor.Ref
	cancel context.CancelFunc
	// wanted has a value when a client wants the connection back, which it can
	// only while there is none.
	wanted chan struct{}

	mu      sync.Mutex
	clients map[*Client]struct{}
	// session is the connection that there is; nil when there is none.
	session *session
}

// session is a connection to the guest.
type session struct {
	// typed takes input, over is closed with the connection.
	typed chan input
	over  chan struct{}
}

// input is what one client types at once; done is closed when the connection has
// taken it.
type input struct {
	bytes []byte
	done  chan struct{}
}

// place is an instance on a node; the zero place is none.
type place struct{ uid, node string }

func (l *line) state() State {
	if l.session != nil {
		return Connected
	}
	return Disconnected
}

// want asks for the connection where there is none; l.mu is held.
func (l *line) want() {
	if l.session != nil {
		return
	}
	select {
	case l.wanted <- struct{}{}:
	default:
	}
}

// run keeps the connection until the last client leaves.
func (l *line) run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	unsubscribe := l.hub.config.Machines.Subscribe(func(ref hypervisor.Ref) {
		if ref == l.ref {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	defer unsubscribe()

	// left is where the console may be somebody else's. It is taken back once,
	// at retake; retook says that the last connection was that one.
	var (
		left   place
		retake <-chan time.Time
		retook bool
	)
	retry := retryMin
	for ctx.Err() == nil {
		at, err := l.runningInstance()
		if err != nil {
			l.end(err)
			return
		}
		var again <-chan time.Time
		if at != (place{}) && (at != left || retook) {
			if at != left { // A new guest, another node, or a wish.
				retake, retook = nil, false
			}
			left = place{}
			select {
			case <-l.wanted:
			default:
			}
			began := time.Now()
			err := l.carry(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, io.EOF) && !errors.Is(err, hypervisor.ErrUnavailable):
				left, retry = at, retryMin
				if retook && time.Since(began) < contested {
					l.hub.config.Log.Info("console is somebody else's", l.attrs()...)
				} else {
					retake = time.After(retakeAfter)
					l.hub.config.Log.Info("console ended by the hypervisor", l.attrs()...)
				}
				retook = false
			default:
				l.hub.config.Log.Info("console can't be reached", append(l.attrs(), slog.String(logkey.Error, err.Error()))...)
				again = time.After(retry)
				retry = min(2*retry, retryMax)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		case <-retake:
			retake, retook = nil, true
		case <-l.wanted:
			left, retake, retook = place{}, nil, false
		}
	}
}

func (l *line) attrs() []any {
	return []any{slog.String(logkey.Namespace, l.ref.Namespace), slog.String(logkey.VM, l.ref.Name)}
}

// runningInstance returns where the instance runs; the zero place when none does.
func (l *line) runningInstance() (place, error) {
	m, err := l.hub.config.Machines.Get(l.ref)
	switch {
	case errors.Is(err, hypervisor.ErrUnavailable):
		return place{}, nil
	case err != nil:
		return place{}, err
	case m.Instance == nil || m.Instance.Phase != hypervisor.PhaseRunning:
		return place{}, nil
	default:
		return place{uid: m.Instance.UID, node: m.Instance.Node}, nil
	}
}

// carry opens the connection and hands bytes on in both directions until it
// ends.
func (l *line) carry(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	conn, err := l.hub.config.Console.OpenConsole(opening, l.ref)
	cancel()
	if err != nil {
		return err
	}
	s := &session{typed: make(chan input), over: make(chan struct{})}
	var typing sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		close(s.over)
		if stop() {
			_ = conn.Close()
		}
		typing.Wait()
	}()
	typing.Go(func() {
		for {
			select {
			case p := <-s.typed:
				// A connection that breaks is noticed by its reader.
				_, _ = conn.Write(p.bytes)
				close(p.done)
			case <-s.over:
				return
			}
		}
	})
	l.set(s)
	defer l.set(nil)
	buffer := make([]byte, readSize)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			l.output(buffer[:n])
		}
		if err != nil {
			return err
		}
	}
}

// set tells the clients whether there is a connection.
func (l *line) set(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = s
	if s != nil {
		// Whoever wanted it while it was opened has it now.
		select {
		case <-l.wanted:
		default:
		}
	}
	for c := range l.clients {
		c.put(Message{State: l.state()})
	}
}

func (l *line) output(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.clients {
		c.put(Message{Output: p})
	}
}

// end ends all clients.
func (l *line) end(err error) {
	l.hub.mu.Lock()
	if l.hub.lines[l.ref] == l {
		delete(l.hub.lines, l.ref)
	}
	l.hub.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.clients {
		c.fail(err)
	}
}
