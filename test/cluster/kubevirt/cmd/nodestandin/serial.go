// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"io"
	"sync"
)

// room is how much may wait for a client before what the guest answers to is
// held up.
const room = 64 << 10

// serial is a machine's serial port. As with the real one, at most one client
// is connected, a new one takes it from the one before, and what is sent while
// nobody is connected is lost.
type serial struct {
	mu     sync.Mutex
	client *port
}

// port is a client's end of a serial port. What is sent to it is kept until it
// is read, as the real one's machine waits for its reader.
type port struct {
	mu     sync.Mutex
	change *sync.Cond
	unread []byte
	closed bool
}

// connect returns what the machine sends from now on, until it is closed by
// another connect or by disconnect.
func (s *serial) connect() *port {
	p := &port{}
	p.change = sync.NewCond(&p.mu)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.close()
	}
	s.client = p
	return p
}

// disconnect ends the connection p, or whichever there is if p is nil.
func (s *serial) disconnect(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && (p == nil || p == s.client) {
		s.client.close()
		s.client = nil
	}
}

// send passes text on to the client.
func (s *serial) send(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return
	}
	p := s.client
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unread = append(p.unread, text...)
	p.change.Broadcast()
}

func (p *port) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.change.Broadcast()
}

// Read waits for text; io.EOF once all is read that came before the end.
func (p *port) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.unread) == 0 {
		if p.closed {
			return 0, io.EOF
		}
		p.change.Wait()
	}
	n := copy(b, p.unread)
	p.unread = p.unread[n:]
	p.change.Broadcast()
	return n, nil
}

// waitForRoom waits until the client has read most of what was sent.
func (p *port) waitForRoom() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.unread) > room && !p.closed {
		p.change.Wait()
	}
}
