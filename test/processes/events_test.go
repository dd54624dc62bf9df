//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/testport"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/test/launch"
)

// Two replicas of the power service tell the controller's event log what becomes of a
// machine, each event once. The log outlives all processes, and what happens while
// no replica runs is told by the next one. It does not run beside others, whose
// controllers are for the same namespace.
//
//nolint:paralleltest // See above.
func TestEvents_outliveProcesses(t *testing.T) {
	a, c, o := newAccounts(t), newCredentials(t), newObjects(t, "default")
	bmcresourcetest.Install(t, a.rest)
	const name = "sim-1"
	o.create(machineResource, `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: `+name+`}, spec: {runStrategy: Halted, template: {spec: {domain: {devices: {}, memory: {guest: 64Mi}}}}}}`)
	o.create(secretResource, `{apiVersion: v1, kind: Secret, metadata: {name: `+name+`}, stringData: {username: `+username+`, password: `+password+`}}`)
	o.create(bmcResource, `{apiVersion: bmc.kubevirt.io/v1beta1, kind: VirtualMachineBMC, metadata: {name: `+name+`}, spec: {virtualMachineRef: {name: `+name+`}, authSecretRef: {name: `+name+`}}}`)

	first := testport.FreeRow(t, 8)
	address := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", first+n) }
	start := func(program string, n int, args ...string) *launch.Process {
		t.Helper()
		p := launch.Start(t, nil, launch.Build(t, program), append(append(args, c.serve(address(n))...), "--health-listen", address(n+1))...)
		p.WaitReady(t, address(n))
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", program, p.Stderr())
			}
		})
		return p
	}
	controller := func() *launch.Process {
		return start("services/controller", 2, "--kubeconfig", os.Getenv("KUBECONFIG"), "--namespaces", "default", "--namespace", "default")
	}
	power := func(replica string, n int) *launch.Process {
		return start("services/power", n, "--replica", replica, "--hypervisor", "simulator", "--simulator-address", address(0),
			"--simulator-ca-file", c.ca, "--simulator-token-file", c.token, "--state", address(2), "--state-ca-file", c.ca, "--state-token-file", c.token)
	}
	roots, err := certs.LoadRoots(c.ca)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(n int) *grpc.ClientConn {
		conn, err := grpcclient.Dial(address(n), grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(c.token)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	bmc := &referencev1.BMCReference{Namespace: "default", Name: name}
	events := statev1.NewStateServiceClient(dial(2))
	log := func() (string, error) {
		response, err := events.ListEvents(t.Context(), &statev1.ListEventsRequest{Bmc: bmc})
		var codes []string
		for _, e := range response.GetEvents() {
			codes = append(codes, strings.TrimPrefix(e.GetCode().String(), "EVENT_CODE_"))
		}
		return strings.Join(codes, " "), err
	}
	// wantLog waits for a log, and for a while that nothing comes after it.
	wantLog := func(what, want string) {
		t.Helper()
		o.eventually(what, func() error {
			got, err := log()
			if err == nil && got != want {
				err = fmt.Errorf("the event log has %q, want %q", got, want)
			}
			return err
		})
		time.Sleep(3 * time.Second)
		if got, err := log(); err != nil || got != want {
			t.Errorf("%s: later the event log has %q, %v, want %q", what, got, err, want)
		}
	}
	do := func(client powerv1.PowerServiceClient, action powerv1.PowerAction) {
		t.Helper()
		o.eventually(action.String(), func() error {
			_, err := client.TransitionPower(t.Context(), &powerv1.TransitionPowerRequest{Bmc: bmc, Action: action, Wait: durationpb.New(time.Minute)})
			return err
		})
	}

	start("cmd/kubevirtbmc", 0, "simulator", "--machines", "2")
	processes := []*launch.Process{controller(), power("power-0", 4), power("power-1", 6)}
	client, another := powerv1.NewPowerServiceClient(dial(4)), powerv1.NewPowerServiceClient(dial(6))
	do(client, powerv1.PowerAction_POWER_ACTION_ON)
	wantLog("on", "POWERED_ON")
	do(another, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE)
	wantLog("cycle", "POWERED_ON POWERED_OFF POWERED_ON")
	for _, p := range processes {
		p.Kill()
	}
	controller()
	wantLog("after all processes were killed", "POWERED_ON POWERED_OFF POWERED_ON")
	power("power-0", 4)
	do(client, powerv1.PowerAction_POWER_ACTION_FORCE_OFF)
	wantLog("off, by a new replica", "POWERED_ON POWERED_OFF POWERED_ON POWERED_OFF")
}
