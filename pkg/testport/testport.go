// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package testport hands out ports of the loopback address to tests that have to
// name a port before somebody listens on it.
//
// The ports are outside the ephemeral ones, so that no client's connection takes
// one in between. A process takes them from blocks that it alone owns, and each
// call ports of its own: a port that is free now may otherwise be another test's
// a moment later.
package testport

import (
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
)

// blockSize is the number of ports of a block: few enough that each of many
// processes finds blocks, enough that most need one.
const blockSize = 128

// lowest is the first port that may be handed out: below are those of servers
// that are well known.
const lowest = 10000

// pool is this process's ports.
var pool = struct {
	sync.Mutex
	owned  []net.Listener // One for each block, for as long as the process lives.
	next   int            // The next port of the newest block.
	end    int            // The port after the newest block.
	number int            // The next block to take.
}{}

// Free returns a port that is free for both TCP and UDP on the loopback address,
// for the length of the process.
func Free(tb testing.TB) int {
	tb.Helper()
	return FreeRow(tb, 1)
}

// FreeRow returns the first of n such ports in a row.
func FreeRow(tb testing.TB, n int) int {
	tb.Helper()
	pool.Lock()
	defer pool.Unlock()
	for {
		for pool.next+n <= pool.end {
			port := pool.next
			pool.next++
			if freeRow(port, n) {
				pool.next = port + n
				return port
			}
		}
		if err := ownBlocks((n + blockSize - 1) / blockSize); err != nil {
			tb.Fatal(err)
		}
	}
}

// ownBlocks makes the next n blocks in a row this process's that are nobody's. An
// abstract socket says whose each is, so that nothing is left of a process that is
// killed.
func ownBlocks(n int) error {
	from, to := handable()
	var row []net.Listener
	for start := from + pool.number*blockSize; start+blockSize <= to; start += blockSize {
		pool.number++
		listener, err := net.Listen("unix", fmt.Sprintf("@kubevirtbmc-test-ports-%d", start))
		if err != nil {
			row = nil
			continue
		}
		pool.owned = append(pool.owned, listener)
		if row = append(row, listener); len(row) == n {
			pool.next, pool.end = start-(n-1)*blockSize, start+blockSize
			return nil
		}
	}
	return fmt.Errorf("no %d free ports in a row are left between %d and %d", n*blockSize, from, to)
}

// handable returns the larger range beside the kernel's ephemeral ports.
func handable() (from, to int) {
	low, high := 32768, 60999
	if raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(raw), &low, &high)
	}
	if low-lowest >= 65535-high {
		return lowest, low
	}
	return max(lowest, high+1), 65536
}

func freeRow(from, n int) bool {
	for port := from; port < from+n; port++ {
		if !free(port) {
			return false
		}
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
