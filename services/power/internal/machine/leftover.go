// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"maps"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/record"
)

// adopt makes a one-time override that an earlier version has left in the machine's
// template one of ours, which is used and restored as those are. It changes the
// record alone, the same way each time until that is written.
func adopt(m *hypervisor.Machine, rec *record.Record) {
	left := rec.Leftover
	if left == nil {
		return
	}
	rec.Leftover = nil
	now := bootorder.Orders(m.Devices)
	own := maps.Clone(now)
	for _, d := range m.Devices {
		if order, ok := left.Orders[bootoverride.DeviceKey(d)]; ok {
			own[d.Name] = order
		}
	}
	changed := left.Mode != "" && left.Mode != m.Firmware.Mode
	if !changed && maps.Equal(own, now) {
		return // The earlier version has restored it.
	}
	o := &record.Override{
		ID: left.ID, Target: firstTarget(m), Persistence: record.Once, Stage: record.Armed,
		InstanceUID: left.InstanceUID, Planned: now,
	}
	keepOwn(m, o, own)
	if changed {
		o.Mode, o.OwnMode, o.PlannedMode = m.Firmware.Mode, left.Mode, m.Firmware.Mode
	}
	switch later := rec.Override; {
	case later.ByTemplate():
		// What that took for the template's own was the leftover's.
		later.Own, later.Kinds = o.Own, o.Kinds
		if changed && later.OwnMode == "" {
			later.OwnMode, later.PlannedMode = o.OwnMode, o.PlannedMode
		}
	case later.Active():
		rec.Override = templatePatch{}.clear(o, later, left.ID)
	default:
		rec.Override = o
	}
}

// keepAdopted writes down what read has adopted.
func (e *Engine) keepAdopted(ctx context.Context, ref hypervisor.Ref) error {
	m, err := e.hypervisor.Get(ref)
	if err != nil {
		return err
	}
	rec, err := record.Parse(m.State)
	if err != nil || rec.Leftover == nil {
		return err
	}
	if err := e.update(ctx, ref, func(*hypervisor.Machine, *record.Record) error { return nil }); err != nil {
		return err
	}
	e.logger(ref).Info("boot override of an earlier version adopted")
	return nil
}

// firstTarget is what the machine's template boots from first.
func firstTarget(m *hypervisor.Machine) record.Target {
	for _, d := range bootorder.Sort(m.Devices, bootorder.Orders(m.Devices)) {
		for _, target := range []record.Target{record.TargetPXE, record.TargetHDD, record.TargetCD} {
			if d.Order > 0 && target.Device() == d.Kind {
				return target
			}
		}
	}
	return record.TargetNone
}
