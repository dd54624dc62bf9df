// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"context"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Machines are a hypervisor's machines with the state that their BMCs keep. A
// machine without a BMC has no state and can't be given one.
type Machines struct {
	inner hypervisor.Machines
	store *Store
}

var (
	_ hypervisor.Machines = (*Machines)(nil)
	_ hypervisor.State    = (*Machines)(nil)
)

// WithState returns the machines of a hypervisor with the state from the store.
func WithState(machines hypervisor.Machines, store *Store) *Machines {
	return &Machines{inner: machines, store: store}
}

// Get returns a machine.
func (m *Machines) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	if err := m.store.checkReady(); err != nil {
		return nil, err
	}
	machine, err := m.inner.Get(ref)
	if err != nil {
		return nil, err
	}
	return m.with(machine), nil
}

// List returns all machines.
func (m *Machines) List() ([]*hypervisor.Machine, error) {
	if err := m.store.checkReady(); err != nil {
		return nil, err
	}
	machines, err := m.inner.List()
	if err != nil {
		return nil, err
	}
	for n, machine := range machines {
		machines[n] = m.with(machine)
	}
	return machines, nil
}

// with returns a machine with its BMC's state in place of its own.
func (m *Machines) with(machine *hypervisor.Machine) *hypervisor.Machine {
	changed := *machine
	changed.State = nil
	if bmc := m.store.Of(machine.Ref); bmc != nil {
		changed.State = State(bmc, machine.UID)
	}
	return &changed
}

// Subscribe calls changed after each change of a machine or of its BMC.
func (m *Machines) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	machines, bmcs := m.inner.Subscribe(changed), m.store.Subscribe(changed)
	return func() {
		machines()
		bmcs()
	}
}

// SetState replaces the state that the machine's BMC keeps.
func (m *Machines) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	machine, err := m.inner.Get(ref)
	if err != nil {
		return err
	}
	return m.store.SetState(ctx, ref, machine.UID, old, state)
}
