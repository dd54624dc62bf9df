// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// eventLog is a StateService's log: it takes an id once. refuse has the next
// appends fail, before or after they were carried out.
type eventLog struct {
	mu           sync.Mutex
	entries      []*statev1.Event
	appends      int
	refuseBefore int
	refuseAfter  int
}

var errRefused = errors.New("refused")

func (l *eventLog) Append(_ context.Context, at hypervisor.Ref, events []*statev1.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at != ref {
		return hypervisor.ErrNoBMC
	}
	if l.refuseBefore > 0 {
		l.refuseBefore--
		return errRefused
	}
	l.appends++
	for _, e := range events {
		if len(e.GetId()) > 64 || e.GetMessage() == "" || e.GetKind() == 0 || e.GetSeverity() == 0 || e.GetTime() == nil {
			return errors.New("an entry that StateService does not take")
		}
		if !slices.ContainsFunc(l.entries, func(old *statev1.Event) bool { return old.GetId() == e.GetId() }) {
			l.entries = append(l.entries, e)
		}
	}
	if l.refuseAfter > 0 {
		l.refuseAfter--
		return errRefused
	}
	return nil
}

func (l *eventLog) codes() []statev1.EventCode {
	l.mu.Lock()
	defer l.mu.Unlock()
	var codes []statev1.EventCode
	for _, e := range l.entries {
		codes = append(codes, e.GetCode())
	}
	return codes
}

func (l *eventLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
}

// told runs a test with a log that three replicas tell.
func told(t *testing.T, spec simulator.Spec, f func(b *bed, log *eventLog)) {
	t.Helper()
	bubble(t, spec, func(b *bed) {
		b.kill()
		log := &eventLog{}
		for _, holder := range []string{"a", "b", "c"} {
			b.replica(holder, log)
		}
		f(b, log)
	})
}

// replica adds an engine that tells the log, to those that there are.
func (b *bed) replica(holder string, log *eventLog) (kill func()) {
	ctx, cancel := context.WithCancel(b.Context())
	engine := machine.New(machine.Config{
		Hypervisor: b.simulator, Log: slog.New(slog.DiscardHandler), Holder: holder, Events: log,
		Admits: func(hypervisor.Ref) bool { return b.admits },
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := engine.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	b.engine = engine
	earlier := b.kill
	kill = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	b.kill = func() { kill(); earlier() }
	return kill
}

const (
	poweredOn  = statev1.EventCode_EVENT_CODE_POWERED_ON
	poweredOff = statev1.EventCode_EVENT_CODE_POWERED_OFF
	stopped    = statev1.EventCode_EVENT_CODE_STOPPED
	failed     = statev1.EventCode_EVENT_CODE_FAILED
	wasReset   = statev1.EventCode_EVENT_CODE_RESET
	bootSet    = statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_CHANGED
	moved      = statev1.EventCode_EVENT_CODE_MOVED
	bootUsed   = statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_USED
)

// TestEvents: each event is in the log once although three replicas see it.
func TestEvents_eachOnce(t *testing.T) {
	t.Parallel()
	once := record.Override{Target: record.TargetPXE, Persistence: record.Once}
	for name, test := range map[string]struct {
		admits bool
		do     func(b *bed)
		want   []statev1.EventCode
	}{
		"on":                 {do: func(*bed) {}, want: []statev1.EventCode{poweredOn}},
		"off and on":         {do: func(b *bed) { b.do(transition.ActionForceOff); b.settle(); b.do(transition.ActionOn) }, want: []statev1.EventCode{poweredOn, poweredOff, poweredOn}},
		"off, on at once":    {do: func(b *bed) { b.ask(transition.ActionForceOff); b.do(transition.ActionOn) }, want: []statev1.EventCode{poweredOn, poweredOff, poweredOn}},
		"shutdown":           {do: func(b *bed) { b.do(transition.ActionGracefulShutdown) }, want: []statev1.EventCode{poweredOn, poweredOff}},
		"cycle":              {do: func(b *bed) { b.do(transition.ActionPowerCycle) }, want: []statev1.EventCode{poweredOn, poweredOff, poweredOn}},
		"two resets":         {do: func(b *bed) { b.do(transition.ActionForceRestart); b.settle(); b.do(transition.ActionForceRestart) }, want: []statev1.EventCode{poweredOn, wasReset, wasReset}},
		"guest switches off": {do: func(b *bed) { b.ok(b.simulator.PowerOffGuest(ref)) }, want: []statev1.EventCode{poweredOn, stopped}},
		"crash":              {do: func(b *bed) { b.ok(b.simulator.CrashGuest(ref)) }, want: []statev1.EventCode{poweredOn, failed, poweredOn}},
		"migrations": {
			do: func(b *bed) {
				b.ok(b.simulator.Migrate(ref))
				b.settle()
				b.ok(b.simulator.Migrate(ref))
			},
			want: []statev1.EventCode{poweredOn, moved, moved},
		},
		"override, used through the template": {
			do: func(b *bed) {
				b.ok(b.engine.SetOverride(b.Context(), ref, once))
				b.settle()
				b.do(transition.ActionForceRestart)
			},
			want: []statev1.EventCode{poweredOn, bootSet, poweredOff, poweredOn, bootUsed},
		},
		"override, used at admission": {
			admits: true,
			do: func(b *bed) {
				b.ok(b.engine.SetOverride(b.Context(), ref, once))
				b.settle()
				b.do(transition.ActionPowerCycle)
			},
			want: []statev1.EventCode{poweredOn, bootSet, poweredOff, poweredOn, bootUsed},
		},
		"override set twice alike and taken back": {
			do: func(b *bed) {
				b.ok(b.engine.SetOverride(b.Context(), ref, once))
				b.settle()
				b.ok(b.engine.SetOverride(b.Context(), ref, once))
				b.settle()
				b.ok(b.engine.SetOverride(b.Context(), ref, record.Override{Target: record.TargetNone, Persistence: record.Disabled}))
			},
			want: []statev1.EventCode{poweredOn, bootSet, bootSet},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyRerunOnFailure}, func(b *bed, log *eventLog) {
				b.admits = test.admits
				b.simulator.SetAdmission(test.admits)
				b.do(transition.ActionOn)
				b.settle()
				test.do(b)
				b.settle()
				if diff := cmp.Diff(test.want, log.codes()); diff != "" {
					b.Errorf("log mismatch (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestEvents_logThatFails: what a log has refused is told later, and what it has
// taken before its answer got lost is not told twice.
func TestEvents_logThatFails(t *testing.T) {
	t.Parallel()
	told(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed, log *eventLog) {
		log.refuseBefore, log.refuseAfter = 5, 2
		b.do(transition.ActionOn)
		b.settle()
		if diff := cmp.Diff([]statev1.EventCode{poweredOn}, log.codes()); diff != "" {
			b.Errorf("log mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestEvents_logThatWasEmptied: neither a change that means nothing nor a new
// process tells again what the log had.
func TestEvents_logThatWasEmptied(t *testing.T) {
	t.Parallel()
	told(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed, log *eventLog) {
		b.do(transition.ActionOn)
		b.settle()
		log.clear()
		b.ok(b.simulator.SetAgent(ref, true))
		b.replica("d", log)
		b.settle()
		if got := log.codes(); len(got) > 0 {
			b.Errorf("the log has %v", got)
		}
	})
}

// TestEvents_whileNobodyWatches: a machine that goes off while no process runs is
// told of by the next one.
func TestEvents_whileNobodyWatches(t *testing.T) {
	t.Parallel()
	told(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed, log *eventLog) {
		b.do(transition.ActionOn)
		b.settle()
		b.kill()
		b.ok(b.simulator.PowerOffGuest(ref))
		time.Sleep(long)
		b.replica("later", log)
		b.settle()
		if diff := cmp.Diff([]statev1.EventCode{poweredOn, stopped}, log.codes()); diff != "" {
			b.Errorf("log mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestEvents_oneReplicaTells: the replicas have their turns, so that the log is
// seldom asked to take what it has.
func TestEvents_oneReplicaTells(t *testing.T) {
	t.Parallel()
	told(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed, log *eventLog) {
		b.do(transition.ActionOn)
		b.settle()
		if log.appends != 1 {
			b.Errorf("the log was asked %d times, want once", log.appends)
		}
	})
}
