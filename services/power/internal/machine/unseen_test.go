// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// doubtful answers a write of the state that succeeded with an error, once.
type doubtful struct {
	*simulator.Simulator
	answer atomic.Pointer[error]
	// when is what the state has to have in it for that.
	when string
}

func (d *doubtful) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	err := d.Simulator.SetState(ctx, ref, old, state)
	if !bytes.Contains(state, []byte(d.when)) {
		return err
	}
	if answer := d.answer.Swap(nil); err == nil && answer != nil {
		return *answer
	}
	return err
}

// onDoubtful replaces the bed's engine by one whose next write is answered so.
func (b *bed) onDoubtful() *doubtful {
	b.Helper()
	b.kill()
	d := &doubtful{Simulator: b.simulator}
	b.start(d, "holder")
	synctest.Wait()
	return d
}

var errLost = fmt.Errorf("%w: the answer was lost", hypervisor.ErrUnavailable)

// TestEngine_unseenIsAccepted: what is written down is going to be carried out,
// so it is not refused.
func TestEngine_unseenIsAccepted(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.do(transition.ActionOn)
		d := b.onDoubtful()
		d.answer.Store(&hypervisor.ErrUnseen)
		if op := b.ask(transition.ActionForceOff).Operation; !op.Active() || op.Action != transition.ActionForceOff {
			b.Errorf("got operation %+v, want the one that was asked for", op)
		}
		b.settle()
		b.state(transition.Absent)
		d.answer.Store(&hypervisor.ErrUnseen)
		b.arm(record.Once, record.TargetCD)
		b.do(transition.ActionOn)
		b.bootedFrom("cdrom")
	})
}

// TestEngine_doubtfulOverrideLeavesNothing: an override that was refused does not
// count although its write went through.
func TestEngine_doubtfulOverrideLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]record.Persistence{"none before": record.Disabled, "one before": record.Continuous} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				target := record.TargetNone
				if earlier != record.Disabled {
					target = record.TargetPXE
				}
				b.arm(earlier, target)
				before := b.get().Devices
				d := b.onDoubtful()
				d.answer.Store(&errLost)
				err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Once, Target: record.TargetCD})
				if !errors.Is(err, hypervisor.ErrUnavailable) {
					b.Fatalf("got error %v, want %v", err, hypervisor.ErrUnavailable)
				}
				b.settle()
				b.override(earlier)
				for n, d := range b.get().Devices {
					if d.Order != before[n].Order {
						b.Errorf("device %s has order %d, had %d", d.Name, d.Order, before[n].Order)
					}
				}
				// Nothing of it is left that would hinder the next.
				b.arm(record.Once, record.TargetCD)
				b.do(transition.ActionOn)
				b.bootedFrom("cdrom")
			})
		})
	}
}

// stuck holds SetBoot up until it is let go.
type stuck struct {
	*simulator.Simulator
	entered, leave chan struct{}
}

func (s *stuck) SetBoot(ctx context.Context, ref hypervisor.Ref, version string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	s.entered <- struct{}{}
	select {
	case <-s.leave:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Simulator.SetBoot(ctx, ref, version, orders, mode)
}

// TestEngine_overrideWaitsNoLongerThanItsCaller: a step that is being taken for
// the machine does not hold a caller up past its own time.
func TestEngine_overrideWaitsNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.kill()
		s := &stuck{Simulator: b.simulator, entered: make(chan struct{}), leave: make(chan struct{})}
		b.start(s, "holder")
		first := make(chan error, 1)
		go func() {
			first <- b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Once, Target: record.TargetCD})
		}()
		<-s.entered
		ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		err := b.engine.SetOverride(ctx, ref, record.Override{Persistence: record.Once, Target: record.TargetPXE})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			b.Errorf("after %s: %v", time.Since(began), err)
		}
		close(s.leave)
		if err := <-first; err != nil {
			b.Error(err)
		}
		b.override(record.Once)
	})
}

// refusing refuses a write of the state, once.
type refusing struct {
	*simulator.Simulator
	refuse atomic.Bool
}

func (r *refusing) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	if r.refuse.Swap(false) {
		return errLost
	}
	return r.Simulator.SetState(ctx, ref, old, state)
}

// belated answers no write while it is lossy, and carries the first of them out
// after a while all the same.
type belated struct {
	*simulator.Simulator
	lossy   atomic.Bool
	writes  atomic.Int32
	carried chan error
}

func (l *belated) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	if !l.lossy.Load() {
		return l.Simulator.SetState(ctx, ref, old, state)
	}
	if l.writes.Add(1) == 1 {
		go func() {
			time.Sleep(5 * time.Second)
			l.carried <- l.Simulator.SetState(context.WithoutCancel(ctx), ref, old, state)
		}()
	}
	return errLost
}

// TestEngine_secondLostRequestHidesNoFirst: both callers were told that their
// overrides were not set, so neither stays.
func TestEngine_secondLostRequestHidesNoFirst(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.kill()
		l := &belated{Simulator: b.simulator, carried: make(chan error, 1)}
		b.start(l, "holder")
		synctest.Wait()
		l.lossy.Store(true)
		for _, target := range []record.Target{record.TargetCD, record.TargetPXE} {
			err := b.engine.SetOverride(b.Context(), ref, record.Override{Persistence: record.Continuous, Target: target})
			if !errors.Is(err, hypervisor.ErrUnavailable) {
				b.Fatalf("got error %v, want %v", err, hypervisor.ErrUnavailable)
			}
		}
		l.lossy.Store(false)
		b.ok(<-l.carried)
		b.settle()
		b.override(record.Disabled)
		b.orders(own)
	})
}

// slowBoot takes a while to write a template, as an API server does.
type slowBoot struct{ *simulator.Simulator }

func (s slowBoot) SetBoot(ctx context.Context, ref hypervisor.Ref, version string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	time.Sleep(10 * time.Millisecond)
	return s.Simulator.SetBoot(ctx, ref, version, orders, mode)
}

// TestEngine_clearedElsewhere: a clearing that failed here does not bring back
// what another process clears then.
func TestEngine_clearedElsewhere(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		b.kill()
		r := &refusing{Simulator: b.simulator}
		b.start(r, "one")
		one, killOne := b.engine, b.kill
		b.start(slowBoot{b.simulator}, "two")
		killTwo := b.kill
		b.kill = func() { killTwo(); killOne() }
		b.arm(record.Continuous, record.TargetPXE)
		synctest.Wait()
		r.refuse.Store(true)
		if err := one.SetOverride(b.Context(), ref, record.Override{Persistence: record.Disabled, Target: record.TargetNone}); err == nil {
			b.Fatal("a write that was refused went well")
		}
		time.Sleep(time.Second)
		b.arm(record.Disabled, record.TargetNone)
		b.settle()
		b.override(record.Disabled)
		b.orders(own)
	})
}

// TestEngine_modeThatItsOwnerHasChosenSince stays when an override goes.
func TestEngine_modeThatItsOwnerHasChosenSince(t *testing.T) {
	t.Parallel()
	bubble(t, bothModes, func(b *bed) {
		b.arm(record.Continuous, record.TargetPXE)
		b.ok(b.engine.SetFirmwareMode(b.Context(), ref, hypervisor.FirmwareUEFI))
		b.settle()
		b.ok(b.simulator.SetBoot(b.Context(), ref, b.get().ResourceVersion, nil, hypervisor.FirmwareBIOS))
		b.arm(record.Disabled, record.TargetNone)
		b.modes(hypervisor.FirmwareBIOS, "", hypervisor.FirmwareBIOS)
		b.orders(own)
	})
}
