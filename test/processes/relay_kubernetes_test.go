//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes TCP connections on, and can cut them.
type relay struct {
	address string
	target  string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	// count is of the connections that there were.
	count int
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: listener.Addr().String(), target: target, conns: map[net.Conn]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.cut()
		running.Wait()
	})
	return r
}

// pass passes on what one side says to the other until either ends.
func (r *relay) pass(from net.Conn) {
	defer r.forget(from)
	to, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer r.forget(to)
	r.mu.Lock()
	r.conns[from], r.conns[to] = struct{}{}, struct{}{}
	r.count++
	r.mu.Unlock()
	var both sync.WaitGroup
	for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
		both.Go(func() {
			_, _ = io.Copy(a, b)
			_ = a.Close()
			_ = b.Close()
		})
	}
	both.Wait()
}

func (r *relay) forget(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	delete(r.conns, conn)
	r.mu.Unlock()
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		_ = conn.Close()
	}
}

// connections is how many there were.
func (r *relay) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
