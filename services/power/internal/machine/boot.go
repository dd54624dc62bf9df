// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/bootorder"
	"kubevirtbmc.dev/services/power/internal/record"
)

// BootStatus is a machine's boot status.
type BootStatus struct {
	// Override is the one in force; nil when there is none. Its stage and
	// orders mean nothing to readers.
	Override *record.Override
	Mode     hypervisor.FirmwareMode
	Targets  []record.Target
	Modes    []hypervisor.FirmwareMode
	// Devices are in the machine's own boot order.
	Devices []hypervisor.BootDevice
}

// kindOf has the kind of device of each target.
var kindOf = map[record.Target]hypervisor.DeviceKind{
	record.TargetPXE: hypervisor.DeviceInterface,
	record.TargetHDD: hypervisor.DeviceDisk,
	record.TargetCD:  hypervisor.DeviceCDROM,
}

// BootStatus returns a machine's boot status, from the cache.
func (e *Engine) BootStatus(ref hypervisor.Ref) (*BootStatus, error) {
	m, rec, err := e.read(ref)
	if err != nil {
		return nil, err
	}
	status := &BootStatus{
		Override: inForce(m, rec.Override),
		Mode:     m.Firmware.Mode,
		Devices:  bootorder.Sort(m.Devices, ownOrders(m, rec.Override)),
		Targets:  []record.Target{record.TargetNone},
	}
	if m.Firmware.Mode != "" {
		status.Modes = []hypervisor.FirmwareMode{m.Firmware.Mode}
	}
	if !m.Firmware.KernelBoot {
		for _, target := range []record.Target{record.TargetPXE, record.TargetHDD, record.TargetCD} {
			if hasKind(m, kindOf[target]) {
				status.Targets = append(status.Targets, target)
			}
		}
	}
	return status, nil
}

// inForce returns the override that readers see.
func inForce(m *hypervisor.Machine, o *record.Override) *record.Override {
	switch {
	case o == nil:
		return nil
	case o.Stage == record.Restoring || consumed(m, o):
		return o.Next
	default:
		return o
	}
}

// ownOrders returns the orders that the template has, or would have without the
// override.
func ownOrders(m *hypervisor.Machine, o *record.Override) map[string]int {
	if o.Patches() {
		return bootorder.Restore(m.Devices, o.Own, o.Planned, o.Before)
	}
	return bootorder.Orders(m.Devices)
}

// consumed tells whether a one-time override has been used: an instance that
// came after it was armed has its orders and a guest that runs or has run.
func consumed(m *hypervisor.Machine, o *record.Override) bool {
	i := m.Instance
	return o.Patches() && o.Persistence == record.Once && i != nil && i.UID != o.InstanceUID &&
		(i.Phase == hypervisor.PhaseSucceeded || !i.Started.IsZero()) &&
		bootorder.Matches(i.BootOrder, o.Planned)
}

// needsNewInstance tells whether a reset would leave out something that waits.
func needsNewInstance(m *hypervisor.Machine, rec *record.Record) bool {
	if m.Instance == nil {
		return false
	}
	o := inForce(m, rec.Override)
	return m.RestartRequired || m.OutOfDate() || o.Patches() && o.Persistence == record.Once
}

func hasKind(m *hypervisor.Machine, kind hypervisor.DeviceKind) bool {
	for _, d := range m.Devices {
		if d.Kind == kind {
			return true
		}
	}
	return false
}

// SetOverride replaces a machine's boot override. When it fails the earlier one
// still stands.
func (e *Engine) SetOverride(ctx context.Context, ref hypervisor.Ref, wanted record.Override) error {
	entry := e.entry(ref)
	entry.work.Lock()
	defer entry.work.Unlock()
	wanted.ID = rand.Text()
	if wanted.Persistence == record.Disabled || wanted.Target == record.TargetNone {
		wanted.Stage = record.Idle
	}
	for range writeAttempts {
		err := e.setOverride(ctx, ref, wanted)
		if errors.Is(err, hypervisor.ErrStale) && ctx.Err() == nil {
			continue
		}
		return err
	}
	return fmt.Errorf("%w: the machine changes too fast", hypervisor.ErrUnavailable)
}

func (e *Engine) setOverride(ctx context.Context, ref hypervisor.Ref, wanted record.Override) error {
	var earlier *record.Override
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		if err := check(m, &wanted); err != nil {
			return err
		}
		earlier = rec.Override
		next := wanted
		if next.Stage != record.Idle {
			next.Stage = record.Arming
			next.InstanceUID = ""
			if m.Instance != nil {
				next.InstanceUID = m.Instance.UID
			}
			next.Before = bootorder.Orders(m.Devices)
			next.Own = ownOrders(m, earlier)
			next.Planned = bootorder.Plan(m.Devices, next.Own, kindOf[next.Target])
			rec.Override = &next
			return nil
		}
		rest := idle(&next)
		if !earlier.Patches() {
			rec.Override = rest
			return nil
		}
		restoring := *earlier
		restoring.Stage = record.Restoring
		restoring.Next = rest
		rec.Override = &restoring
		return nil
	})
	if err != nil {
		return err
	}
	m, rec, err := e.read(ref)
	if err != nil {
		return err
	}
	for rec.Override.Patches() {
		settled, err := e.reconcileBoot(ctx, m, rec)
		if err != nil {
			if !errors.Is(err, hypervisor.ErrNotFound) {
				e.takeBack(ctx, ref, wanted.ID, earlier)
			}
			return err
		}
		if settled {
			break
		}
		if m, rec, err = e.read(ref); err != nil {
			return err
		}
	}
	e.logger(ref).Info("boot override set", slog.String(logkey.Action, string(wanted.Persistence)+" "+string(wanted.Target)))
	e.queue.add(ref)
	return nil
}

// idle is what stays of an override without effect: the flags that a client
// reads back.
func idle(o *record.Override) *record.Override {
	if len(o.Flags) == 0 {
		return nil
	}
	return &record.Override{
		ID: o.ID, Target: record.TargetNone, Persistence: record.Disabled, Flags: o.Flags, Stage: record.Idle,
	}
}

// check refuses an override that the machine can't have.
func check(m *hypervisor.Machine, o *record.Override) error {
	if o.Persistence == record.Disabled {
		return nil
	}
	if o.Mode != "" && o.Mode != m.Firmware.Mode {
		return fmt.Errorf("%s on a machine with %s: %w", o.Mode, m.Firmware.Mode, ErrBootMode)
	}
	if o.Target == record.TargetNone {
		return nil
	}
	if m.Firmware.KernelBoot {
		return ErrKernelBoot
	}
	if !hasKind(m, kindOf[o.Target]) {
		return fmt.Errorf("%s: %w", o.Target, ErrNoBootDevice)
	}
	return nil
}

// takeBack puts the earlier override into the record again after the new one
// could not be brought into the template.
func (e *Engine) takeBack(ctx context.Context, ref hypervisor.Ref, id string, earlier *record.Override) {
	err := e.update(context.WithoutCancel(ctx), ref, func(_ *hypervisor.Machine, rec *record.Record) error {
		o := rec.Override
		if o == nil || o.ID != id && (o.Stage != record.Restoring || earlier == nil || o.ID != earlier.ID) {
			return errUnchanged
		}
		rec.Override = earlier
		return nil
	})
	if err != nil {
		e.logger(ref).Warn("can't take boot override back", slog.String(logkey.Error, err.Error()))
	}
}

// reconcileBoot brings template and override together, one step at a time; it
// is settled when there is nothing to do.
func (e *Engine) reconcileBoot(ctx context.Context, m *hypervisor.Machine, rec *record.Record) (settled bool, err error) {
	ref, o := m.Ref, rec.Override
	switch o.Stage {
	case record.Arming:
		own := ownOrders(m, o)
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
			return false, e.setBoot(ctx, m, planned)
		}
		return false, e.updateOverride(ctx, ref, o, func(o *record.Override) {
			o.Stage = record.Armed
			o.Before = nil
		})
	case record.Armed:
		if !consumed(m, o) {
			return true, nil
		}
		e.logger(ref).Info("boot override used", slog.String(logkey.Action, string(o.Target)))
		return false, e.updateOverride(ctx, ref, o, func(o *record.Override) { o.Stage = record.Restoring })
	case record.Restoring:
		if own := ownOrders(m, o); !bootorder.Equal(m.Devices, own) {
			return false, e.setBoot(ctx, m, own)
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
func (e *Engine) setBoot(ctx context.Context, m *hypervisor.Machine, orders map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	err := e.hypervisor.SetBoot(ctx, m.Ref, m.ResourceVersion, orders, "")
	if errors.Is(err, hypervisor.ErrStale) {
		return nil
	}
	return err
}

// updateOverride changes an override that still is the one that was read.
func (e *Engine) updateOverride(ctx context.Context, ref hypervisor.Ref, o *record.Override, f func(*record.Override)) error {
	return e.update(ctx, ref, func(_ *hypervisor.Machine, rec *record.Record) error {
		if rec.Override == nil || rec.Override.ID != o.ID || rec.Override.Stage != o.Stage {
			return errUnchanged
		}
		f(rec.Override)
		return nil
	})
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
