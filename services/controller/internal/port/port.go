// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package port gives out the ports at which frontends serve BMCs.
package port

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Range is the ports from First to Last, both included.
type Range struct{ First, Last int32 }

// DefaultRange is below the ports that Kubernetes gives to Services of type
// NodePort (30000) and those that Linux gives to clients (32768).
var DefaultRange = Range{First: 10000, Last: 29999}

// lowest is the first port that a process without rights may listen on.
const lowest = 1024

// String returns first-last.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Set reads what String writes. It makes a Range a flag.
func (r *Range) Set(text string) error {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		return fmt.Errorf("ports %q: want first-last", text)
	}
	var parsed Range
	for _, end := range []struct {
		text string
		port *int32
	}{{first, &parsed.First}, {last, &parsed.Last}} {
		n, err := strconv.ParseUint(end.text, 10, 16)
		if err != nil {
			return fmt.Errorf("ports %q: %q is no port", text, end.text)
		}
		*end.port = int32(n)
	}
	if parsed.First < lowest || parsed.Last < parsed.First {
		return fmt.Errorf("ports %q: want first-last, of at least %d", text, lowest)
	}
	*r = parsed
	return nil
}

func (r Range) has(port int32) bool { return r.First <= port && port <= r.Last }

// Allocator gives each owner one port that no other owner has. An owner keeps it
// until it is released. Its methods may be called from several goroutines.
type Allocator[Owner comparable] struct {
	ports Range

	mu     sync.Mutex
	owners map[int32]Owner
	has    map[Owner]int32
	// last is the port that was given out last. The search for a free one begins
	// behind it, so that a port that was returned rests: clients that don't know
	// that its BMC is gone do not reach another one.
	last int32
}

// New makes an allocator all of whose ports are free.
func New[Owner comparable](ports Range) *Allocator[Owner] {
	return &Allocator[Owner]{ports: ports, owners: map[int32]Owner{}, has: map[Owner]int32{}, last: ports.First - 1}
}

// Claim is one owner's wish to have a port that it had before.
type Claim[Owner comparable] struct {
	Owner Owner
	Port  int32
}

// Restore gives owners the ports that they had before a restart. Of several that
// claim the same port the first gets it. Claims of ports out of the range, and
// second ones of an owner, count for nothing.
func (a *Allocator[Owner]) Restore(claims []Claim[Owner]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, claim := range claims {
		if !a.ports.has(claim.Port) {
			continue
		}
		_, taken := a.owners[claim.Port]
		if _, has := a.has[claim.Owner]; taken || has {
			continue
		}
		a.give(claim.Owner, claim.Port)
	}
	for port := range a.owners {
		a.last = max(a.last, port)
	}
}

// Allocate returns the owner's port: the one that it has, else a free one; false
// when there is none.
func (a *Allocator[Owner]) Allocate(owner Owner) (int32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if port, ok := a.has[owner]; ok {
		return port, true
	}
	for range a.ports.Last - a.ports.First + 1 {
		a.last++
		if !a.ports.has(a.last) {
			a.last = a.ports.First
		}
		if _, taken := a.owners[a.last]; !taken {
			a.give(owner, a.last)
			return a.last, true
		}
	}
	return 0, false
}

func (a *Allocator[Owner]) give(owner Owner, port int32) {
	a.owners[port], a.has[owner] = owner, port
}

// Port returns the port that an owner has; false when it has none.
func (a *Allocator[Owner]) Port(owner Owner) (int32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	port, ok := a.has[owner]
	return port, ok
}

// Release takes an owner's port back; one that has none is no error.
func (a *Allocator[Owner]) Release(owner Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if port, ok := a.has[owner]; ok {
		delete(a.has, owner)
		delete(a.owners, port)
	}
}

// Free returns how many ports are free.
func (a *Allocator[Owner]) Free() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int(a.ports.Last-a.ports.First) + 1 - len(a.owners)
}
