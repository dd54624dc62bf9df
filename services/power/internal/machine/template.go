// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"log/slog"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/bootorder"
	"kubevirtbmc.dev/services/power/internal/record"
)

// templatePatch brings overrides into the machine's template and takes them out
// again: for hypervisors where nothing can change an instance as it is made.
type templatePatch struct{ engine *Engine }

func (templatePatch) arm(m *hypervisor.Machine, next, earlier *record.Override) {
	next.Stage = record.Arming
	next.InstanceUID = ""
	if m.Instance != nil {
		next.InstanceUID = m.Instance.UID
	}
	next.Before = bootorder.Orders(m.Devices)
	next.Own = templatePatch{}.own(m, earlier)
	next.Planned = bootorder.Plan(m.Devices, next.Own, kindOf[next.Target])
}

func (templatePatch) clear(earlier, rest *record.Override) *record.Override {
	restoring := *earlier
	restoring.Stage = record.Restoring
	restoring.Next = rest
	return &restoring
}

// takeBack: the template may have the orders of either, whatever the caller was
// told.
func (templatePatch) takeBack(m *hypervisor.Machine, failed, earlier *record.Override) *record.Override {
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
	own := templatePatch{}.own(m, failed)
	back = *earlier
	back.Stage = record.Arming
	back.Before = failed.Planned
	if failed.ID == earlier.ID {
		// It was to be cleared: what was written is the template's own.
		back.Before = own
	}
	back.Own = own
	if planned := bootorder.Plan(m.Devices, own, kindOf[back.Target]); planned != nil {
		back.Planned = planned
	}
	return &back
}

// used: an instance that came after the override was armed boots first from the
// device that the override chose, and has a guest that runs or has run.
func (templatePatch) used(m *hypervisor.Machine, o *record.Override) bool {
	i := m.Instance
	return o.Active() && o.Persistence == record.Once && i != nil && i.UID != o.InstanceUID &&
		(i.Phase == hypervisor.PhaseSucceeded || !i.Started.IsZero()) &&
		bootorder.SameFirst(i.BootOrder, o.Planned)
}

func (templatePatch) own(m *hypervisor.Machine, o *record.Override) map[string]int {
	if o.Active() {
		return bootorder.Restore(m.Devices, o.Own, o.Planned, o.Before)
	}
	return bootorder.Orders(m.Devices)
}

func (t templatePatch) settle(ctx context.Context, m *hypervisor.Machine, o *record.Override) (settled bool, err error) {
	e, ref := t.engine, m.Ref
	switch o.Stage {
	case record.Arming:
		own := t.own(m, o)
		planned := bootorder.Plan(m.Devices, own, kindOf[o.Target])
		if planned == nil {
			// The device has gone since.
			return false, e.updateOverride(ctx, ref, o, func(o *record.Override) { o.Stage = record.Restoring })
		}
		if !sameOrders(planned, o.Planned) || !sameOrders(own, o.Own) {
			// Somebody has changed the template since it was recorded.
			return false, e.updateOverride(ctx, ref, o, func(o *record.Override) { o.Own, o.Planned = own, planned })
		}
		if !bootorder.Equal(m.Devices, planned) {
			return false, t.setBoot(ctx, m, planned)
		}
		return false, e.updateOverride(ctx, ref, o, func(o *record.Override) {
			o.Stage = record.Armed
			o.Before = nil
		})
	case record.Armed:
		if !t.used(m, o) {
			return true, nil
		}
		e.logger(ref).Info("boot override used", slog.String(logkey.Action, string(o.Target)))
		return false, e.updateOverride(ctx, ref, o, func(o *record.Override) { o.Stage = record.Restoring })
	case record.Restoring:
		if own := t.own(m, o); !bootorder.Equal(m.Devices, own) {
			return false, t.setBoot(ctx, m, own)
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

// setBoot writes orders to the template; a template that has changed since it
// was read is looked at again.
func (t templatePatch) setBoot(ctx context.Context, m *hypervisor.Machine, orders map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	err := t.engine.hypervisor.SetBoot(ctx, m.Ref, m.ResourceVersion, orders, "")
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
