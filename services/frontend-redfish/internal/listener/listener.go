// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package listener lets one HTTP server serve the ports of many BMCs: each
// connection knows the owner of the port that it came in by.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// MaxConns is how many connections an owner can have at a time. One more takes
// the place of the oldest that has no request under way.
const MaxConns = 128

// Fan is a net.Listener that accepts the connections of many ports.
type Fan struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    sync.Once
}

// NewFan returns a fan without ports.
func NewFan() *Fan {
	return &Fan{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept returns the next connection of any port.
func (f *Fan) Accept() (net.Conn, error) {
	select {
	case c := <-f.accepted:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept. Ports are closed by their own Close.
func (f *Fan) Close() error {
	f.close.Do(func() { close(f.closed) })
	return nil
}

// Addr returns no useful address: there are many.
func (f *Fan) Addr() net.Addr { return fanAddr{} }

type fanAddr struct{}

func (fanAddr) Network() string { return "tcp" }
func (fanAddr) String() string  { return "many ports" }

// Port is an open port.
type Port struct {
	listener net.Listener
}

// Listen opens a port for an owner and accepts its connections until it is
// closed; with tlsConfig they speak TLS. The configuration can tell whose
// connection it is by OwnerOf(ClientHelloInfo.Conn).
func (f *Fan) Listen(ctx context.Context, address string, owner *Owner, tlsConfig *tls.Config) (*Port, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	go f.run(l, owner, tlsConfig)
	return &Port{l}, nil
}

// Addr returns the address that the port listens on.
func (p *Port) Addr() net.Addr { return p.listener.Addr() }

// Close closes the port; its connections go on.
func (p *Port) Close() error { return p.listener.Close() }

func (f *Fan) run(l net.Listener, owner *Owner, tlsConfig *tls.Config) {
	for {
		raw, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(50 * time.Millisecond) // Out of file descriptors, or a client that left: the next may do.
			continue
		}
		c := Adopt(owner, raw)
		if c == nil {
			continue
		}
		if tlsConfig != nil {
			c = tls.Server(c, tlsConfig)
		}
		select {
		case f.accepted <- c:
		case <-f.closed:
			c.Close() //nolint:errcheck // There is nobody to tell.
			return
		}
	}
}

// Owner is whom ports belong to, with the connections that came in by them.
type Owner struct {
	// Value is the owner's own.
	Value any

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// Close closes the owner's connections, those with a request under way once it
// is answered, and refuses further ones.
func (o *Owner) Close() {
	o.mu.Lock()
	o.closed = true
	var idle []*conn
	for c := range o.conns {
		if !c.busy {
			idle = append(idle, c)
		}
	}
	o.mu.Unlock()
	for _, c := range idle {
		c.Close() //nolint:errcheck // There is nobody to tell.
	}
}

// Adopt makes a connection one of the owner's; nil when it is refused.
func Adopt(o *Owner, raw net.Conn) net.Conn {
	c := &conn{Conn: raw, owner: o, since: time.Now()}
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		raw.Close() //nolint:errcheck // There is nobody to tell.
		return nil
	}
	var surplus *conn
	if len(o.conns) >= MaxConns {
		surplus = o.oldestIdle()
		if surplus == nil {
			o.mu.Unlock()
			raw.Close() //nolint:errcheck // There is nobody to tell.
			return nil
		}
		delete(o.conns, surplus)
	}
	if o.conns == nil {
		o.conns = map[*conn]struct{}{}
	}
	o.conns[c] = struct{}{}
	o.mu.Unlock()
	if surplus != nil {
		surplus.Close() //nolint:errcheck // There is nobody to tell.
	}
	return c
}

func (o *Owner) oldestIdle() *conn {
	var oldest *conn
	for c := range o.conns {
		if !c.busy && (oldest == nil || c.since.Before(oldest.since)) {
			oldest = c
		}
	}
	return oldest
}

// conn is a connection that knows its owner.
type conn struct {
	net.Conn
	owner *Owner
	since time.Time

	busy bool // a request is being answered; guarded by owner.mu
}

// Close closes the connection.
func (c *conn) Close() error {
	o := c.owner
	o.mu.Lock()
	delete(o.conns, c)
	if len(o.conns) == 0 {
		o.conns = nil
	}
	o.mu.Unlock()
	return c.Conn.Close()
}

// OwnerOf returns the owner of a connection that came from a Fan; nil for
// another one.
func OwnerOf(c net.Conn) *Owner {
	if own := unwrap(c); own != nil {
		return own.owner
	}
	return nil
}

// Begin marks a connection as one with a request under way, until ConnState says
// that it is idle: only then is the answer written. stopping tells that the owner
// is closed: the answer should be the connection's last.
func Begin(c net.Conn) (stopping bool) {
	own := unwrap(c)
	if own == nil {
		return false
	}
	return own.setBusy(true)
}

// ConnState takes note of connections that become idle, and closes them where
// their owner is closed; it is meant for http.Server.
func ConnState(c net.Conn, state http.ConnState) {
	if state != http.StateIdle {
		return
	}
	if own := unwrap(c); own != nil && own.setBusy(false) {
		own.Close() //nolint:errcheck // There is nobody to tell.
	}
}

func (c *conn) setBusy(busy bool) (stopping bool) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.busy = busy
	return c.owner.closed
}

func unwrap(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}
