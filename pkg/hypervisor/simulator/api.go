// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Start is KubeVirt's start subresource.
func (s *Simulator) Start(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbStart, func(m *machine) error {
		if m.live() && m.instance.phase != hypervisor.PhaseUnknown {
			return hypervisor.Conflictf("VM is already running")
		}
		switch m.strategy {
		case hypervisor.RunStrategyHalted:
			m.strategy = hypervisor.RunStrategyAlways
			return nil
		case hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual:
			if m.instance == nil || !m.instance.phase.Final() {
				return m.queue(stateChange{kind: requestStart})
			}
			if m.strategy == hypervisor.RunStrategyRerunOnFailure && m.instance.phase == hypervisor.PhaseFailed {
				return hypervisor.Conflictf("%s does not support starting VM from failed state", m.strategy)
			}
			return m.queue(stateChange{kind: requestStop, uid: m.instance.uid}, stateChange{kind: requestStart})
		case hypervisor.RunStrategyAlways, hypervisor.RunStrategyOnce:
			return hypervisor.Conflictf("%s does not support manual start requests", m.strategy)
		default:
			// KubeVirt has no case for other strategies: 202 and nothing happens.
			return nil
		}
	})
}

// Stop is KubeVirt's stop subresource.
func (s *Simulator) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	return s.request(ctx, ref, VerbStop, func(m *machine) error {
		switch m.strategy {
		case hypervisor.RunStrategyHalted:
			if !m.live() {
				return hypervisor.Conflictf("VM is not running")
			}
			if grace == nil || *grace >= m.instance.grace {
				if grace != nil {
					// KubeVirt refuses after it has written the instance's.
					m.setGrace(*grace)
					m.syncLater(s.delays.Control)
				}
				return hypervisor.Conflictf("%s only supports manual stop requests with a shorter graceperiod", m.strategy)
			}
			m.setGrace(*grace)
			m.requestStop()
		case hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual:
			if !m.live() {
				return hypervisor.Conflictf("VM is not running")
			}
			if grace != nil {
				m.setGrace(*grace)
			}
			m.requestStop()
		case hypervisor.RunStrategyAlways, hypervisor.RunStrategyOnce:
			if m.live() && grace != nil {
				m.setGrace(*grace)
			}
			m.strategy = hypervisor.RunStrategyHalted
		default:
			// As for start: accepted, and nothing happens.
		}
		return nil
	})
}

// Restart is KubeVirt's restart subresource.
func (s *Simulator) Restart(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbRestart, func(m *machine) error {
		if m.strategy == hypervisor.RunStrategyHalted || m.strategy == hypervisor.RunStrategyOnce {
			// Spelled as KubeVirt does.
			return hypervisor.Conflictf("RunStategy %s does not support manual restart requests", m.strategy)
		}
		if m.instance == nil {
			return hypervisor.Conflictf("VM is not running: %s", hypervisor.RunStrategyHalted)
		}
		return m.queue(stateChange{kind: requestStop, uid: m.instance.uid}, stateChange{kind: requestStart})
	})
}

// queue accepts requests unless others wait.
func (m *machine) queue(changes ...stateChange) error {
	if len(m.changes) > 0 {
		return hypervisor.ErrUnderway
	}
	m.changes = changes
	m.forgive()
	return nil
}

// requestStop replaces whatever requests wait.
func (m *machine) requestStop() {
	m.changes = []stateChange{{kind: requestStop, uid: m.instance.uid}}
	m.forgive()
}

// forgive ends the back-off, as each request that KubeVirt queues does.
func (m *machine) forgive() {
	m.failures = 0
	m.retryAt = time.Time{}
}

// Reset is KubeVirt's reset subresource of the instance.
func (s *Simulator) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbReset, func(m *machine) error {
		if m.instance == nil {
			return hypervisor.ErrNoInstance
		}
		if !m.running() {
			return hypervisor.Invalidf("VMI is not running")
		}
		m.boot(m.instance)
		return nil
	})
}

// SoftReboot is KubeVirt's softreboot subresource of the instance.
func (s *Simulator) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbSoftReboot, func(m *machine) error {
		i := m.instance
		switch {
		case i == nil:
			return hypervisor.ErrNoInstance
		case !m.running():
			return hypervisor.Conflictf("VM is not running")
		case i.paused:
			return hypervisor.Conflictf("VMI is paused")
		case m.ignoreACPI && !i.agent:
			// Accepted, and not acted on before the guest switches itself off.
			i.rebootPending = !i.deleting
			return nil
		}
		boots := i.boots
		m.afterOn(i, m.simulator.delays.Shutdown, func() {
			if m.running() && !i.deleting && i.boots == boots {
				m.boot(i)
			}
		})
		return nil
	})
}

// Pause is KubeVirt's pause subresource of the instance.
func (s *Simulator) Pause(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbPause, func(m *machine) error {
		switch {
		case m.instance == nil:
			return hypervisor.ErrNoInstance
		case !m.running():
			return hypervisor.Conflictf("VM is not running")
		case m.instance.paused:
			return hypervisor.Conflictf("VMI is already paused")
		}
		m.instance.paused = true
		if m.instance.deleting {
			// A frozen guest does not shut down.
			m.scheduleEnd(m.instance)
		}
		return nil
	})
}

// Unpause is KubeVirt's unpause subresource of the instance.
func (s *Simulator) Unpause(ctx context.Context, ref hypervisor.Ref) error {
	return s.request(ctx, ref, VerbUnpause, func(m *machine) error {
		switch {
		case m.instance == nil:
			return hypervisor.ErrNoInstance
		case !m.running():
			return hypervisor.Conflictf("VMI is not running")
		case !m.instance.paused:
			return hypervisor.Conflictf("VMI is not paused")
		}
		m.instance.paused = false
		if m.instance.deleting {
			m.scheduleEnd(m.instance)
		}
		return nil
	})
}

// SetRunStrategy patches spec.runStrategy.
func (s *Simulator) SetRunStrategy(ctx context.Context, ref hypervisor.Ref, from, to hypervisor.RunStrategy) error {
	return s.request(ctx, ref, VerbSetRunStrategy, func(m *machine) error {
		if m.strategy != from {
			return hypervisor.ErrStale
		}
		m.strategy = to
		return nil
	})
}

// DeleteInstance deletes the VirtualMachineInstance object.
func (s *Simulator) DeleteInstance(ctx context.Context, ref hypervisor.Ref, uid string) error {
	return s.request(ctx, ref, VerbDeleteInstance, func(m *machine) error {
		if m.instance == nil || m.instance.uid != uid {
			return hypervisor.ErrNoInstance
		}
		m.delete()
		return nil
	})
}

// SetBoot patches the boot orders in the template.
func (s *Simulator) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	return s.request(ctx, ref, VerbSetBoot, func(m *machine) error {
		if m.snapshot.Load().ResourceVersion != resourceVersion {
			return hypervisor.ErrStale
		}
		return m.setBoot(orders, mode)
	})
}

// SetState patches the annotation that keeps the services' state.
func (s *Simulator) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	return s.request(ctx, ref, VerbSetState, func(m *machine) error {
		if (m.state == nil) != (old == nil) || !bytes.Equal(m.state, old) {
			return hypervisor.ErrStale
		}
		m.state = bytes.Clone(state)
		return nil
	})
}

// OpenConsole is KubeVirt's console subresource of the instance.
func (s *Simulator) OpenConsole(ctx context.Context, ref hypervisor.Ref) (io.ReadWriteCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := s.machine(ref)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone:
		return nil, hypervisor.ErrNotFound
	case m.spec.NoSerialConsole:
		return nil, hypervisor.ErrUnsupported
	case !m.running():
		return nil, hypervisor.ErrNoInstance
	}
	if err := m.fault(VerbOpenConsole); err != nil {
		return nil, err
	}
	if m.instance.moving {
		return nil, fmt.Errorf("%w: open console: the guest is on its way to another node", hypervisor.ErrUnavailable)
	}
	m.hangUp()
	m.console = newConsoleConn(m)
	return m.console, nil
}
