// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/testport"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/test/launch"
)

// machines is how many machines the replicas share.
const machines = 24

// replicas are several processes of the power service over one simulator.
type replicas struct {
	*testing.T
	caFile, tokenFile string
	addresses, health []string
	args              [][]string
	program           string
	processes         []*launch.Process
}

func startReplicas(t *testing.T, count int) *replicas {
	t.Helper()
	c := newCredentials(t)
	r := &replicas{T: t, program: launch.Build(t, "services/power"), caFile: c.ca, tokenFile: c.token}
	first := testport.FreeRow(t, 2+2*count)
	address := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", first+n) }
	serve := func(n int) []string { return append(c.serve(address(n)), "--health-listen", address(n+1)) }
	simulator := launch.Start(t, nil, launch.Build(t, "cmd/kubevirtbmc"), append([]string{"simulator", "--machines", fmt.Sprint(machines)}, serve(0)...)...)
	simulator.WaitReady(t, address(1))
	for n := range count {
		r.addresses = append(r.addresses, address(2+2*n))
		r.health = append(r.health, address(3+2*n))
		r.args = append(r.args, append(serve(2+2*n), "--replica", fmt.Sprintf("power-%d", n), "--hypervisor", "simulator",
			"--simulator-address", address(0), "--simulator-ca-file", c.ca, "--simulator-token-file", c.token))
		r.processes = append(r.processes, nil)
		r.start(n)
	}
	return r
}

func (r *replicas) start(n int) {
	r.Helper()
	r.processes[n] = launch.Start(r, nil, r.program, r.args[n]...)
	r.processes[n].WaitReady(r, r.health[n])
}

// replicaCaller is a client that knows the replicas' addresses, in an order of its
// own.
type replicaCaller struct {
	*testing.T
	power powerv1.PowerServiceClient
	boot  bootv1.BootServiceClient
}

func (r *replicas) caller(reversed bool) *replicaCaller {
	r.Helper()
	addresses := slices.Clone(r.addresses)
	if reversed {
		slices.Reverse(addresses)
	}
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(state)
	roots, err := certs.LoadRoots(r.caFile)
	if err != nil {
		r.Fatal(err)
	}
	conn, err := grpcclient.Dial("replicas:///power", grpcclient.Config{
		Roots: roots.Pool, Token: grpcclient.TokenFile(r.tokenFile),
		Options: []grpc.DialOption{grpc.WithResolvers(names), grpc.WithAuthority("127.0.0.1")},
	})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	return &replicaCaller{T: r.T, power: powerv1.NewPowerServiceClient(conn), boot: bootv1.NewBootServiceClient(conn)}
}

func machineBMC(n int) *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: "default", Name: fmt.Sprintf("sim-%d", n)}
}

// act sends an action, and once more if its replica was lost meanwhile.
func (c *replicaCaller) act(n int, action powerv1.PowerAction, wait time.Duration) error {
	request := &powerv1.TransitionPowerRequest{Bmc: machineBMC(n), Action: action, Wait: durationpb.New(wait)}
	_, err := c.power.TransitionPower(c.Context(), request)
	if status.Code(err) == codes.Unavailable {
		_, err = c.power.TransitionPower(c.Context(), request)
	}
	return err
}

func (c *replicaCaller) status(n int) (*powerv1.PowerStatus, error) {
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	response, err := c.power.GetPower(ctx, &powerv1.GetPowerRequest{Bmc: machineBMC(n)})
	return response.GetStatus(), err
}

// each calls f for each machine, all at the same time.
func each(t *testing.T, f func(n int) error) {
	t.Helper()
	errs := make([]error, machines)
	var group sync.WaitGroup
	for n := range machines {
		group.Go(func() { errs[n] = f(n) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// cycled waits until a machine runs a new instance and its operation is over,
// and fails when there were two new ones.
func (c *replicaCaller) cycled(n int, before string) error {
	var fresh string
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := c.status(n)
		if err != nil {
			return fmt.Errorf("read machine %d: %w", n, err)
		}
		if id := now.GetInstanceId(); id != "" && id != before {
			if fresh != "" && fresh != id {
				return fmt.Errorf("machine %d was started twice", n)
			}
			fresh = id
		}
		if op := now.GetOperation(); fresh != "" && op.GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY {
			if op.GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED {
				return fmt.Errorf("machine %d: %s: %s", n, op.GetPhase(), op.GetMessage())
			}
			return nil
		}
	}
	return fmt.Errorf("machine %d was not cycled in time", n)
}

// TestReplicas_behave_as_one: actions survive the death of the process that
// carries them out, no machine is started twice, and what one caller has written
// the next one reads.
func TestReplicas_behave_as_one(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("leases have to run out, which takes half a minute (-short)")
	}
	r := startReplicas(t, 3)
	one, two := r.caller(false), r.caller(true)
	each(t, func(n int) error { return one.act(n, powerv1.PowerAction_POWER_ACTION_ON, time.Minute) })

	instances := func() []string {
		ids := make([]string, machines)
		each(t, func(n int) error {
			now, err := one.status(n)
			ids[n] = now.GetInstanceId()
			if err == nil && ids[n] == "" {
				err = fmt.Errorf("machine %d does not run: %v", n, now)
			}
			return err
		})
		return ids
	}
	for name, end := range map[string]func(p *launch.Process){
		"killed":  func(p *launch.Process) { p.Kill() },
		"stopped": func(p *launch.Process) { _ = p.Stop() },
	} {
		before := instances()
		each(t, func(n int) error { return one.act(n, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE, 0) })
		end(r.processes[1])
		each(t, func(n int) error { return two.cycled(n, before[n]) })
		after := instances()
		time.Sleep(3 * time.Second) // A second start would show by then.
		if again := instances(); !slices.Equal(after, again) {
			t.Errorf("%s: machines were started again afterwards", name)
		}

		// With one replica gone, and while it comes back, reads follow writes.
		readBack := func() {
			each(t, func(n int) error {
				_, err := one.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: machineBMC(n), Override: &bootv1.BootOverride{
					Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS, Target: bootv1.BootTarget_BOOT_TARGET_PXE,
				}})
				if err != nil {
					return fmt.Errorf("set override of machine %d: %w", n, err)
				}
				read, err := two.boot.GetBoot(t.Context(), &bootv1.GetBootRequest{Bmc: machineBMC(n)})
				if err == nil && read.GetStatus().GetOverride().GetTarget() != bootv1.BootTarget_BOOT_TARGET_PXE {
					err = fmt.Errorf("machine %d: the next caller reads %v", n, read.GetStatus().GetOverride())
				}
				return err
			})
			each(t, func(n int) error {
				_, err := two.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: machineBMC(n), Override: &bootv1.BootOverride{
					Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED,
				}})
				return err
			})
		}
		readBack()
		r.start(1)
		readBack()
	}
}
