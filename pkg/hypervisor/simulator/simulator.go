// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
)

// Delays are how long things take.
type Delays struct {
	// Control is from an accepted request to the controller that acts on it.
	Control time.Duration
	// Schedule is each of the steps from Pending to Scheduled.
	Schedule time.Duration
	// Launch is from Scheduled to Running.
	Launch time.Duration
	// Firmware is from power on to the boot device, and Guest from there to the
	// login prompt.
	Firmware time.Duration
	Guest    time.Duration
	// Shutdown is what a guest that obeys ACPI takes to switch itself off.
	Shutdown time.Duration
	// Kill is from the decision to end an instance to its end.
	Kill time.Duration
	// Linger is how long an ended instance that is being deleted stays visible.
	Linger time.Duration
	// Import is how long a medium takes.
	Import time.Duration
	// Move is from a migrating guest's leave of its node to its instance's.
	Move time.Duration
	// Backoff is the unit of the back-off of instances that never ran:
	// Backoff x n x n, at most 30 x Backoff.
	Backoff time.Duration
}

// RealisticDelays are those of a small, quick cluster.
func RealisticDelays() Delays {
	return Delays{
		Control:  30 * time.Millisecond,
		Schedule: 200 * time.Millisecond,
		Launch:   900 * time.Millisecond,
		Firmware: time.Second,
		Guest:    2 * time.Second,
		Shutdown: 2 * time.Second,
		Kill:     150 * time.Millisecond,
		Linger:   700 * time.Millisecond,
		Import:   3 * time.Second,
		Move:     3 * time.Second,
		Backoff:  10 * time.Second,
	}
}

// FastDelays let a test see every state and still end soon.
func FastDelays() Delays {
	return Delays{
		Control:  2 * time.Millisecond,
		Schedule: 4 * time.Millisecond,
		Launch:   10 * time.Millisecond,
		Firmware: 5 * time.Millisecond,
		Guest:    10 * time.Millisecond,
		Shutdown: 20 * time.Millisecond,
		Kill:     5 * time.Millisecond,
		Linger:   15 * time.Millisecond,
		Import:   30 * time.Millisecond,
		Move:     30 * time.Millisecond,
		Backoff:  20 * time.Millisecond,
	}
}

// Config of a simulator.
type Config struct {
	// Delays are RealisticDelays when zero.
	Delays Delays
}

// Simulator is a set of simulated machines. It implements
// hypervisor.Hypervisor.
type Simulator struct {
	delays    Delays
	revision  atomic.Uint64
	admission atomic.Bool

	mu          sync.RWMutex
	machines    map[hypervisor.Ref]*machine
	subscribers follow.Subscribers
}

var _ hypervisor.Hypervisor = (*Simulator)(nil)

// New makes a simulator without machines.
func New(config Config) *Simulator {
	if config.Delays == (Delays{}) {
		config.Delays = RealisticDelays()
	}
	return &Simulator{
		delays:   config.Delays,
		machines: map[hypervisor.Ref]*machine{},
	}
}

// AddMachine makes a machine. *hypervisor.ConflictError when one of that name
// exists, *hypervisor.InvalidError when devices share a name or a boot order.
func (s *Simulator) AddMachine(spec Spec) error {
	m, err := newMachine(s, spec)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if _, ok := s.machines[m.ref]; ok {
		s.mu.Unlock()
		return hypervisor.Conflictf("virtualmachines.kubevirt.io %q already exists", m.ref.Name)
	}
	m.mu.Lock()
	m.publish()
	s.machines[m.ref] = m
	s.mu.Unlock()
	if m.strategy != hypervisor.RunStrategyHalted {
		m.syncLater(s.delays.Control)
	}
	m.mu.Unlock()
	s.notify(m.ref)
	return nil
}

// Delete deletes a machine as a user does: it stays until its instance has ended
// and gone.
func (s *Simulator) Delete(ref hypervisor.Ref) error {
	last := false
	err := s.change(ref, func(m *machine) error {
		m.deleting = true
		last = m.instance == nil
		m.syncLater(s.delays.Control)
		return nil
	})
	if err == nil && last {
		return s.DeleteMachine(ref)
	}
	return err
}

// DeleteMachine removes a machine and its instance at once.
func (s *Simulator) DeleteMachine(ref hypervisor.Ref) error {
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	s.remove(m)
	return nil
}

func (s *Simulator) remove(m *machine) {
	s.mu.Lock()
	if s.machines[m.ref] == m {
		delete(s.machines, m.ref)
	}
	s.mu.Unlock()
	m.mu.Lock()
	m.gone = true
	m.instance = nil
	m.hangUp()
	m.mu.Unlock()
	s.notify(m.ref)
}

// Get returns a machine.
func (s *Simulator) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	m, err := s.machine(ref)
	if err != nil {
		return nil, err
	}
	return m.snapshot.Load(), nil
}

// List returns all machines.
func (s *Simulator) List() ([]*hypervisor.Machine, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	machines := make([]*hypervisor.Machine, 0, len(s.machines))
	for _, m := range s.machines {
		machines = append(machines, m.snapshot.Load())
	}
	return machines, nil
}

// SetAdmission has new instances get the boot override that is armed in their
// machine's state (package bootoverride), or no longer: the admission webhook of
// a cluster. It is off at first.
func (s *Simulator) SetAdmission(on bool) { s.admission.Store(on) }

// Subscribe calls changed after each change.
func (s *Simulator) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	return s.subscribers.Subscribe(changed)
}

func (s *Simulator) notify(ref hypervisor.Ref) { s.subscribers.Changed(ref) }

func (s *Simulator) machine(ref hypervisor.Ref) (*machine, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, ok := s.machines[ref]
	if !ok {
		return nil, hypervisor.ErrNotFound
	}
	return m, nil
}

// change runs a request against a machine and publishes what it did. A change
// that fails has changed nothing.
func (s *Simulator) change(ref hypervisor.Ref, f func(*machine) error) error {
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.gone {
		m.mu.Unlock()
		return hypervisor.ErrNotFound
	}
	if err := f(m); err != nil {
		m.mu.Unlock()
		return err
	}
	m.publish()
	m.mu.Unlock()
	s.notify(ref)
	return nil
}

// request is change for a verb of the API: it can be made to fail, and the
// machine's controller looks at the machine afterwards.
func (s *Simulator) request(ctx context.Context, ref hypervisor.Ref, verb Verb, f func(*machine) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.change(ref, func(m *machine) error {
		if err := m.fault(verb); err != nil {
			return err
		}
		if err := f(m); err != nil {
			return err
		}
		if verb == VerbSetState {
			return nil
		}
		m.done = append(m.done, verb)
		if len(m.done) > maxDone {
			m.done = slices.Delete(m.done, 0, len(m.done)-maxDone)
		}
		m.syncLater(s.delays.Control)
		return nil
	})
}
