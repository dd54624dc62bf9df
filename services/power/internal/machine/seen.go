// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"maps"
	"slices"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/record"
)

// Machine returns a machine, from the cache, with what its last instance showed
// of its hardware where nothing else tells it now. Whoever asks for a machine
// that runs has that kept beside it.
func (e *Engine) Machine(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	m, rec, err := e.read(ref)
	if err != nil {
		return nil, err
	}
	if !sameSeen(see(m, rec.Seen), rec.Seen) {
		entry := e.entry(ref)
		entry.mu.Lock()
		entry.see = true
		entry.mu.Unlock()
		e.queue.add(ref)
	}
	return remembered(m, rec.Seen), nil
}

// see returns what is to be kept of a machine's hardware: what its instance
// shows, else what was kept before.
func see(m *hypervisor.Machine, before *record.Seen) *record.Seen {
	if m.Instance == nil || m.Instance.Phase != hypervisor.PhaseRunning {
		return before
	}
	now := &record.Seen{MachineUID: m.UID, MACs: map[string]string{}, Capacities: map[string]int64{}}
	// An instance that has just started may not show all of it yet.
	hardware := remembered(m, before).Hardware
	for _, i := range hardware.Interfaces {
		if i.MAC != "" {
			now.MACs[i.Name] = i.MAC
		}
	}
	for _, d := range hardware.Disks {
		if d.CapacityBytes > 0 {
			now.Capacities[d.Name] = d.CapacityBytes
		}
	}
	if len(now.MACs) == 0 && len(now.Capacities) == 0 {
		return before
	}
	return now
}

func sameSeen(a, b *record.Seen) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.MachineUID == b.MachineUID && maps.Equal(a.MACs, b.MACs) && maps.Equal(a.Capacities, b.Capacities)
}

// keepSeen writes down what a machine's instance shows, if somebody has asked.
func (e *Engine) keepSeen(ctx context.Context, ref hypervisor.Ref) error {
	entry := e.entry(ref)
	entry.mu.Lock()
	wanted := entry.see
	entry.see = false
	entry.mu.Unlock()
	if !wanted {
		return nil
	}
	return e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		now := see(m, rec.Seen)
		if sameSeen(now, rec.Seen) {
			return errUnchanged
		}
		rec.Seen = now
		return nil
	})
}

// remembered fills the gaps in a machine's hardware with what was seen.
func remembered(m *hypervisor.Machine, seen *record.Seen) *hypervisor.Machine {
	if seen == nil || seen.MachineUID != m.UID {
		return m
	}
	whole := *m
	whole.Hardware.Interfaces = slices.Clone(m.Hardware.Interfaces)
	for n := range whole.Hardware.Interfaces {
		if i := &whole.Hardware.Interfaces[n]; i.MAC == "" {
			i.MAC = seen.MACs[i.Name]
		}
	}
	whole.Hardware.Disks = slices.Clone(m.Hardware.Disks)
	for n := range whole.Hardware.Disks {
		if d := &whole.Hardware.Disks[n]; d.CapacityBytes == 0 {
			d.CapacityBytes = seen.Capacities[d.Name]
		}
	}
	return &whole
}
