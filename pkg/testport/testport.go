// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package testport hands out ports of the loopback address to tests that have to
// name a port before somebody listens on it.
//
// The ports are below the ephemeral ones (from 32768), so that no client's
// connection takes one in between. Each process has a zone of its own, and each
// call ports of its own: a port that is free now may otherwise be another test's
// a moment later.
package testport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	first    = 10000
	zones    = 8
	zoneSize = (32768 - first) / zones
)

// zone is this process's: the first whose abstract socket nobody else listens on.
// A process that finds none, or needs more ports than its zone has left, takes
// its chances with all.
var zone = sync.OnceValue(func() reservation {
	for z := range zones {
		listener, err := net.Listen("unix", fmt.Sprintf("@kubevirtbmc-test-ports-%d", z))
		if err == nil {
			return reservation{z, listener}
		}
	}
	return reservation{number: -1}
})

// reservation of a zone lasts as long as its listener is referred to.
type reservation struct {
	number int
	net.Listener
}

var handedOut = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// Free returns a port that is free for both TCP and UDP on the loopback address,
// for the length of the process.
func Free(tb testing.TB) int {
	tb.Helper()
	return FreeRow(tb, 1)
}

// FreeRow returns the first of n such ports in a row.
func FreeRow(tb testing.TB, n int) int {
	tb.Helper()
	handedOut.Lock()
	defer handedOut.Unlock()
	if z := zone().number; z >= 0 {
		if port, ok := find(first+z*zoneSize, zoneSize, n); ok {
			return port
		}
	}
	port, ok := find(first, zones*zoneSize, n)
	if !ok {
		tb.Fatalf("no %d free ports in a row", n)
	}
	return port
}

// find takes n ports in a row out of size ones.
func find(from, size, n int) (port int, ok bool) {
	if n > size {
		return 0, false
	}
	for range 500 {
		if port := from + rand.IntN(size-n+1); take(port, n) {
			return port, true
		}
	}
	return 0, false
}

func take(from, n int) bool {
	for port := from; port < from+n; port++ {
		if handedOut.ports[port] || !free(port) {
			return false
		}
	}
	for port := from; port < from+n; port++ {
		handedOut.ports[port] = true
	}
	return true
}

func free(port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	_ = l.Close()
	u, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	_ = u.Close()
	return true
}
