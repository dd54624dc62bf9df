// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Verb names a request of the API, for faults.
type Verb string

// The verbs.
const (
	VerbStart          Verb = "start"
	VerbStop           Verb = "stop"
	VerbRestart        Verb = "restart"
	VerbReset          Verb = "reset"
	VerbSoftReboot     Verb = "softreboot"
	VerbPause          Verb = "pause"
	VerbUnpause        Verb = "unpause"
	VerbSetRunStrategy Verb = "setrunstrategy"
	VerbDeleteInstance Verb = "deleteinstance"
	VerbSetBoot        Verb = "setboot"
	VerbSetState       Verb = "setstate"
	VerbOpenConsole    Verb = "openconsole"
	VerbInsert         Verb = "insert"
	VerbEject          Verb = "eject"
)

// FailNext makes the machine's next request of that verb fail with err; called
// several times, the next several ones.
func (s *Simulator) FailNext(ref hypervisor.Ref, verb Verb, err error) error {
	return s.change(ref, func(m *machine) error {
		if m.faults == nil {
			m.faults = map[Verb][]error{}
		}
		m.faults[verb] = append(m.faults[verb], err)
		return nil
	})
}

func (m *machine) fault(verb Verb) error {
	faults := m.faults[verb]
	if len(faults) == 0 {
		return nil
	}
	m.faults[verb] = faults[1:]
	return faults[0]
}

// Done returns the last requests that the machine accepted, oldest first, but for
// those to set its state.
func (s *Simulator) Done(ref hypervisor.Ref) []Verb {
	m, err := s.machine(ref)
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.done)
}

// BootedFrom returns the name of the device that the running guest was started
// from; empty while it is in its firmware or found nothing.
func (s *Simulator) BootedFrom(ref hypervisor.Ref) string {
	m, err := s.machine(ref)
	if err != nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.instance == nil {
		return ""
	}
	return m.instance.bootedFrom
}

// FailStarts makes the next n instances of the machine fail before they run.
func (s *Simulator) FailStarts(ref hypervisor.Ref, n int) error {
	return s.change(ref, func(m *machine) error {
		m.failStarts = n
		return nil
	})
}

// FailImport makes the next import into a tray fail with that message.
func (s *Simulator) FailImport(ref hypervisor.Ref, device, message string) error {
	return s.change(ref, func(m *machine) error {
		t, err := m.ownTray(device)
		if err != nil {
			return err
		}
		t.failure = message
		return nil
	})
}

// PowerOffGuest has the guest switch itself off.
func (s *Simulator) PowerOffGuest(ref hypervisor.Ref) error {
	return s.guest(ref, func(m *machine) {
		if m.instance.rebootPending {
			m.instance.rebootPending = false
			m.boot(m.instance)
			return
		}
		m.finish(m.instance, hypervisor.PhaseSucceeded)
	})
}

// CrashGuest has the guest's hypervisor process fail.
func (s *Simulator) CrashGuest(ref hypervisor.Ref) error {
	return s.guest(ref, func(m *machine) { m.finish(m.instance, hypervisor.PhaseFailed) })
}

// RebootGuest has the guest reboot itself.
func (s *Simulator) RebootGuest(ref hypervisor.Ref) error {
	return s.guest(ref, func(m *machine) { m.boot(m.instance) })
}

// Migrate moves the running guest to another node, and does not wait: its
// console's connection ends, and a while later the instance is on that node.
// Until then nobody reaches the console.
func (s *Simulator) Migrate(ref hypervisor.Ref) error {
	return s.change(ref, func(m *machine) error {
		i := m.instance
		switch {
		case !m.running():
			return hypervisor.ErrNoInstance
		case i.moving:
			return hypervisor.Conflictf("in-flight migration detected")
		}
		i.moving = true
		m.hangUp()
		m.afterOn(i, m.simulator.delays.Move, func() {
			i.moving = false
			if m.running() {
				i.nodes++
			}
		})
		return nil
	})
}

// CutConsole ends the connection to the guest's console, as a restart of what
// stands between does.
func (s *Simulator) CutConsole(ref hypervisor.Ref) error {
	return s.guest(ref, func(m *machine) { m.hangUp() })
}

// LoseNode makes the instance's phase Unknown.
func (s *Simulator) LoseNode(ref hypervisor.Ref) error {
	return s.guest(ref, func(m *machine) { m.instance.phase = hypervisor.PhaseUnknown })
}

// SetIgnoreACPI makes the guest deaf to requests to shut down, or not.
func (s *Simulator) SetIgnoreACPI(ref hypervisor.Ref, ignore bool) error {
	return s.change(ref, func(m *machine) error {
		m.ignoreACPI = ignore
		return nil
	})
}

// SetAgent connects a guest agent to the running guest and to later ones, or
// takes it away.
func (s *Simulator) SetAgent(ref hypervisor.Ref, connected bool) error {
	return s.change(ref, func(m *machine) error {
		m.agent = connected
		if m.running() {
			m.instance.agent = connected
		}
		return nil
	})
}

// guest does something to a running guest.
func (s *Simulator) guest(ref hypervisor.Ref, f func(*machine)) error {
	return s.change(ref, func(m *machine) error {
		if !m.running() {
			return hypervisor.ErrNoInstance
		}
		f(m)
		return nil
	})
}
