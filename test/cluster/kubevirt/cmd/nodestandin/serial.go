// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import "sync"

// serial is a machine's serial port. As with the real one, at most one client
// is connected, a new one takes it from the one before, and what is sent while
// nobody is connected is lost.
type serial struct {
	mu     sync.Mutex
	client chan []byte
}

// connect returns what the machine sends from now on, until it is closed by
// another connect or by disconnect.
func (s *serial) connect() chan []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		close(s.client)
	}
	s.client = make(chan []byte, 64)
	return s.client
}

// disconnect ends the connection c, or whichever there is if c is nil.
func (s *serial) disconnect(c chan []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && (c == nil || c == s.client) {
		close(s.client)
		s.client = nil
	}
}

// send passes text on to the client. A client that does not read loses text,
// rather than stopping the machine.
func (s *serial) send(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return
	}
	select {
	case s.client <- []byte(text):
	default:
	}
}
