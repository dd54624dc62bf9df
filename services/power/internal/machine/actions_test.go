// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

func TestEngine_goalsThatAreReachedAreNoOperation(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		before := b.get().ResourceVersion
		b.do(transition.ActionForceOff)
		b.do(transition.ActionGracefulShutdown)
		if got := b.get().ResourceVersion; got != before {
			b.Errorf("switching off a machine that is off wrote to it")
		}
		first := b.do(transition.ActionOn)
		again := b.do(transition.ActionOn)
		if again.InstanceUID != first.InstanceUID || again.Operation.ID == first.Operation.ID {
			b.Errorf("a second on answered %+v after %+v", again.Operation, first.Operation)
		}
	})
}

func TestEngine_sameGoalJoins(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		first := b.ask(transition.ActionOn)
		second := b.do(transition.ActionOn)
		if first.Operation.ID != second.Operation.ID {
			b.Errorf("a second on did not join the first")
		}
		b.ask(transition.ActionForceOff)
		if joined := b.ask(transition.ActionGracefulShutdown); joined.Operation.Action != transition.ActionForceOff {
			b.Errorf("a shutdown during a force off became %s", joined.Operation.Action)
		}
	})
}

func TestEngine_laterActionReplacesEarlierOne(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{IgnoreACPI: true}, func(b *bed) {
		b.do(transition.ActionOn)
		ended := make(chan *machine.Status)
		go func() {
			status, err := b.engine.Transition(b.Context(), ref, transition.ActionGracefulShutdown, long)
			if err != nil {
				b.Error(err)
			}
			ended <- status
		}()
		time.Sleep(10 * time.Second)
		b.state(transition.Stopping)
		b.do(transition.ActionForceOff)
		if got := (<-ended).Operation; got.Action != transition.ActionGracefulShutdown || got.Phase != record.Superseded {
			b.Errorf("the shutdown that was replaced ended as %s %s", got.Action, got.Phase)
		}
		if status, err := b.engine.Status(ref); err != nil || status.StopCause != machine.StopCauseAction {
			b.Errorf("stop cause is %d, %v", status.StopCause, err)
		}
	})
}

func TestEngine_onDuringShutdownComesBack(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		bubble(t, simulator.Spec{IgnoreACPI: deaf, RunStrategy: hypervisor.RunStrategyAlways}, func(b *bed) {
			first := b.do(transition.ActionOn).InstanceUID
			b.ask(transition.ActionGracefulShutdown)
			time.Sleep(time.Second)
			if got := b.do(transition.ActionOn).InstanceUID; got == first {
				b.Errorf("the guest was not stopped")
			}
			b.settle()
			b.state(transition.Running)
		})
	}
}

func TestEngine_gracefulShutdownGivesTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec  simulator.Spec
		grace time.Duration
	}{
		// 90 s are asked for, but the instance's pod lets it have no more than the
		// template's 30 s and 15 s more.
		"without agent":                     {simulator.Spec{}, 45 * time.Second},
		"without agent, longer own":         {simulator.Spec{GracePeriod: 3 * time.Minute}, 3 * time.Minute},
		"with agent, the machine's own one": {simulator.Spec{Agent: true, GracePeriod: 20 * time.Second}, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.spec.IgnoreACPI = true
			bubble(t, test.spec, func(b *bed) {
				b.do(transition.ActionOn)
				b.settle()
				begin := time.Now()
				status, err := b.engine.Transition(b.Context(), ref, transition.ActionGracefulShutdown, time.Hour)
				if err != nil || status.Operation.Phase != record.Succeeded {
					b.Fatalf("ended with %+v, %v", status, err)
				}
				if got := time.Since(begin).Truncate(time.Second); got != test.grace {
					b.Errorf("the guest was given %s, want %s", got, test.grace)
				}
				b.settle()
				if !transition.Observe(b.get()).Off() {
					b.Errorf("the machine came back")
				}
			})
		})
	}
}

func TestEngine_pauseAndResume(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.refused(transition.ActionPause, machine.ErrPowerState)
		first := b.do(transition.ActionOn).InstanceUID
		b.do(transition.ActionPause)
		b.state(transition.Paused)
		b.do(transition.ActionPause)
		b.do(transition.ActionResume)
		b.state(transition.Running)
		b.do(transition.ActionPause)
		b.do(transition.ActionOn)
		b.state(transition.Running)
		b.do(transition.ActionPause)
		b.do(transition.ActionForceRestart)
		b.state(transition.Running)
		if got := b.get().Instance.UID; got != first {
			b.Errorf("instance was replaced")
		}
		b.do(transition.ActionPause)
		b.ask(transition.ActionForceOff)
		b.refused(transition.ActionResume, machine.ErrOperation)
		b.do(transition.ActionForceOff)
		b.do(transition.ActionOn)
		b.do(transition.ActionPause)
		b.do(transition.ActionGracefulShutdown)
	})
}

func TestEngine_pushPowerButton(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionPushPowerButton)
		b.state(transition.Running)
		b.do(transition.ActionPushPowerButton)
		if !transition.Observe(b.get()).Off() {
			b.Errorf("the machine is still on")
		}
	})
}

func TestEngine_refusalsInPassingAreRepeated(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"conflict":    hypervisor.Conflictf("VM is already running"),
		"underway":    hypervisor.ErrUnderway,
		"unavailable": hypervisor.ErrUnavailable,
		"stale":       hypervisor.ErrStale,
		"unknown":     errors.New("boom"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
				for _, verb := range []simulator.Verb{simulator.VerbStart, simulator.VerbStop} {
					for range 3 {
						if err := b.simulator.FailNext(ref, verb, err); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.do(transition.ActionOn)
				b.do(transition.ActionPowerCycle)
				b.do(transition.ActionForceOff)
			})
		})
	}
}

func TestEngine_refusalsForGoodFail(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		if err := b.simulator.FailNext(ref, simulator.VerbPause, hypervisor.ErrUnsupported); err != nil {
			b.Fatal(err)
		}
		status, err := b.engine.Transition(b.Context(), ref, transition.ActionPause, long)
		if err != nil || status.Operation.Phase != record.Failed || status.Operation.Message == "" {
			b.Errorf("pause ended as %+v, %v", status.Operation, err)
		}
		synctest.Wait()
		if want := [][2]string{{string(transition.ActionPause), status.Operation.Message}}; !slices.Equal(b.troubles, want) {
			b.Errorf("told of %q, want %q", b.troubles, want)
		}
	})
	bubble(t, simulator.Spec{RunStrategy: "WaitAsReceiver"}, func(b *bed) {
		b.refused(transition.ActionOn, machine.ErrRunStrategy)
	})
}

func TestEngine_operationIsGivenUpAtItsDeadline(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		if err := b.simulator.LoseNode(ref); err != nil {
			b.Fatal(err)
		}
		status, err := b.engine.Transition(b.Context(), ref, transition.ActionForceOff, time.Hour)
		if err != nil || status.Operation.Phase != record.Failed {
			b.Fatalf("ended as %+v, %v", status.Operation, err)
		}
		b.state(transition.Lost)
		if got := b.count(simulator.VerbStop); got != 1 {
			b.Errorf("%d stops were sent, want 1", got)
		}
	})
}

func TestEngine_startThatFailsIsRepeatedByTheStrategy(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyHalted} {
		bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
			if err := b.simulator.FailStarts(ref, 2); err != nil {
				b.Fatal(err)
			}
			b.do(transition.ActionOn)
		})
	}
	bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
		if err := b.simulator.FailStarts(ref, 1); err != nil {
			b.Fatal(err)
		}
		status, err := b.engine.Transition(b.Context(), ref, transition.ActionOn, long)
		if err != nil || status.Operation.Phase != record.Failed {
			b.Fatalf("ended as %+v, %v", status.Operation, err)
		}
		b.do(transition.ActionOn)
	})
}

func TestEngine_forceOffDuringBackOff(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure} {
		bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
			if err := b.simulator.FailStarts(ref, 100); err != nil {
				b.Fatal(err)
			}
			time.Sleep(15 * time.Second)
			status, err := b.engine.Transition(b.Context(), ref, transition.ActionForceOff, time.Hour)
			if err != nil || status.Operation.Phase != record.Succeeded {
				b.Fatalf("%s: ended as %+v, %v", strategy, status.Operation, err)
			}
			time.Sleep(time.Hour)
			if m := b.get(); m.Instance != nil || m.StartQueued {
				b.Errorf("%s: the machine still tries to start", strategy)
			}
		})
	}
}

func TestEngine_guestEndsDuringAnOperation(t *testing.T) {
	t.Parallel()
	for _, strategy := range []hypervisor.RunStrategy{
		hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual, hypervisor.RunStrategyOnce,
	} {
		for name, end := range map[string]func(*simulator.Simulator, hypervisor.Ref) error{
			"power off": (*simulator.Simulator).PowerOffGuest,
			"crash":     (*simulator.Simulator).CrashGuest,
		} {
			t.Run(string(strategy)+"/"+name, func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{RunStrategy: strategy}, func(b *bed) {
					b.do(transition.ActionOn)
					if err := end(b.simulator, ref); err != nil {
						b.Fatal(err)
					}
					b.do(transition.ActionOn)
					b.settle()
					b.state(transition.Running)
					if err := end(b.simulator, ref); err != nil {
						b.Fatal(err)
					}
					b.do(transition.ActionForceOff)
					b.settle()
					if !transition.Observe(b.get()).Off() {
						b.Errorf("the machine is not off")
					}
				})
			})
		}
	}
}

func TestEngine_machineIsDeletedDuringAnOperation(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		failed := make(chan error)
		go func() {
			_, err := b.engine.Transition(b.Context(), ref, transition.ActionPowerCycle, long)
			failed <- err
		}()
		time.Sleep(100 * time.Millisecond)
		if err := b.simulator.DeleteMachine(ref); err != nil {
			b.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, hypervisor.ErrNotFound) {
			b.Errorf("got error %v, want %v", err, hypervisor.ErrNotFound)
		}
		b.settle()
		if err := b.simulator.AddMachine(simulator.Spec{Ref: ref}); err != nil {
			b.Fatal(err)
		}
		b.settle()
		if status, err := b.engine.Status(ref); err != nil || status.Operation != nil || status.State != transition.Absent {
			b.Errorf("a new machine of the same name has the status %+v, %v", status, err)
		}
	})
}

func TestEngine_clientsAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		var clients sync.WaitGroup
		for n := range 8 {
			clients.Go(func() {
				for _, action := range []transition.Action{transition.ActionOn, transition.ActionForceOff, transition.ActionPowerCycle} {
					_, err := b.engine.Transition(b.Context(), ref, action, time.Duration(n)*time.Second)
					if err != nil && !errors.Is(err, machine.ErrPowerState) {
						b.Errorf("%s: %v", action, err)
					}
				}
			})
		}
		clients.Wait()
		b.do(transition.ActionOn)
		b.settle()
		b.state(transition.Running)
	})
}

// TestEngine_twoReplicas: the one whose client spoke last has its way, and none
// takes over an operation whose holder lives.
func TestEngine_twoReplicas(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		one, killOne := b.engine, b.kill
		b.start(b.simulator, "another")
		two, killTwo := b.engine, b.kill
		b.kill = func() {
			killOne()
			killTwo()
		}
		for range 3 {
			b.engine = one
			b.do(transition.ActionOn)
			b.ask(transition.ActionForceOff)
			b.engine = two
			b.do(transition.ActionOn)
			b.settle()
			b.state(transition.Running)
			stops := b.count(simulator.VerbStop)
			b.ask(transition.ActionPowerCycle)
			b.engine = one
			b.do(transition.ActionOn)
			b.settle()
			if got := b.count(simulator.VerbStop) - stops; got != 1 {
				b.Errorf("a cycle stopped the machine %d times", got)
			}
			b.do(transition.ActionForceOff)
		}
	})
}

func TestEngine_leaseIsKept(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{IgnoreACPI: true, GracePeriod: 5 * time.Minute}, func(b *bed) {
		killOne := b.kill
		b.do(transition.ActionOn)
		b.ask(transition.ActionGracefulShutdown)
		b.start(b.simulator, "another")
		killTwo := b.kill
		b.kill = func() {
			killOne()
			killTwo()
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		rec, err := record.Parse(b.get().State)
		if err != nil {
			b.Fatal(err)
		}
		if op := rec.Power.Operation; op.Holder != "holder" || !op.Active() {
			b.Errorf("operation is with %q, %s", op.Holder, op.Phase)
		}
		if got := b.count(simulator.VerbStop); got != 1 {
			b.Errorf("%d stops were sent, want 1", got)
		}
	})
}

func TestEngine_stopCauses(t *testing.T) {
	t.Parallel()
	cause := func(b *bed, want machine.StopCause) {
		b.Helper()
		synctest.Wait()
		status, err := b.engine.Status(ref)
		if err != nil {
			b.Fatal(err)
		}
		if status.StopCause != want {
			b.Errorf("stop cause is %d, want %d", status.StopCause, want)
		}
	}
	bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
		cause(b, machine.StopCauseNone)
		b.do(transition.ActionOn)
		if err := b.simulator.PowerOffGuest(ref); err != nil {
			b.Fatal(err)
		}
		cause(b, machine.StopCauseExternal)
		b.do(transition.ActionOn)
		if err := b.simulator.CrashGuest(ref); err != nil {
			b.Fatal(err)
		}
		cause(b, machine.StopCauseFailure)
		b.do(transition.ActionOn)
		b.do(transition.ActionForceOff)
		cause(b, machine.StopCauseAction)
	})
}

func TestEngine_userChangesTheStrategyWhileOff(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyAlways}, func(b *bed) {
		b.do(transition.ActionOn)
		b.do(transition.ActionForceOff)
		b.settle()
		for _, step := range [][2]hypervisor.RunStrategy{
			{hypervisor.RunStrategyHalted, hypervisor.RunStrategyManual},
		} {
			if err := b.simulator.SetRunStrategy(b.Context(), ref, step[0], step[1]); err != nil {
				b.Fatal(err)
			}
		}
		b.do(transition.ActionOn)
		if got := b.get().RunStrategy; got != hypervisor.RunStrategyManual {
			b.Errorf("run strategy is %s, want the user's later choice", got)
		}
	})
}

// TestEngine_offDuringARestart: the start that a restart by other means has
// queued makes Always of Halted again. A controller that takes its time never
// came to the instance which that start is for, when the engine stopped the
// machine each time.
func TestEngine_offDuringARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		delays := simulator.RealisticDelays()
		delays.Control = 4 * time.Second
		b := &bed{T: t, simulator: simulator.New(simulator.Config{Delays: delays})}
		if err := b.simulator.AddMachine(simulator.Spec{Ref: ref, RunStrategy: hypervisor.RunStrategyAlways}); err != nil {
			t.Fatal(err)
		}
		b.start(b.simulator, "holder")
		defer func() { b.kill() }()
		b.do(transition.ActionOn)
		b.settle()
		if err := b.simulator.Restart(b.Context(), ref); err != nil {
			b.Fatal(err)
		}
		b.do(transition.ActionForceOff)
		b.settle()
		b.state(transition.Absent)
		b.do(transition.ActionOn)
		if got := b.get().RunStrategy; got != hypervisor.RunStrategyAlways {
			b.Errorf("run strategy is %s", got)
		}
	})
}

// TestEngine_userHaltsTheMachine: in the middle of an action that starts it the
// user's Halted counts; before that it does not say that the machine is to stay
// off.
func TestEngine_userHaltsTheMachine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		strategy hypervisor.RunStrategy
		action   transition.Action
		after    time.Duration
		want     transition.State
	}{
		"on, before the instance is there":      {hypervisor.RunStrategyAlways, transition.ActionOn, 0, transition.Running},
		"on, while the instance starts":         {hypervisor.RunStrategyAlways, transition.ActionOn, 300 * time.Millisecond, transition.Absent},
		"cycle, while the new instance starts":  {hypervisor.RunStrategyOnce, transition.ActionPowerCycle, 1500 * time.Millisecond, transition.Absent},
		"on by request, while instance starts":  {hypervisor.RunStrategyManual, transition.ActionOn, 300 * time.Millisecond, transition.Absent},
		"on, after the action has been settled": {hypervisor.RunStrategyAlways, transition.ActionOn, time.Minute, transition.Absent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, simulator.Spec{RunStrategy: test.strategy}, func(b *bed) {
				b.do(transition.ActionOn)
				if test.action == transition.ActionOn {
					b.do(transition.ActionForceOff)
					b.settle()
				}
				b.ask(test.action)
				time.Sleep(test.after)
				synctest.Wait() // For the step that is being taken.
				if err := b.simulator.SetRunStrategy(b.Context(), ref, b.get().RunStrategy, hypervisor.RunStrategyHalted); err != nil {
					b.Fatal(err)
				}
				b.settle()
				b.state(test.want)
				// What it was before comes back all the same.
				b.do(transition.ActionOn)
				if got := b.get().RunStrategy; test.strategy != hypervisor.RunStrategyManual && test.after < time.Minute && got != test.strategy {
					b.Errorf("run strategy is %s, want %s", got, test.strategy)
				}
			})
		})
	}
}

// TestEngine_idleMachinesCostNothing: after their work engines and machines rest.
func TestEngine_idleMachinesCostNothing(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		b.settle()
		before := b.get().ResourceVersion
		time.Sleep(24 * time.Hour)
		if got := b.get().ResourceVersion; got != before {
			b.Errorf("an idle machine was written to")
		}
	})
}

// slow carries resets and stops out after a while, as an API server under load
// does.
type slow struct {
	*simulator.Simulator
	stops atomic.Int32
}

func (s *slow) Reset(ctx context.Context, ref hypervisor.Ref) error {
	time.Sleep(15 * time.Second)
	return s.Simulator.Reset(ctx, ref)
}

func (s *slow) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	s.stops.Add(1)
	time.Sleep(15 * time.Second)
	return s.Simulator.Stop(ctx, ref, grace)
}

// TestEngine_slowRequestsAreNotTakenOver: the holder lives as long as its
// request may take.
func TestEngine_slowRequestsAreNotTakenOver(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		b.settle()
		b.kill()
		h := &slow{Simulator: b.simulator}
		b.start(h, "another")
		killOther := b.kill
		b.start(h, "holder")
		killHolder := b.kill
		b.kill = func() {
			killOther()
			killHolder()
		}
		b.do(transition.ActionForceRestart)
		b.do(transition.ActionForceOff)
		b.settle()
		if got := b.count(simulator.VerbReset); got != 1 {
			b.Errorf("%d resets were sent, want 1", got)
		}
		if got := h.stops.Load(); got != 1 {
			b.Errorf("%d stops were sent, want 1", got)
		}
	})
}

// A process that was away past an operation's deadline finds its goal reached.
func TestEngine_goalReachedPastTheDeadline(t *testing.T) {
	t.Parallel()
	bubble(t, simulator.Spec{}, func(b *bed) {
		b.do(transition.ActionOn)
		b.ask(transition.ActionForceOff)
		synctest.Wait()
		b.kill()
		time.Sleep(time.Hour)
		b.start(b.simulator, "holder")
		b.settle()
		status, err := b.engine.Status(ref)
		if err != nil || !status.State.Off() || status.Operation.Phase != record.Succeeded {
			b.Errorf("ended with %+v, %v", status, err)
		}
	})
}
