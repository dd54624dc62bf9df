// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
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
	// InstanceMode is that of the present instance; empty: there is none.
	InstanceMode hypervisor.FirmwareMode
	SecureBoot   bool
}

// undoSettle is how long a write may take to show up whose request got no answer.
const undoSettle = 30 * time.Second

// bootMethod is how an override reaches a machine's next instance.
type bootMethod interface {
	// arm completes a new override and returns what is recorded in the place of
	// an earlier one (nil: there was none).
	arm(m *hypervisor.Machine, next, earlier *record.Override) *record.Override
	// clear returns what is recorded when an override is taken back and rest is
	// all that is to stay of it (nil: nothing). The request that does it has that
	// id.
	clear(earlier, rest *record.Override, id string) *record.Override
	// takeBack returns what is recorded when failed, which may have been carried
	// out in part, gives way to the override that stood before it.
	takeBack(m *hypervisor.Machine, failed, earlier *record.Override) *record.Override
	// used tells whether a one-time override has been used.
	used(m *hypervisor.Machine, o *record.Override) bool
	// own returns the orders and the firmware mode that the machine has without
	// the override.
	own(m *hypervisor.Machine, o *record.Override) (map[string]int, hypervisor.FirmwareMode)
	// rebase returns the override over another firmware mode of the machine's own.
	rebase(m *hypervisor.Machine, o *record.Override, mode hypervisor.FirmwareMode) *record.Override
	// reorder returns the override over another boot order of the machine's own.
	reorder(m *hypervisor.Machine, o *record.Override, orders map[string]int) *record.Override
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
	orders, mode := e.boot.own(m, rec.Override)
	status := &BootStatus{
		Override: e.inForce(m, rec.Override),
		Mode:     mode,
		Modes:    m.Firmware.Modes,
		Devices:  bootorder.Sort(m.Devices, orders),
		Targets:  []record.Target{record.TargetNone},

		SecureBoot: m.Firmware.SecureBoot && mode == hypervisor.FirmwareUEFI,
	}
	if m.Instance != nil && !m.Instance.Phase.Final() {
		status.InstanceMode = m.Instance.Mode
	}
	if !m.Firmware.KernelBoot {
		for _, target := range []record.Target{record.TargetPXE, record.TargetHDD, record.TargetCD} {
			if hasKind(m, target.Device()) {
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
// still stands. The mode of a Disabled one becomes the machine's own.
func (e *Engine) SetOverride(ctx context.Context, ref hypervisor.Ref, wanted record.Override) error {
	wanted.ID = rand.Text()
	return e.settled(ctx, ref, func() error { return e.setOverride(ctx, ref, wanted) })
}

// SetFirmwareMode changes a machine's own firmware mode, for its next instance
// on. An override under way takes the mode too.
func (e *Engine) SetFirmwareMode(ctx context.Context, ref hypervisor.Ref, mode hypervisor.FirmwareMode) error {
	return e.settled(ctx, ref, func() error { return e.setFirmwareMode(ctx, ref, mode) })
}

// SetBootOrder changes a machine's own boot order, for its next instance on, to the
// devices of these names; others have no place in it.
func (e *Engine) SetBootOrder(ctx context.Context, ref hypervisor.Ref, devices []string) error {
	return e.settled(ctx, ref, func() error { return e.setBootOrder(ctx, ref, devices) })
}

// settled calls set while nobody else works on the machine, again where the
// machine has changed in the meantime.
func (e *Engine) settled(ctx context.Context, ref hypervisor.Ref, set func() error) error {
	entry := e.entry(ref)
	if err := entry.lock(ctx); err != nil {
		return err
	}
	defer entry.unlock()
	for range writeAttempts {
		err := set()
		if errors.Is(err, hypervisor.ErrStale) && ctx.Err() == nil {
			continue
		}
		return err
	}
	return fmt.Errorf("%w: the machine changes too fast", hypervisor.ErrUnavailable)
}

func (e *Engine) setOverride(ctx context.Context, ref hypervisor.Ref, wanted record.Override) error {
	var earlier *record.Override
	var ownMode hypervisor.FirmwareMode
	if wanted.Persistence == record.Disabled {
		ownMode = wanted.Mode
	}
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		if err := check(m, &wanted); err != nil {
			return err
		}
		earlier = rec.Override
		if _, own := e.boot.own(m, earlier); acts(&wanted, own) {
			next := wanted
			if next.Persistence != record.Once {
				next.Validity = 0
			}
			if next.Validity > 0 {
				next.Time = time.Now().UTC()
			}
			next.Strategy = e.strategy(ref, &wanted)
			rec.Override = e.boot.arm(m, &next, earlier)
			return nil
		}
		rec.Override = idle(&wanted)
		if earlier.Active() {
			rec.Override = e.boot.clear(earlier, rec.Override, wanted.ID)
			if ownMode != "" && earlier.ByTemplate() {
				rec.Override = e.boot.rebase(m, rec.Override, ownMode)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, hypervisor.ErrUnseen):
		// It is recorded, and comes before any action that is recorded later.
		err = nil
	case errors.Is(err, hypervisor.ErrUnavailable), err != nil && ctx.Err() != nil:
		e.takeBack(ctx, ref, wanted.ID, earlier)
		return err
	case err == nil:
		err = e.bringIn(ctx, ref)
		if err == nil && ownMode != "" && !earlier.ByTemplate() {
			err = e.setFirmwareMode(ctx, ref, ownMode)
		}
		if err != nil && !errors.Is(err, hypervisor.ErrNotFound) {
			e.takeBack(ctx, ref, wanted.ID, earlier)
		}
	}
	if err != nil {
		return err
	}
	e.logger(ref).Info("boot override set", slog.String(logkey.Request, callctx.RequestID(ctx)),
		slog.String(logkey.Action, string(wanted.Persistence)+" "+string(wanted.Target)))
	e.queue.add(ref)
	return nil
}

// expire takes a one-time override back that has waited for as long as it is valid,
// and else returns when to look again; 0: not by time alone.
func (e *Engine) expire(ctx context.Context, ref hypervisor.Ref) (time.Duration, error) {
	m, rec, err := e.read(ref)
	if err != nil || standing(rec.Override) == nil || standing(rec.Override).Validity == 0 {
		return 0, err
	}
	if left := e.validFor(m, rec); left > 0 {
		return left, nil
	}
	expired := false
	err = e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		o := rec.Override
		expired = standing(o) != nil && o.Stage != record.Restoring && e.validFor(m, rec) <= 0
		if !expired {
			return errUnchanged
		}
		rec.Override = e.boot.clear(o, nil, rand.Text())
		return nil
	})
	if err == nil && expired {
		e.logger(ref).Info("boot override has expired", slog.String(logkey.Action, string(rec.Override.Target)))
	}
	return 0, err
}

// validFor is how long the override that stands is still valid. The time begins
// again with each power action and at its end, and does not end while the machine
// is on its way to use it.
func (e *Engine) validFor(m *hypervisor.Machine, rec *record.Record) time.Duration {
	o := standing(rec.Override)
	switch {
	case o == nil || o.Validity == 0:
		return time.Hour
	case rec.Power.Operation.Active(), m.StartQueued, m.Instance != nil && m.Instance.UID != o.InstanceUID,
		rec.Override.Stage == record.Restoring:
		return o.Validity // It is looked at with the next change.
	}
	since := o.Time
	if op := rec.Power.Operation; op != nil && op.End.After(since) {
		since = op.End
	}
	return time.Until(since.Add(o.Validity))
}

// strategy chooses how an override is carried out: a persistent one is for all
// instances, as the template is.
func (e *Engine) strategy(ref hypervisor.Ref, o *record.Override) record.Strategy {
	if o.Persistence == record.Once && e.admits != nil && e.admits(ref) {
		return record.Admission
	}
	return record.Template
}

// bringIn brings machine and override together as far as that goes now.
func (e *Engine) bringIn(ctx context.Context, ref hypervisor.Ref) error {
	for range writeAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, rec, err := e.read(ref)
		if err != nil {
			return err
		}
		if !rec.Override.Active() {
			return nil
		}
		settled, err := e.boot.settle(ctx, m, rec.Override)
		if err != nil || settled {
			return err
		}
	}
	return errNotKept
}

func (e *Engine) setFirmwareMode(ctx context.Context, ref hypervisor.Ref, mode hypervisor.FirmwareMode) error {
	var changed bool
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		changed = false
		if !slices.Contains(m.Firmware.Modes, mode) {
			return fmt.Errorf("%s on a machine with %s: %w", mode, m.Firmware.Mode, ErrBootMode)
		}
		_, own := e.boot.own(m, rec.Override)
		changed = own != mode
		if !rec.Override.Active() {
			return errUnchanged
		}
		rec.Override = e.boot.rebase(m, rec.Override, mode)
		return nil
	})
	if err != nil {
		return err
	}
	m, rec, err := e.read(ref)
	switch {
	case err != nil:
		return err
	case rec.Override.ByTemplate():
		err = e.bringIn(ctx, ref)
	case changed:
		within, cancel := context.WithTimeout(ctx, verbTimeout)
		defer cancel()
		err = e.hypervisor.SetBoot(within, ref, m.ResourceVersion, nil, mode)
	}
	if err != nil {
		return err
	}
	e.logger(ref).Info("firmware mode set", slog.String(logkey.Request, callctx.RequestID(ctx)), slog.String(logkey.Action, string(mode)))
	e.queue.add(ref)
	return nil
}

func (e *Engine) setBootOrder(ctx context.Context, ref hypervisor.Ref, devices []string) error {
	var orders map[string]int
	var changed bool
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		if m.Firmware.KernelBoot {
			return ErrKernelBoot
		}
		own, _ := e.boot.own(m, rec.Override)
		var missing string
		if orders, missing = bootorder.Number(m.Devices, devices); missing != "" {
			return fmt.Errorf("device %q: %w", missing, ErrNoBootDevice)
		}
		changed = !maps.Equal(orders, own)
		if !changed || !rec.Override.Active() || !rec.Override.ByTemplate() {
			return errUnchanged
		}
		rec.Override = e.boot.reorder(m, rec.Override, orders)
		return nil
	})
	if err != nil || !changed {
		return err
	}
	m, rec, err := e.read(ref)
	switch {
	case err != nil:
		return err
	case rec.Override.Active() && rec.Override.ByTemplate():
		err = e.bringIn(ctx, ref)
	default:
		within, cancel := context.WithTimeout(ctx, verbTimeout)
		defer cancel()
		err = e.hypervisor.SetBoot(within, ref, m.ResourceVersion, orders, "")
	}
	if err != nil {
		return err
	}
	e.logger(ref).Info("boot order set", slog.String(logkey.Request, callctx.RequestID(ctx)), slog.Any("devices", devices))
	e.queue.add(ref)
	return nil
}

// acts tells whether an override does anything to a machine whose own firmware
// mode is that.
func acts(o *record.Override, own hypervisor.FirmwareMode) bool {
	if o.Persistence == record.Disabled {
		return false
	}
	return o.Target != record.TargetNone || o.Mode != "" && o.Mode != own
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
	if o.Mode != "" && !slices.Contains(m.Firmware.Modes, o.Mode) {
		return fmt.Errorf("%s on a machine with %s: %w", o.Mode, m.Firmware.Mode, ErrBootMode)
	}
	if o.Persistence == record.Disabled || o.Target == record.TargetNone {
		return nil
	}
	if m.Firmware.KernelBoot {
		return ErrKernelBoot
	}
	if !hasKind(m, o.Target.Device()) {
		return fmt.Errorf("%s: %w", o.Target, ErrNoBootDevice)
	}
	return nil
}

// undo is what has to be done about overrides that could not be set.
type undo struct {
	// ids are theirs: several requests in a row may have got no answer.
	ids     []string
	earlier *record.Override
	// until is how long a write whose fate is unknown may still show up.
	until time.Time
}

// takeBack puts the earlier override into the record again after the new one
// could not be recorded or brought into the template. Record and template may
// show the new one all the same, now or later, so this goes on until the earlier
// one is certain to be there.
func (e *Engine) takeBack(ctx context.Context, ref hypervisor.Ref, id string, earlier *record.Override) {
	entry := e.entry(ref)
	entry.mu.Lock()
	next := &undo{ids: []string{id}, earlier: earlier, until: time.Now().Add(undoSettle)}
	if u := entry.undo; u != nil {
		next.ids = append(next.ids, u.ids...)
		if earlier != nil && slices.Contains(u.ids, earlier.ID) {
			next.earlier = u.earlier
		}
	}
	entry.undo = next
	entry.mu.Unlock()
	e.undone(context.WithoutCancel(ctx), ref)
	e.queue.add(ref)
}

// undone takes the next step of an undo and returns when to look again; failed
// when it has to come before other work on the machine.
func (e *Engine) undone(ctx context.Context, ref hypervisor.Ref) (again time.Duration, failed bool) {
	entry := e.entry(ref)
	entry.mu.Lock()
	u := entry.undo
	entry.mu.Unlock()
	if u == nil {
		return 0, false
	}
	over := false
	err := e.update(ctx, ref, func(m *hypervisor.Machine, rec *record.Record) error {
		over = true
		switch o := rec.Override; {
		case o != nil && (slices.Contains(u.ids, o.ID) || o.Next != nil && slices.Contains(u.ids, o.Next.ID)):
		case o != nil && slices.Contains(u.ids, o.Cleared) && u.earlier.Active() && u.earlier.Stage != record.Restoring:
			// The new one was to clear it.
		case sameOverride(o, u.earlier):
			over = time.Now().After(u.until)
			return errUnchanged
		default: // Another one has come since.
			return errUnchanged
		}
		rec.Override = e.boot.takeBack(m, rec.Override, u.earlier)
		return nil
	})
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		over = true
	case err != nil && !errors.Is(err, hypervisor.ErrUnseen):
		return e.retry(ref, "take boot override back", err), true
	}
	if !over {
		return undoSettle / 10, false
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if entry.undo == u {
		entry.undo = nil
	}
	return 0, false
}

func sameOverride(a, b *record.Override) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID
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
