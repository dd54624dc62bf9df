// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"kubevirtbmc.dev/pkg/callctx"
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

// bootMethod is how an override reaches a machine's next instance.
type bootMethod interface {
	// arm completes a new override before it is recorded in the place of an
	// earlier one (nil: there was none).
	arm(m *hypervisor.Machine, next, earlier *record.Override)
	// clear returns what is recorded when an override is taken back and rest is
	// all that is to stay of it (nil: nothing).
	clear(earlier, rest *record.Override) *record.Override
	// takeBack returns what is recorded when failed, which may have been carried
	// out in part, gives way to the override that stood before it.
	takeBack(m *hypervisor.Machine, failed, earlier *record.Override) *record.Override
	// used tells whether a one-time override has been used.
	used(m *hypervisor.Machine, o *record.Override) bool
	// own returns the orders that the machine has without the override.
	own(m *hypervisor.Machine, o *record.Override) map[string]int
	// settle brings machine and override together, one step at a time; settled
	// when there is nothing to do.
	settle(ctx context.Context, m *hypervisor.Machine, o *record.Override) (settled bool, err error)
}

// BootStatus returns a machine's boot status, from the cache.
func (e *Engine) BootStatus(ref hypervisor.Ref) (*BootStatus, error) {
	m, rec, err := e.read(ref)
	if err != nil {
		return nil, err
	}
	status := &BootStatus{
		Override: e.inForce(m, rec.Override),
		Mode:     m.Firmware.Mode,
		Devices:  bootorder.Sort(m.Devices, e.boot.own(m, rec.Override)),
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
func (e *Engine) inForce(m *hypervisor.Machine, o *record.Override) *record.Override {
	switch {
	case o == nil:
		return nil
	case o.Stage == record.Restoring || e.boot.used(m, o):
		return o.Next
	default:
		return o
	}
}

// needsNewInstance tells whether a reset would leave out something that waits.
func (e *Engine) needsNewInstance(m *hypervisor.Machine, rec *record.Record) bool {
	if m.Instance == nil {
		return false
	}
	o := e.inForce(m, rec.Override)
	return m.RestartRequired || m.OutOfDate() || o.Active() && o.Persistence == record.Once
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
			e.boot.arm(m, &next, earlier)
			rec.Override = &next
			return nil
		}
		rec.Override = idle(&next)
		if earlier.Active() {
			rec.Override = e.boot.clear(earlier, rec.Override)
		}
		return nil
	})
	if err != nil {
		return err
	}
	m, rec, err := e.read(ref)
	if err != nil {
		return err
	}
	for rec.Override.Active() {
		settled, err := e.boot.settle(ctx, m, rec.Override)
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
	e.logger(ref).Info("boot override set", slog.String(logkey.Request, callctx.RequestID(ctx)),
		slog.String(logkey.Action, string(wanted.Persistence)+" "+string(wanted.Target)))
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
// could not be brought into the template. The template may show the new one all
// the same, so what is recorded brings it back.
func (e *Engine) takeBack(ctx context.Context, ref hypervisor.Ref, id string, earlier *record.Override) {
	err := e.update(context.WithoutCancel(ctx), ref, func(m *hypervisor.Machine, rec *record.Record) error {
		o := rec.Override
		if o == nil || o.ID != id && (o.Stage != record.Restoring || earlier == nil || o.ID != earlier.ID) {
			return errUnchanged
		}
		rec.Override = e.boot.takeBack(m, o, earlier)
		return nil
	})
	if err != nil {
		e.logger(ref).Warn("can't take boot override back", slog.String(logkey.Error, err.Error()))
	}
	e.queue.add(ref)
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
