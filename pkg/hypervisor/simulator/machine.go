// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// maxDone is how many accepted requests a machine remembers for tests.
const maxDone = 64

type requestKind int

const (
	requestStart requestKind = iota
	requestStop
)

// stateChange is an accepted request that the controller has not carried out
// (KubeVirt's stateChangeRequests).
type stateChange struct {
	kind requestKind
	// uid is the instance to stop.
	uid string
}

// machine is a VirtualMachine with its controller.
type machine struct {
	simulator *Simulator
	ref       hypervisor.Ref
	uid       string
	spec      Spec
	firmware  hypervisor.Firmware
	hardware  hypervisor.Hardware
	snapshot  atomic.Pointer[hypervisor.Machine]

	// mu guards what follows.
	mu   sync.Mutex
	gone bool
	// deleting: it goes with its instance.
	deleting bool
	strategy hypervisor.RunStrategy
	// seenStrategy is the strategy at the controller's last look: under
	// RerunOnFailure only a change of it starts a machine by itself.
	seenStrategy    hypervisor.RunStrategy
	changes         []stateChange
	devices         []hypervisor.BootDevice
	restartRequired bool
	trays           []*tray
	state           []byte
	instance        *instance
	instances       int
	syncTimer       *time.Timer
	// failures counts instances in a row that never ran; no new one before
	// retryAt.
	failures int
	retryAt  time.Time

	console    *consoleConn
	ignoreACPI bool
	agent      bool
	failStarts int
	faults     map[Verb][]error
	done       []Verb
}

func newMachine(s *Simulator, spec Spec) (*machine, error) {
	spec.setDefaults()
	m := &machine{
		simulator: s,
		ref:       spec.Ref,
		uid:       uuid("machine", spec.Ref, strconv.FormatUint(s.revision.Add(1), 10)),
		spec:      spec,
		strategy:  spec.RunStrategy,
		firmware: hypervisor.Firmware{
			Mode:       spec.Mode,
			Modes:      spec.Modes,
			KernelBoot: spec.KernelBoot,
			UUID:       uuid("firmware", spec.Ref, ""),
			Serial:     fmt.Sprintf("SIM%.4X", digest("serial", spec.Ref, "")),
		},
		hardware:   spec.hardware(),
		devices:    spec.devices(),
		ignoreACPI: spec.IgnoreACPI,
		agent:      spec.Agent,
	}
	if err := checkDevices(m.devices); err != nil {
		return nil, err
	}
	for _, t := range spec.Trays {
		tr := &tray{device: t.Name}
		if t.Volume != "" {
			tr.medium = &hypervisor.Medium{Phase: hypervisor.MediumInserted, Foreign: true}
		}
		m.trays = append(m.trays, tr)
	}
	return m, nil
}

// publish makes the machine's present state the one that readers see.
func (m *machine) publish() {
	snapshot := &hypervisor.Machine{
		Ref:             m.ref,
		UID:             m.uid,
		ResourceVersion: strconv.FormatUint(m.simulator.revision.Add(1), 10),
		Deleting:        m.deleting,
		RunStrategy:     m.strategy,
		RestartRequired: m.restartRequired,
		GracePeriod:     m.spec.GracePeriod,
		Devices:         slices.Clone(m.devices),
		Firmware:        m.firmware,
		Hardware:        m.hardware,
		State:           m.state,
	}
	for _, c := range m.changes {
		switch c.kind {
		case requestStart:
			snapshot.StartQueued = true
		case requestStop:
			snapshot.StopQueued = true
		}
	}
	if i := m.instance; i != nil {
		snapshot.Instance = i.snapshot()
		if i.phase == hypervisor.PhaseRunning {
			snapshot.Hardware.Interfaces = addressed(m.ref, m.hardware.Interfaces)
		}
		if i.agent {
			// Its host name is not in an instance's status.
			snapshot.Hardware.GuestOS = &hypervisor.GuestOS{
				Name: "Simulated GNU/Linux", Version: "1", KernelRelease: "6.0.0-simulated",
			}
		}
	}
	m.snapshot.Store(snapshot)
}

// after runs f on the machine later, unless the machine is deleted before.
func (m *machine) after(delay time.Duration, f func()) *time.Timer {
	return time.AfterFunc(delay, func() {
		m.mu.Lock()
		if m.gone {
			m.mu.Unlock()
			return
		}
		f()
		m.publish()
		m.mu.Unlock()
		m.simulator.notify(m.ref)
	})
}

// syncLater makes the controller look at the machine.
func (m *machine) syncLater(delay time.Duration) {
	if m.syncTimer != nil {
		m.syncTimer.Stop()
	}
	m.syncTimer = m.after(delay, m.sync)
}

// sync is KubeVirt's VM controller: it makes and deletes the instance as run
// strategy and requests say.
func (m *machine) sync() {
	m.syncTimer = nil
	m.forgetDone()
	strategyChanged := m.seenStrategy != m.strategy
	m.seenStrategy = m.strategy
	i := m.instance
	if m.deleting {
		if i != nil {
			m.delete()
		}
		return
	}

	switch m.strategy {
	case hypervisor.RunStrategyAlways:
		if i == nil {
			if !m.backOff() {
				m.launch()
			}
		} else if i.phase.Final() || m.stopRequested() {
			m.delete()
		}
	case hypervisor.RunStrategyRerunOnFailure:
		switch {
		case i == nil:
			if (strategyChanged || m.startRequested()) && !m.backOff() {
				m.launch()
			}
		case m.stopRequested():
			m.delete()
		case i.phase.Final() && !i.deleting:
			if i.phase == hypervisor.PhaseFailed && !m.startRequested() {
				m.changes = append(m.changes, stateChange{kind: requestStart})
			}
			m.delete()
		}
	case hypervisor.RunStrategyManual:
		if i == nil {
			if m.startRequested() {
				m.launch()
			}
		} else if m.stopRequested() {
			m.delete()
		}
	case hypervisor.RunStrategyOnce:
		if i == nil {
			m.launch()
		}
	case hypervisor.RunStrategyHalted:
		switch {
		case i != nil:
			m.delete()
		case m.startRequested():
			// What a start in the state paused is made of; a restart that a stop
			// overtook leaves one behind too.
			m.strategy = hypervisor.RunStrategyAlways
			m.syncLater(m.simulator.delays.Control)
		}
	}
	m.forgetDone()
}

// forgetDone drops the first request once it has been carried out; the second
// one's turn comes at the next look.
func (m *machine) forgetDone() {
	if len(m.changes) == 0 {
		return
	}
	first := m.changes[0]
	i := m.instance
	var done bool
	switch first.kind {
	case requestStop:
		done = i == nil || i.uid != first.uid
	case requestStart:
		done = i != nil && !i.deleting && !i.phase.Final()
	}
	if done {
		m.changes = m.changes[1:]
	}
}

func (m *machine) startRequested() bool {
	return len(m.changes) > 0 && m.changes[0].kind == requestStart
}

func (m *machine) stopRequested() bool {
	return len(m.changes) > 0 && m.changes[0].kind == requestStop &&
		m.instance != nil && m.changes[0].uid == m.instance.uid
}

// live tells whether there is an instance that has not ended.
func (m *machine) live() bool { return m.instance != nil && !m.instance.phase.Final() }

func (m *machine) running() bool {
	return m.instance != nil && m.instance.phase == hypervisor.PhaseRunning
}
