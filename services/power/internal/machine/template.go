// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/record"
)

// templatePatch brings overrides into the machine's template and takes them out
// again: for hypervisors where nothing can change an instance as it is made.
type templatePatch struct{ engine *Engine }

func (t templatePatch) arm(m *hypervisor.Machine, next, earlier *record.Override) *record.Override {
	next.Stage = record.Arming
	next.InstanceUID = ""
	if m.Instance != nil {
		next.InstanceUID = m.Instance.UID
	}
	next.Before = bootorder.Orders(m.Devices)
	own, mode := t.own(m, earlier)
	keepOwn(m, next, own)
	next.Planned = plan(m, next.Target, own)
	planMode(m, next, mode)
	return next
}

// plan returns the orders that a target asks for; nil when the machine has no
// such device.
func plan(m *hypervisor.Machine, target record.Target, own map[string]int) map[string]int {
	if target == record.TargetNone {
		return own
	}
	return bootorder.Plan(m.Devices, own, target.Device())
}

// keepOwn notes in an override the orders that the machine's template has without
// it.
func keepOwn(m *hypervisor.Machine, o *record.Override, own map[string]int) {
	o.Own, o.Kinds = own, make(map[string]hypervisor.DeviceKind, len(own))
	for _, d := range m.Devices {
		if _, ok := own[d.Name]; ok {
			o.Kinds[d.Name] = d.Kind
		}
	}
}

// planMode says in an override which firmware mode it wants over the machine's
// own, unless the template has that already and keeps it.
func planMode(m *hypervisor.Machine, o *record.Override, own hypervisor.FirmwareMode) {
	wanted := cmp.Or(o.Mode, own)
	o.OwnMode, o.PlannedMode = "", ""
	if wanted != own || m.Firmware.Mode != own {
		o.OwnMode, o.PlannedMode = own, wanted
	}
}

func (templatePatch) clear(earlier, rest *record.Override, id string) *record.Override {
	restoring := *earlier
	restoring.Stage = record.Restoring
	restoring.Next = rest
	restoring.Cleared = id
	return &restoring
}

// takeBack: the template may have the orders of either, whatever the caller was
// told.
func (t templatePatch) takeBack(m *hypervisor.Machine, failed, earlier *record.Override) *record.Override {
	back := *failed
	back.Stage = record.Restoring
	switch {
	case !earlier.Active():
		back.Next = earlier
		return &back
	case earlier.Stage == record.Restoring:
		back.Next = earlier.Next
		return &back
	}
	own, mode := t.own(m, failed)
	back = *earlier
	back.Stage = record.Arming
	back.Before = failed.Planned
	if failed.ID == earlier.ID {
		// It was to be cleared: what was written is the template's own.
		back.Before = own
	}
	keepOwn(m, &back, own)
	if planned := plan(m, back.Target, own); planned != nil {
		back.Planned = planned
	}
	back.OwnMode, back.PlannedMode = mode, cmp.Or(back.Mode, mode)
	return &back
}

func (templatePatch) rebase(m *hypervisor.Machine, o *record.Override, mode hypervisor.FirmwareMode) *record.Override {
	based := *o
	if based.Mode != "" {
		based.Mode = mode
	}
	based.OwnMode, based.PlannedMode = mode, mode
	if based.Stage == record.Armed {
		based.Stage = record.Arming
		based.Before = bootorder.Orders(m.Devices)
	}
	return &based
}

// reorder: what the template has now may be the override's or, in part, the machine's
// own, and gives way to the new order either way.
func (t templatePatch) reorder(m *hypervisor.Machine, o *record.Override, orders map[string]int) *record.Override {
	based := *o
	based.Before = bootorder.Orders(m.Devices)
	keepOwn(m, &based, orders)
	if based.Stage == record.Restoring {
		return &based
	}
	based.Stage = record.Arming
	if planned := plan(m, based.Target, orders); planned != nil {
		based.Planned = planned
	}
	return &based
}

// used: an instance that came after the override was armed boots first from the
// device that the override chose, in its firmware mode, and has a guest that
// runs or has run.
func (templatePatch) used(m *hypervisor.Machine, o *record.Override) bool {
	i := m.Instance
	return o.Active() && o.Persistence == record.Once && i != nil && i.UID != o.InstanceUID &&
		(i.Phase == hypervisor.PhaseSucceeded || !i.Started.IsZero()) &&
		(o.Target == record.TargetNone || bootorder.SameFirst(i.BootOrder, o.Planned)) &&
		(o.PlannedMode == "" || i.Mode == o.PlannedMode)
}

func (templatePatch) own(m *hypervisor.Machine, o *record.Override) (map[string]int, hypervisor.FirmwareMode) {
	if o.Active() {
		return bootorder.Restore(m.Devices, o.Own, o.Planned, o.Before), cmp.Or(o.OwnMode, m.Firmware.Mode)
	}
	return bootorder.Orders(m.Devices), m.Firmware.Mode
}

func (t templatePatch) settle(ctx context.Context, m *hypervisor.Machine, o *record.Override) (settled bool, err error) {
	e, ref := t.engine, m.Ref
	switch o.Stage {
	case record.Arming:
		own, _ := t.own(m, o)
		planned := plan(m, o.Target, own)
		if planned == nil {
			// The device has gone since.
			return false, e.updateOverride(ctx, ref, o, func(o *record.Override) { o.Stage = record.Restoring })
		}
		if !sameOrders(planned, o.Planned) || !sameOrders(own, o.Own) {
			// Somebody has changed the template since it was recorded.
			return false, e.updateOverride(ctx, ref, o, func(o *record.Override) {
				keepOwn(m, o, own)
				o.Planned = planned
			})
		}
		if !shows(m, planned, o.PlannedMode) {
			return false, t.setBoot(ctx, m, planned, o.PlannedMode)
		}
		return false, e.updateOverride(ctx, ref, o, func(o *record.Override) {
			o.Stage = record.Armed
			o.Before = nil
			if o.OwnMode == o.PlannedMode {
				// The mode is the machine's own now; what its owner makes of it stays.
				o.OwnMode, o.PlannedMode = "", ""
			}
		})
	case record.Armed:
		if !t.used(m, o) {
			return true, nil
		}
		e.logger(ref).Info("boot override used", slog.String(logkey.Action, string(o.Target)))
		return false, e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
			if rec.Override == nil || rec.Override.ID != o.ID || rec.Override.Stage != record.Armed {
				return errUnchanged
			}
			rec.Override.Stage = record.Restoring
			rec.Power.UsedOverride = o.ID
			return nil
		})
	case record.Restoring:
		if own, _ := t.own(m, o); !shows(m, own, o.OwnMode) {
			return false, t.setBoot(ctx, m, own, o.OwnMode)
		}
		return false, e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
			if rec.Override == nil || rec.Override.ID != o.ID || rec.Override.Stage != record.Restoring {
				return errUnchanged
			}
			rec.Override = rec.Override.Next
			return nil
		})
	default:
		return true, nil
	}
}

// shows tells whether the template has the orders and the mode, unless that is
// empty.
func shows(m *hypervisor.Machine, orders map[string]int, mode hypervisor.FirmwareMode) bool {
	return bootorder.Equal(m.Devices, orders) && (mode == "" || m.Firmware.Mode == mode)
}

// setBoot writes orders and mode to the template; a template that has changed since it
// was read is looked at again.
func (t templatePatch) setBoot(ctx context.Context, m *hypervisor.Machine, orders map[string]int, mode hypervisor.FirmwareMode) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	err := t.engine.hypervisor.SetBoot(ctx, m.Ref, m.ResourceVersion, orders, mode)
	if errors.Is(err, hypervisor.ErrStale) {
		return nil
	}
	return err
}

func sameOrders(a, b map[string]int) bool {
	for name, order := range a {
		if b[name] != order {
			return false
		}
	}
	for name, order := range b {
		if a[name] != order {
			return false
		}
	}
	return true
}
