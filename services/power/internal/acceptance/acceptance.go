// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package acceptance is the power service's test suite as its clients see it:
// PowerService, BootService and InventoryService over gRPC, on any hypervisor.
// It runs against the simulator and against the real KubeVirt; what differs is a
// defect of the simulator.
package acceptance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Setup calls a test with a bench, which may be one that other tests use too.
type Setup func(t *testing.T, test func(*testing.T, contract.Bench))

// group is the tests of one subject.
type group struct {
	name  string
	tests map[string]func(*bed)
}

// Suite is the suite on one hypervisor.
type Suite struct {
	// Setup has a test run.
	Setup Setup
	// Audit gets the records of what the suite does; nil: nobody does.
	Audit audit.Sink
	// Update rewrites the table that is on record in place of comparing with it.
	Update bool
}

// Run runs the suite. Each test has a service of its own.
func (s Suite) Run(t *testing.T) {
	t.Helper()
	t.Run("actions", func(t *testing.T) {
		t.Parallel()
		s.actionTable(t)
	})
	for _, g := range []group{
		{"power", power},
		{"races", races},
		{"strategies", strategies},
		{"crashes", crashes},
		{"deletion", deletion},
		{"boot", boot},
		{"inventory", inventory},
		{"console", consoles},
	} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for name, test := range g.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s.Setup(t, func(t *testing.T, bench contract.Bench) { test(s.newBed(t, bench)) })
				})
			}
		})
	}
}

// bed is one test: its bench, a service on it, and the machines of its own.
type bed struct {
	*testing.T
	contract.Bench
	*process
	park *park
	// direct is the hypervisor as the service uses it.
	direct hypervisor.Hypervisor
	audit  audit.Sink
}

// start starts a process beside the test's first one.
func (b *bed) start(holder string) *process {
	b.Helper()
	return start(b.T, b.direct, b.park, holder, b.audit)
}

func (s Suite) newBed(t *testing.T, bench contract.Bench) *bed {
	t.Helper()
	b := &bed{T: t, Bench: bench, park: &park{}, audit: s.Audit}
	b.Hypervisor = contract.Insistent(bench.Hypervisor)
	b.direct = bench.Hypervisor
	b.process = b.start("one")
	return b
}

// graceOf is what the guests of most tests may take to shut down. Those that
// ignore the request last 15 s longer, as their pods do.
const graceOf = 5 * time.Second

// machine makes a machine.
func (b *bed) machine(spec contract.Spec) hypervisor.Ref {
	b.Helper()
	if spec.GracePeriod == 0 {
		spec.GracePeriod = graceOf
	}
	ref := b.NewMachine(b.T, spec)
	b.park.add(ref)
	return ref
}

// on makes a machine that runs; where its run strategy does not start it, the
// service does.
func (b *bed) on(spec contract.Spec) (ref hypervisor.Ref, instance string) {
	b.Helper()
	ref = b.machine(spec)
	if !startsByItself(spec) {
		return ref, b.do(ref, on).GetInstanceId()
	}
	return ref, b.until(ref, "on", isOn).GetInstanceId()
}

func startsByItself(spec contract.Spec) bool {
	if spec.Running != nil {
		return *spec.Running
	}
	return spec.RunStrategy != hypervisor.RunStrategyManual && spec.RunStrategy != hypervisor.RunStrategyHalted
}

// Short names of the API's actions.
const (
	on              = powerv1.PowerAction_POWER_ACTION_ON
	forceOff        = powerv1.PowerAction_POWER_ACTION_FORCE_OFF
	shutdown        = powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN
	gracefulRestart = powerv1.PowerAction_POWER_ACTION_GRACEFUL_RESTART
	forceRestart    = powerv1.PowerAction_POWER_ACTION_FORCE_RESTART
	powerCycle      = powerv1.PowerAction_POWER_ACTION_POWER_CYCLE
	pushButton      = powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON
	pause           = powerv1.PowerAction_POWER_ACTION_PAUSE
	resume          = powerv1.PowerAction_POWER_ACTION_RESUME
)

func bmc(ref hypervisor.Ref) *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: ref.Namespace, Name: ref.Name}
}

// name is an action as people write it.
func name(action powerv1.PowerAction) string {
	return strings.TrimPrefix(action.String(), "POWER_ACTION_")
}

// request sends an action; wait as in the API.
func (p *process) request(ctx context.Context, ref hypervisor.Ref, action powerv1.PowerAction, wait time.Duration) (*powerv1.PowerStatus, error) {
	response, err := p.power.TransitionPower(ctx, &powerv1.TransitionPowerRequest{
		Bmc: bmc(ref), Action: action, Wait: durationpb.New(wait),
	})
	return response.GetStatus(), err
}

// ask has an action accepted.
func (b *bed) ask(ref hypervisor.Ref, action powerv1.PowerAction) *powerv1.PowerStatus {
	b.Helper()
	status, err := b.request(b.Context(), ref, action, 0)
	if err != nil {
		b.Fatalf("%s: %v", name(action), err)
	}
	return status
}

// do has an action carried out; it has to succeed.
func (b *bed) do(ref hypervisor.Ref, action powerv1.PowerAction) *powerv1.PowerStatus {
	b.Helper()
	id := b.ask(ref, action).GetOperation().GetId()
	now := b.status(ref)
	if now.GetOperation().GetId() == id {
		now = b.ended(ref)
	}
	if op := now.GetOperation(); op.GetId() == id && op.GetPhase() != succeeded {
		b.Fatalf("%s ended as %s: %s", name(action), op.GetPhase(), op.GetMessage())
	}
	return now
}

// refused expects an action to be refused.
func (b *bed) refused(ref hypervisor.Ref, action powerv1.PowerAction, want errorsv1.Reason) {
	b.Helper()
	_, err := b.request(b.Context(), ref, action, 0)
	b.reason(name(action), err, want)
}

func (b *bed) reason(what string, err error, want errorsv1.Reason) {
	b.Helper()
	if got := grpcstatus.ReasonOf(err); err == nil || got != want {
		b.Errorf("%s: got %s (%v), want %s", what, got, err, want)
	}
}

const (
	underWay   = powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY
	succeeded  = powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED
	failed     = powerv1.OperationPhase_OPERATION_PHASE_FAILED
	superseded = powerv1.OperationPhase_OPERATION_PHASE_SUPERSEDED
)

// status reads a machine's power status.
func (b *bed) status(ref hypervisor.Ref) *powerv1.PowerStatus {
	b.Helper()
	response, err := b.power.GetPower(b.Context(), &powerv1.GetPowerRequest{Bmc: bmc(ref)})
	if err != nil {
		b.Fatalf("get power: %v", err)
	}
	return response.GetStatus()
}

// until follows a machine's power status until it is as wanted.
func (b *bed) until(ref hypervisor.Ref, what string, is func(*powerv1.PowerStatus) bool) *powerv1.PowerStatus {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), b.Timeout)
	defer cancel()
	stream, err := b.power.WatchPower(ctx, &powerv1.WatchPowerRequest{Bmc: bmc(ref)})
	if err != nil {
		b.Fatalf("watch power: %v", err)
	}
	var last *powerv1.PowerStatus
	for {
		response, err := stream.Recv()
		if err != nil {
			b.Fatalf("%s is not %s: %v; %s", ref, what, err, last)
		}
		if last = response.GetStatus(); is(last) {
			return last
		}
	}
}

// ended waits until no operation is under way.
func (b *bed) ended(ref hypervisor.Ref) *powerv1.PowerStatus {
	b.Helper()
	return b.until(ref, "at rest", func(s *powerv1.PowerStatus) bool {
		return s.GetOperation().GetPhase() != underWay
	})
}

// stays watches that a machine stays as it is for a while.
func (b *bed) stays(ref hypervisor.Ref, what string, is func(*hypervisor.Machine) bool) {
	b.Helper()
	for end := time.Now().Add(b.Quiet); time.Now().Before(end); time.Sleep(b.Quiet / 20) {
		if m := b.get(ref); !is(m) {
			b.Fatalf("%s: no longer %s: run strategy %s, instance %+v", ref, what, m.RunStrategy, m.Instance)
		}
	}
}

// rest lets a twentieth of the quiet time pass.
func (b *bed) rest() { time.Sleep(b.Quiet / 20) }

// gone waits until the hypervisor no longer has the machine.
func (b *bed) gone(ref hypervisor.Ref) {
	b.Helper()
	for end := time.Now().Add(b.Timeout); ; time.Sleep(b.Quiet / 50) {
		_, err := b.Hypervisor.Get(ref)
		if errors.Is(err, hypervisor.ErrNotFound) {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%s is still there: %v", ref, err)
		}
	}
}

// get reads a machine from the hypervisor.
func (b *bed) get(ref hypervisor.Ref) *hypervisor.Machine {
	b.Helper()
	m, err := b.Hypervisor.Get(ref)
	if err != nil {
		b.Fatalf("get %s: %v", ref, err)
	}
	return m
}

// strategy expects a machine to have a run strategy.
func (b *bed) strategy(ref hypervisor.Ref, want hypervisor.RunStrategy) {
	b.Helper()
	if got := b.get(ref).RunStrategy; got != want {
		b.Errorf("run strategy is %s, want %s", got, want)
	}
}

func (b *bed) ok(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func isOn(s *powerv1.PowerStatus) bool { return s.GetState() == powerv1.PowerState_POWER_STATE_ON }

func isOff(s *powerv1.PowerStatus) bool { return s.GetState() == powerv1.PowerState_POWER_STATE_OFF }

// live tells of the instance that runs and is not on its way out.
func live(instance string) func(*hypervisor.Machine) bool {
	return func(m *hypervisor.Machine) bool {
		return m.Instance != nil && m.Instance.UID == instance && m.Instance.Phase == hypervisor.PhaseRunning && !m.Instance.Deleting
	}
}

// off tells that no guest runs and none is on its way.
func off(m *hypervisor.Machine) bool {
	return (m.Instance == nil || m.Instance.Phase.Final()) && !m.StartQueued
}
