// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"kubevirtbmc.dev/pkg/grpcclient"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// replica says who it is.
type replica struct {
	powerv1.UnimplementedPowerServiceServer
	consolev1.UnimplementedConsoleServiceServer
	address string
	server  *grpc.Server
}

func (r *replica) GetPower(context.Context, *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	return &powerv1.GetPowerResponse{Status: &powerv1.PowerStatus{InstanceId: r.address}}, nil
}

func (r *replica) WatchPower(_ *powerv1.WatchPowerRequest, stream grpc.ServerStreamingServer[powerv1.WatchPowerResponse]) error {
	return stream.Send(&powerv1.WatchPowerResponse{Status: &powerv1.PowerStatus{InstanceId: r.address}})
}

func (r *replica) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return stream.Send(&consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_Output{Output: []byte(r.address)}})
}

// serve starts a replica; on any port when address has none.
func serve(t *testing.T, address string) *replica {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{address: listener.Addr().String(), server: grpc.NewServer()}
	powerv1.RegisterPowerServiceServer(r.server, r)
	consolev1.RegisterConsoleServiceServer(r.server, r)
	go func() { _ = r.server.Serve(listener) }()
	t.Cleanup(r.server.Stop)
	return r
}

// caller is a process that calls replicas.
type caller struct {
	*testing.T
	power   powerv1.PowerServiceClient
	console consolev1.ConsoleServiceClient
}

func newCaller(t *testing.T, addresses []string) *caller {
	t.Helper()
	names := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	names.InitialState(state)
	conn, err := grpcclient.Dial("replicas:///power", grpcclient.Config{Options: []grpc.DialOption{grpc.WithResolvers(names)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &caller{T: t, power: powerv1.NewPowerServiceClient(conn), console: consolev1.NewConsoleServiceClient(conn)}
}

func bmc(n int) *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: "lab", Name: fmt.Sprintf("bmc-%d", n)}
}

func (c *caller) owner(n int) string {
	c.Helper()
	response, err := c.power.GetPower(c.Context(), &powerv1.GetPowerRequest{Bmc: bmc(n)})
	if err != nil {
		c.Fatalf("get power of BMC %d: %v", n, err)
	}
	return response.GetStatus().GetInstanceId()
}

const bmcs = 60

func (c *caller) owners() []string {
	c.Helper()
	owners := make([]string, bmcs)
	for n := range owners {
		owners[n] = c.owner(n)
	}
	return owners
}

// settled waits until a caller is connected to so many replicas.
func (c *caller) settled(replicas int) []string {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		owners := c.owners()
		different := map[string]bool{}
		for _, owner := range owners {
			different[owner] = true
		}
		if len(different) == replicas && slices.Equal(owners, c.owners()) {
			return owners
		}
		if time.Now().After(end) {
			c.Fatalf("%d replicas have BMCs, want %d", len(different), replicas)
		}
	}
}

func TestRendezvous(t *testing.T) {
	t.Parallel()
	replicas := map[string]*replica{}
	for range 3 {
		r := serve(t, "127.0.0.1:0")
		replicas[r.address] = r
	}
	addresses := slices.Sorted(maps.Keys(replicas))
	one := newCaller(t, addresses)
	slices.Reverse(addresses)
	two := newCaller(t, addresses)

	before := one.settled(3)
	if !slices.Equal(before, two.settled(3)) {
		t.Fatal("two callers do not agree")
	}
	count := map[string]int{}
	for _, owner := range before {
		count[owner]++
	}
	for address, n := range count {
		if n < bmcs/10 {
			t.Errorf("replica %s has %d of %d BMCs", address, n, bmcs)
		}
	}

	// Streams go the same way.
	for n := range bmcs {
		watch, err := one.power.WatchPower(t.Context(), &powerv1.WatchPowerRequest{Bmc: bmc(n)})
		if err != nil {
			t.Fatal(err)
		}
		status, err := watch.Recv()
		if err != nil || status.GetStatus().GetInstanceId() != before[n] {
			t.Fatalf("the watch of BMC %d goes to %v (%v), want %s", n, status, err, before[n])
		}
		console, err := two.console.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open := &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc(n)}}}
		if err := console.Send(open); err != nil {
			t.Fatal(err)
		}
		output, err := console.Recv()
		if err != nil || string(output.GetOutput()) != before[n] {
			t.Fatalf("the console of BMC %d goes to %v (%v), want %s", n, output, err, before[n])
		}
	}

	// One ends: its BMCs go to others, the rest stay, and no read fails.
	gone := before[0]
	replicas[gone].server.Stop()
	after := one.settled(2)
	for n, owner := range after {
		if before[n] != gone && owner != before[n] {
			t.Errorf("BMC %d went from %s to %s although its replica lives", n, before[n], owner)
		}
	}
	if !slices.Equal(after, two.settled(2)) {
		t.Error("two callers do not agree after a replica has ended")
	}

	// It comes back, and so do its BMCs.
	serve(t, gone)
	if !slices.Equal(before, one.settled(3)) || !slices.Equal(before, two.settled(3)) {
		t.Error("the BMCs of a replica do not come back to it")
	}
}

// TestStream_ends: a stream that nobody sends on ends with its context.
func TestStream_ends(t *testing.T) {
	t.Parallel()
	c := newCaller(t, []string{serve(t, "127.0.0.1:0").address})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.console.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	cancel()
	if err := <-ended; err == nil {
		t.Error("a stream without messages ended well")
	}
}
