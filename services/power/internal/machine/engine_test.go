// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

var ref = hypervisor.Ref{Namespace: "default", Name: "vm"}

const long = 2 * time.Minute

// bed is an engine on a simulated machine, in a bubble of simulated time.
type bed struct {
	*testing.T
	simulator *simulator.Simulator
	engine    *machine.Engine
	kill      func()
	// admits has one-time overrides carried out at admission.
	admits bool
	// registry gets the metrics; nil: nobody does.
	registry *prometheus.Registry
	// troubles are what the engine told of, action and message.
	troubles [][2]string
}

// bubble runs a test with a machine of that strategy.
func bubble(t *testing.T, spec simulator.Spec, f func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{T: t, simulator: simulator.New(simulator.Config{})}
		spec.Ref = ref
		if err := b.simulator.AddMachine(spec); err != nil {
			t.Fatal(err)
		}
		b.start(b.simulator, "holder")
		defer func() { b.kill() }()
		f(b)
	})
}

// start runs a new engine, as a new process does.
func (b *bed) start(h machine.Hypervisor, holder string) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var metrics *machine.Metrics
	if b.registry != nil {
		var err error
		metrics, err = machine.NewMetrics(b.registry)
		b.ok(err)
	}
	engine := machine.New(machine.Config{
		Metrics:    metrics,
		Hypervisor: h, Log: slog.New(slog.DiscardHandler), Holder: holder,
		Admits: func(hypervisor.Ref) bool { return b.admits },
		Trouble: func(machine hypervisor.Ref, action, message string) {
			if machine != ref {
				b.Errorf("trouble is told of %s", machine)
			}
			b.troubles = append(b.troubles, [2]string{action, message})
		},
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := engine.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	b.engine = engine
	b.kill = func() {
		cancel()
		running.Wait()
	}
}

// do carries an action out and expects it to reach its goal.
func (b *bed) do(action transition.Action) *machine.Status {
	b.Helper()
	status, err := b.engine.Transition(b.Context(), ref, action, long)
	if err != nil {
		b.Fatalf("%s: %v", action, err)
	}
	if status.Operation.Phase != record.Succeeded {
		b.Fatalf("%s ended %s: %s", action, status.Operation.Phase, status.Operation.Message)
	}
	return status
}

// ask has an action accepted and does not wait.
func (b *bed) ask(action transition.Action) *machine.Status {
	b.Helper()
	status, err := b.engine.Transition(b.Context(), ref, action, 0)
	if err != nil {
		b.Fatalf("%s: %v", action, err)
	}
	return status
}

// refused expects an action to be refused.
func (b *bed) refused(action transition.Action, want error) {
	b.Helper()
	if _, err := b.engine.Transition(b.Context(), ref, action, 0); !errors.Is(err, want) {
		b.Fatalf("%s: got error %v, want %v", action, err, want)
	}
}

func (b *bed) get() *hypervisor.Machine {
	b.Helper()
	m, err := b.simulator.Get(ref)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func (b *bed) state(want transition.State) {
	b.Helper()
	if got := transition.Observe(b.get()); got != want {
		b.Fatalf("state is %d, want %d", got, want)
	}
}

// settle lets everything happen that is under way.
func (b *bed) settle() {
	time.Sleep(long)
	synctest.Wait()
}

// count returns how often a verb was accepted.
func (b *bed) count(verb simulator.Verb) int {
	n := 0
	for _, v := range b.simulator.Done(ref) {
		if v == verb {
			n++
		}
	}
	return n
}

func TestEngine_strategyIsKept(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[hypervisor.RunStrategy]hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways:         hypervisor.RunStrategyAlways,
		hypervisor.RunStrategyRerunOnFailure: hypervisor.RunStrategyRerunOnFailure,
		hypervisor.RunStrategyManual:         hypervisor.RunStrategyManual,
		hypervisor.RunStrategyHalted:         hypervisor.RunStrategyRerunOnFailure,
		hypervisor.RunStrategyOnce:           hypervisor.RunStrategyOnce,
	} {
		for _, off := range []transition.Action{transition.ActionForceOff, transition.ActionGracefulShutdown} {
			t.Run(string(strategy)+"/"+string(off), func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
					b.do(transition.ActionOn)
					b.state(transition.Running)
					b.do(off)
					b.settle()
					if !transition.Observe(b.get()).Off() {
						b.Fatalf("machine came back after %s", off)
					}
					b.do(transition.ActionOn)
					b.settle()
					b.state(transition.Running)
					if got := b.get().RunStrategy; got != want {
						b.Errorf("run strategy is %s, want %s", got, want)
					}
				})
			})
		}
	}
}

func TestEngine_restarts(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
		hypervisor.RunStrategyHalted, hypervisor.RunStrategyOnce,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
				first := b.do(transition.ActionOn).InstanceUID
				if got := b.do(transition.ActionForceRestart).InstanceUID; got != first {
					b.Errorf("a restart with nothing waiting made a new instance")
				}
				if got := b.do(transition.ActionGracefulRestart).InstanceUID; got != first {
					b.Errorf("a graceful restart with nothing waiting made a new instance")
				}
				second := b.do(transition.ActionPowerCycle).InstanceUID
				if second == first || second == "" {
					b.Errorf("a power cycle kept the instance")
				}
				b.settle()
				b.state(transition.Running)
				if got := b.get().Instance.UID; got != second {
					b.Errorf("instance %s was followed by %s", second, got)
				}
				if got := b.count(simulator.VerbReset); got != 1 {
					b.Errorf("%d resets, want 1", got)
				}
				b.do(transition.ActionForceOff)
				for _, action := range []transition.Action{
					transition.ActionForceRestart, transition.ActionGracefulRestart, transition.ActionPowerCycle,
					transition.ActionPause, transition.ActionResume,
				} {
					b.refused(action, machine.ErrPowerState)
				}
			})
		})
	}
}

func TestEngine_offThenOnEndsOn(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
		hypervisor.RunStrategyHalted, hypervisor.RunStrategyOnce,
	} {
		for _, gap := range []time.Duration{0, time.Millisecond, 35 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
			t.Run(string(strategy)+"/"+gap.String(), func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
					first := b.do(transition.ActionOn).InstanceUID
					b.ask(transition.ActionForceOff)
					time.Sleep(gap)
					b.do(transition.ActionOn)
					b.settle()
					b.state(transition.Running)
					if b.get().Instance.UID == first {
						b.Errorf("off had no effect")
					}
				})
			})
		}
	}
}

func TestEngine_onThenOffEndsOff(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual,
		hypervisor.RunStrategyHalted, hypervisor.RunStrategyAlways,
	} {
		for _, gap := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 35 * time.Millisecond, 300 * time.Millisecond} {
			t.Run(string(strategy)+"/"+gap.String(), func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
					b.do(transition.ActionForceOff)
					b.settle()
					b.ask(transition.ActionOn)
					time.Sleep(gap)
					b.do(transition.ActionForceOff)
					b.settle()
					if got := transition.Observe(b.get()); !got.Off() {
						b.Errorf("machine is in state %d: %v", got, b.simulator.Done(ref))
					}
				})
			})
		}
	}
}

// TestEngine_handsOverWhenItEnds: a process that is asked to end keeps nobody
// waiting for its lease.
func TestEngine_handsOverWhenItEnds(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyAlways}, func(b *bed) {
		b.settle()
		before := b.get().Instance.UID
		b.ask(transition.ActionPowerCycle)
		synctest.Wait()
		b.kill()
		began := time.Now()
		b.start(b.simulator, "another")
		for b.get().Instance == nil || b.get().Instance.UID == before || b.get().Instance.Phase != hypervisor.PhaseRunning {
			time.Sleep(100 * time.Millisecond)
		}
		alone := time.Since(began)
		// As long as a cycle takes anyway, and no lease more.
		began = time.Now()
		b.do(transition.ActionPowerCycle)
		if usual := time.Since(began); alone > usual+2*time.Second {
			t.Errorf("the cycle took %s after the handing over, usually %s", alone, usual)
		}
	})
}
