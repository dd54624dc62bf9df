// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// template decides what comes of writes to a machine's template; each takes a
// while, as an API server's answer does.
type template struct {
	*simulator.Simulator
	// refuse is the answer to them; ignore drops them in silence, as an admission
	// webhook may.
	refuse atomic.Pointer[error]
	ignore atomic.Bool
	writes atomic.Int32
}

func (h *template) SetBoot(ctx context.Context, ref hypervisor.Ref, version string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	h.writes.Add(1)
	time.Sleep(10 * time.Millisecond)
	if refuse := h.refuse.Load(); refuse != nil {
		return *refuse
	}
	if h.ignore.Load() {
		return nil
	}
	return h.Simulator.SetBoot(ctx, ref, version, orders, mode)
}

func (b *bed) isOff() {
	b.Helper()
	if got := transition.Observe(b.get()); !got.Off() {
		b.Fatalf("state is %d, want off", got)
	}
}

// onTemplate replaces the bed's engine by one with such a template.
func (b *bed) onTemplate() *template {
	b.Helper()
	b.kill()
	h := &template{Simulator: b.simulator}
	b.start(h, "holder")
	synctest.Wait()
	return h
}

// TestEngine_powerDoesWithoutTheTemplate: an override that can't be taken out of
// the template keeps nobody from switching the machine off, and from being told
// why it does not start.
func TestEngine_powerDoesWithoutTheTemplate(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		h := b.onTemplate()
		b.arm(record.Once, record.TargetPXE)
		refused := hypervisor.Invalidf("the template is not to be changed")
		h.refuse.Store(&refused)
		b.ask(transition.ActionOn)
		b.settle()
		b.state(transition.Running)
		b.ok(b.simulator.SetIgnoreACPI(ref, true))
		h.writes.Store(0)
		b.do(transition.ActionGracefulShutdown) // It takes 45 s.
		b.isOff()
		if n := h.writes.Load(); n == 0 || n > 40 {
			b.Errorf("meanwhile the template was restored %d times", n)
		}
		if n := b.count(simulator.VerbStop); n != 1 {
			b.Errorf("the machine was stopped %d times", n)
		}

		status, err := b.engine.Transition(b.Context(), ref, transition.ActionOn, time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		if op := status.Operation; op.Phase != record.Failed || !strings.Contains(op.Message, "not to be changed") {
			b.Errorf("on ended as %s: %s", op.Phase, op.Message)
		}
		h.refuse.Store(nil)
		b.settle()
		b.do(transition.ActionOn)
		b.bootedFrom("rootdisk")
		b.orders(own)
	})
}

// TestEngine_templateThatStaysAsItIs: what is written and does not show is not
// written again and again.
func TestEngine_templateThatStaysAsItIs(t *testing.T) {
	t.Parallel()
	bubble(t, withISO, func(b *bed) {
		h := b.onTemplate()
		h.ignore.Store(true)
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		err := b.engine.SetOverride(ctx, ref, record.Override{Persistence: record.Once, Target: record.TargetCD})
		if !errors.Is(err, hypervisor.ErrUnavailable) {
			b.Errorf("got error %v, want %v", err, hypervisor.ErrUnavailable)
		}
		if n := h.writes.Load(); n > 100 {
			b.Errorf("the override was written %d times", n)
		}
		h.ignore.Store(false)
		b.settle()
		b.override(record.Disabled)

		b.arm(record.Once, record.TargetPXE)
		h.ignore.Store(true)
		b.ask(transition.ActionOn)
		b.settle()
		h.writes.Store(0)
		time.Sleep(time.Minute)
		if n := h.writes.Load(); n == 0 || n > 100 {
			b.Errorf("within a minute the template was restored %d times", n)
		}
		b.do(transition.ActionForceOff)
	})
}

// TestEngine_stateOfSomebodyElse: the annotation is open to whoever may write
// the object; what stands in it that can't be ours does not count.
func TestEngine_stateOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]string{
		"a run strategy that there is not":   `{"power":{"runStrategy":"Sometimes"}}`,
		"a run strategy that starts nothing": `{"power":{"runStrategy":"Halted"}}`,
		"an operation that somebody has for good": `{"power":{"operation":{"id":"a","action":"On","goal":"On","phase":"UnderWay",` +
			`"holder":"nobody","start":"2000-01-01T00:00:00Z","lease":"2999-01-01T00:00:00Z","deadline":"2999-01-01T00:00:00Z"}}}`,
		"a step that will be taken": `{"power":{"operation":{"id":"a","action":"On","goal":"On","phase":"UnderWay","step":"RestoreStrategy","stepTime":"2999-01-01T00:00:00Z",` +
			`"holder":"nobody","start":"2000-01-01T00:00:00Z","lease":"2000-01-01T00:00:00Z","deadline":"2999-01-01T00:00:00Z"}}}`,
		"an operation with a goal of a later version": `{"power":{"operation":{"id":"a","action":"Hibernate","goal":"Hibernate","phase":"UnderWay",` +
			`"holder":"nobody","start":"2000-01-01T00:00:00Z","lease":"2000-01-01T00:00:00Z","deadline":"2999-01-01T00:00:00Z"}}}`,
		"a stage of a later version": `{"boot":{"id":"a","persistence":"Once","target":"Floppy","stage":"Burning"}}`,
		"orders of nothing":          `{"boot":{"id":"a","persistence":"Once","target":"HDD","stage":"Arming","own":{"rootdisk":-3},"planned":{"rootdisk":1,"cdrom":0,"default":2},"before":{"rootdisk":1}}}`,
		"nothing":                    `null`,
		"empty":                      `{"power":null,"boot":null,"seen":null}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, withISO, func(b *bed) {
				b.ok(b.simulator.SetState(b.Context(), ref, b.get().State, []byte(state)))
				synctest.Wait()
				b.do(transition.ActionOn)
				b.state(transition.Running)
				b.do(transition.ActionForceOff)
				b.arm(record.Disabled, record.TargetNone)
				b.arm(record.Once, record.TargetCD)
				b.do(transition.ActionOn)
				b.bootedFrom("cdrom")
			})
		})
	}
}

// TestMetrics_actionsOfSomebodyElse: what stands in an annotation makes no series
// of its own.
func TestMetrics_actionsOfSomebodyElse(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.kill()
		b.registry = prometheus.NewRegistry()
		b.start(b.simulator, "holder")
		for n := range 3 {
			b.ok(b.simulator.SetState(b.Context(), ref, b.get().State, fmt.Appendf(nil,
				`{"power":{"operation":{"id":"a%d","action":"Action%d","goal":"Goal","phase":"UnderWay","start":"2000-01-01T00:00:00Z"}}}`, n, n)))
			b.settle()
		}
		b.do(transition.ActionOn)
		families, err := b.registry.Gather()
		b.ok(err)
		got := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "vbmc_power_operations_total" {
				continue
			}
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					if label.GetName() == "action" {
						got[label.GetValue()] += metric.GetCounter().GetValue()
					}
				}
			}
		}
		if diff := cmp.Diff(map[string]float64{"Unknown": 3, "On": 1}, got); diff != "" {
			b.Errorf("operations mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestEngine_startThatWillBeSent: what a clock that is wrong has left says nothing
// about now.
func TestEngine_startThatWillBeSent(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.ok(b.simulator.SetState(b.Context(), ref, nil, []byte(
			`{"power":{"operation":{"id":"a","action":"On","goal":"On","phase":"Failed","start":"2000-01-01T00:00:00Z","startSent":"2999-01-01T00:00:00Z"}}}`)))
		synctest.Wait()
		b.do(transition.ActionForceOff)
	})
}

// lost answers requests of one kind, after they were carried out or not.
type lost struct {
	*simulator.Simulator
	answer  error
	carries bool
	resets  atomic.Int32
	starts  atomic.Int32
}

func (l *lost) Reset(ctx context.Context, ref hypervisor.Ref) error {
	l.resets.Add(1)
	if l.carries {
		if err := l.Simulator.Reset(ctx, ref); err != nil {
			return err
		}
	}
	return l.answer
}

func (l *lost) Start(ctx context.Context, ref hypervisor.Ref) error {
	l.starts.Add(1)
	time.Sleep(10 * time.Millisecond)
	return l.answer
}

// TestEngine_resetThatNothingShowsYet: a reset that the hypervisor has accepted
// is not sent again because its cache is late.
func TestEngine_resetThatNothingShowsYet(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		b.kill()
		l := &lost{Simulator: b.simulator, carries: true, answer: fmt.Errorf("reset: %w", hypervisor.ErrUnseen)}
		b.start(l, "holder")
		synctest.Wait()
		b.do(transition.ActionForceRestart)
		b.settle()
		if n := l.resets.Load(); n != 1 {
			b.Errorf("the guest was reset %d times", n)
		}
	})
}

// TestEngine_resetThatMeetsTheGuestsEnd: the guest has switched itself off, which
// the cache does not show yet; the restart goes on from what there is then.
func TestEngine_resetThatMeetsTheGuestsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
		first := b.do(transition.ActionOn).InstanceUID
		b.settle()
		b.ok(b.simulator.FailNext(ref, simulator.VerbReset, hypervisor.Invalidf("Failed to reset non-running VMI with phase Succeeded")))
		time.AfterFunc(20*time.Millisecond, func() { _ = b.simulator.PowerOffGuest(ref) })
		if got := b.do(transition.ActionForceRestart).InstanceUID; got == first {
			b.Error("the machine is not on anew")
		}
	})
}

// TestEngine_refusedStepsAreNotHurried: what is refused is tried again now and
// then, although each attempt is a change of the machine; also where the machine
// has gone and only the cache still has it.
func TestEngine_refusedStepsAreNotHurried(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"gone": hypervisor.ErrNotFound, "conflict": hypervisor.Conflictf("VM is not ready to start"),
		"no answer": hypervisor.ErrUnavailable, "under way": hypervisor.ErrUnderway,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
				b.kill()
				l := &lost{Simulator: b.simulator, answer: answer}
				b.start(l, "holder")
				synctest.Wait()
				b.ask(transition.ActionOn)
				time.Sleep(time.Minute)
				if n := l.starts.Load(); n < 5 || n > 30 {
					b.Errorf("within a minute the machine was started %d times", n)
				}
			})
		})
	}
}

// TestEngine_graceWithoutEnd: any grace period that a template can have is one
// that a guest can be stopped with.
func TestEngine_graceWithoutEnd(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{GracePeriod: math.MaxInt64 - time.Minute}, func(b *bed) {
		first := b.do(transition.ActionOn).InstanceUID
		b.settle()
		b.arm(record.Continuous, record.TargetPXE)
		if got := b.do(transition.ActionGracefulRestart).InstanceUID; got == first {
			b.Error("the instance is still the same")
		}
		b.do(transition.ActionGracefulShutdown)
		b.isOff()
	})
}

// TestEngine_operationsOfOthersAreForgotten: those that another process has
// replaced are not remembered for good.
func TestEngine_operationsOfOthersAreForgotten(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		one, killOne := b.engine, b.kill
		b.start(b.simulator, "two")
		two, killTwo := b.engine, b.kill
		b.kill = func() { killTwo(); killOne() }
		for range 20 {
			b.engine = one
			b.ask(transition.ActionOn)
			time.Sleep(50 * time.Millisecond)
			b.engine = two
			b.ask(transition.ActionForceOff)
			time.Sleep(50 * time.Millisecond)
		}
		b.settle()
		if a, b := one.Held(ref), two.Held(ref); a+b != 0 {
			t.Errorf("%d and %d operations are remembered", a, b)
		}
	})
}

// TestEngine_endThatNothingShowsYet: an operation whose end is written has ended.
func TestEngine_endThatNothingShowsYet(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		d := b.onDoubtful()
		d.when = "Succeeded"
		d.answer.Store(&hypervisor.ErrUnseen)
		b.do(transition.ActionOn)
		b.settle()
		if d.answer.Load() != nil {
			b.Error("the end was not written")
		}
		if n := b.engine.Held(ref); n != 0 {
			b.Errorf("%d operations are remembered", n)
		}
	})
}

// TestEngine_clearingThatFailsClearsNothing: an override at admission stays when
// what was to come with its clearing fails.
func TestEngine_clearingThatFailsClearsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, bothModes, func(b *bed) {
		b.admits = true
		h := b.onTemplate()
		b.arm(record.Once, record.TargetPXE)
		h.refuse.Store(&errLost)
		err := b.engine.SetOverride(b.Context(), ref, record.Override{
			Persistence: record.Disabled, Target: record.TargetNone, Mode: hypervisor.FirmwareUEFI,
		})
		if !errors.Is(err, hypervisor.ErrUnavailable) {
			b.Fatalf("got error %v, want %v", err, hypervisor.ErrUnavailable)
		}
		b.override(record.Once)
		h.refuse.Store(nil)
		b.settle()
		b.override(record.Once)
		b.armed(hypervisor.DeviceInterface)
	})
}
