// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package listener

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// accept opens a connection to a port and returns both of its ends.
func accept(t *testing.T, f *Fan, p *Port) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = f.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

// closedSoon tells whether the other end of a connection is closed.
func closedSoon(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, err := c.Read(make([]byte, 1))
	var failure net.Error
	return err != nil && (!errors.As(err, &failure) || !failure.Timeout())
}

func TestFan_knowsTheOwner(t *testing.T) {
	t.Parallel()
	f := NewFan()
	one, two := &Owner{Value: "one"}, &Owner{Value: "two"}
	for _, o := range []*Owner{one, two} {
		p, err := f.Listen(t.Context(), "127.0.0.1:0", o, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, server := accept(t, f, p)
		if got := OwnerOf(server); got != o {
			t.Errorf("owner = %v, want %v", got, o)
		}
	}
	if OwnerOf(&net.TCPConn{}) != nil {
		t.Error("a foreign connection has an owner")
	}
	f.Close()
	if _, err := f.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestOwner_Close(t *testing.T) {
	t.Parallel()
	f, o := NewFan(), &Owner{}
	p, err := f.Listen(t.Context(), "127.0.0.1:0", o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	idleClient, _ := accept(t, f, p)
	busyClient, busy := accept(t, f, p)
	if Begin(busy) {
		t.Error("stopping before Close")
	}
	o.Close()
	if !closedSoon(idleClient) {
		t.Error("an idle connection lives on")
	}
	if _, err := io.WriteString(busy, "x"); err != nil {
		t.Errorf("a busy connection is closed: %v", err)
	}
	busyClient.Read(make([]byte, 1))
	ConnState(busy, http.StateActive)
	if !Begin(busy) {
		t.Error("not stopping after Close")
	}
	ConnState(busy, http.StateIdle)
	if !closedSoon(busyClient) {
		t.Error("a connection lives on although its request is over")
	}
	late, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if !closedSoon(late) {
		t.Error("a connection after Close is served")
	}
	if o.conns != nil {
		t.Errorf("%d connections are left", len(o.conns))
	}
}

func TestOwner_makesRoom(t *testing.T) {
	t.Parallel()
	o := &Owner{}
	var first, second net.Conn
	for i := range MaxConns {
		near, far := net.Pipe()
		defer far.Close()
		c := Adopt(o, near)
		switch i {
		case 0:
			first = c
			Begin(c)
		case 1:
			second = c
		}
	}
	near, far := net.Pipe()
	defer far.Close()
	if Adopt(o, near) == nil {
		t.Error("there is no room although connections are idle")
	}
	if len(o.conns) != MaxConns {
		t.Errorf("%d connections, want %d", len(o.conns), MaxConns)
	}
	if _, ok := o.conns[first.(*conn)]; !ok {
		t.Error("a busy connection had to go")
	}
	if _, ok := o.conns[second.(*conn)]; ok {
		t.Error("the oldest idle connection is still there")
	}
	for c := range o.conns {
		c.busy = true
	}
	near, far = net.Pipe()
	defer far.Close()
	if Adopt(o, near) != nil {
		t.Error("there is room although all connections are busy")
	}
}
