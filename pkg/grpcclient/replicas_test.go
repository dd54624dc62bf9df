// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/testport"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
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
func serve(t *testing.T, address string, options ...grpc.ServerOption) *replica {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{address: listener.Addr().String(), server: grpc.NewServer(options...)}
	powerv1.RegisterPowerServiceServer(r.server, r)
	consolev1.RegisterConsoleServiceServer(r.server, r)
	var serving sync.WaitGroup
	serving.Go(func() { _ = r.server.Serve(listener) })
	t.Cleanup(func() {
		r.server.Stop()
		serving.Wait()
	})
	return r
}

// serveThree starts three replicas and returns their addresses in order, too.
func serveThree(t *testing.T) (map[string]*replica, []string) {
	t.Helper()
	replicas := map[string]*replica{}
	for range 3 {
		r := serve(t, fmt.Sprintf("127.0.0.1:%d", testport.Free(t)))
		replicas[r.address] = r
	}
	return replicas, slices.Sorted(maps.Keys(replicas))
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
	names.InitialState(resolved(addresses))
	return newCallerOf(t, names)
}

func resolved(addresses []string) resolver.State {
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	return state
}

func newCallerOf(t *testing.T, names *manual.Resolver) *caller {
	t.Helper()
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

// eventually waits until a caller finds that owner of a BMC.
func (c *caller) eventually(n int, owner string) {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); c.owner(n) != owner; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("%s does not get BMC %d", owner, n)
		}
	}
}

func TestReplicas_callersAgreeFromTheFirstCallOn(t *testing.T) {
	t.Parallel()
	_, addresses := serveThree(t)
	one := newCaller(t, addresses)
	slices.Reverse(addresses)
	two := newCaller(t, addresses)

	owners := one.owners()
	if d := cmp.Diff(owners, two.owners()); d != "" {
		t.Fatalf("two callers do not agree (-one +two):\n%s", d)
	}
	count := map[string]int{}
	for _, owner := range owners {
		count[owner]++
	}
	for _, address := range addresses {
		if n := count[address]; n < bmcs/10 {
			t.Errorf("replica %s has %d of %d BMCs", address, n, bmcs)
		}
	}
	// Streams go the same way, those of new callers too.
	three := newCaller(t, addresses)
	for n := range bmcs {
		watch, err := three.power.WatchPower(t.Context(), &powerv1.WatchPowerRequest{Bmc: bmc(n)})
		if err != nil {
			t.Fatal(err)
		}
		status, err := watch.Recv()
		if err != nil || status.GetStatus().GetInstanceId() != owners[n] {
			t.Fatalf("the watch of BMC %d goes to %v (%v), want %s", n, status, err, owners[n])
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
		if err != nil || string(output.GetOutput()) != owners[n] {
			t.Fatalf("the console of BMC %d goes to %v (%v), want %s", n, output, err, owners[n])
		}
	}
}

// TestReplicas_dead: the BMCs of a replica that ends go to others, the rest stay,
// no read fails, and they return with it.
func TestReplicas_dead(t *testing.T) {
	t.Parallel()
	replicas, addresses := serveThree(t)
	one, two := newCaller(t, addresses), newCaller(t, addresses)
	before := one.owners()
	two.owners()
	gone := before[0]
	replicas[gone].server.Stop()
	after := one.owners()
	for n, owner := range after {
		if (before[n] == gone) == (owner == before[n]) {
			t.Errorf("BMC %d went from %s to %s with %s gone", n, before[n], owner, gone)
		}
	}
	if d := cmp.Diff(after, two.owners()); d != "" {
		t.Errorf("two callers do not agree after a replica has ended (-one +two):\n%s", d)
	}
	serve(t, gone)
	for _, c := range []*caller{one, two} {
		c.eventually(0, gone)
		if d := cmp.Diff(before, c.owners()); d != "" {
			t.Errorf("the BMCs of a replica do not come back to it (-before +after):\n%s", d)
		}
	}
}

// TestReplicas_replacedInARow: no read fails while all replicas are replaced,
// one right after the other.
func TestReplicas_replacedInARow(t *testing.T) {
	t.Parallel()
	replicas, addresses := serveThree(t)
	c := newCaller(t, addresses)
	c.owners()
	replaced := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-replaced:
				return
			default:
			}
			for n := range bmcs {
				if _, err := c.power.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: bmc(n)}); err != nil {
					t.Errorf("read of BMC %d: %v", n, err)
				}
			}
		}
	})
	for _, address := range addresses {
		replicas[address].server.Stop()
		time.Sleep(100 * time.Millisecond)
		serve(t, address)
	}
	close(replaced)
	reading.Wait()
}

// TestReplicas_silent: a replica whose connections get no answer holds reads of
// its BMCs up until they are given up, then the next replica has them.
func TestReplicas_silent(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	_, addresses := serveThree(t)
	c := newCaller(t, append(addresses, silent.Addr().String()))
	for _, owner := range c.owners() {
		if !slices.Contains(addresses, owner) {
			t.Errorf("%s has answered", owner)
		}
	}
}

// TestReplicas_added: a replica that was added is found when a connection is
// renewed.
func TestReplicas_added(t *testing.T) {
	t.Parallel()
	aging := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 200 * time.Millisecond})
	old := []string{serve(t, "127.0.0.1:0", aging).address, serve(t, "127.0.0.1:0", aging).address}
	added := serve(t, "127.0.0.1:0").address
	all := append(slices.Clone(old), added)
	owners := newCaller(t, all).owners()
	n := slices.Index(owners, added)
	if n < 0 {
		t.Fatalf("none of %d BMCs belongs to %s", bmcs, added)
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(resolved(old))
	names.ResolveNowCallback = func(resolver.ResolveNowOptions) { go names.UpdateState(resolved(all)) }
	newCallerOf(t, names).eventually(n, added)
}

// TestReplicas_namesOfAnyKind reach the server, which tells what is wrong with
// them.
func TestReplicas_namesOfAnyKind(t *testing.T) {
	t.Parallel()
	c := newCaller(t, []string{serve(t, "127.0.0.1:0").address})
	for _, bmc := range []*referencev1.BMCReference{nil, {}, {Namespace: "ü\n", Name: "a/b"}} {
		if _, err := c.power.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: bmc}); err != nil {
			t.Errorf("GetPower of %v: %v", bmc, err)
		}
	}
}

// TestServiceConfig_repeatsReadsAlone: what REST offers as GET and what is
// repeated are the same; of StateService, which has no REST, what lists.
func TestServiceConfig_repeatsReadsAlone(t *testing.T) {
	t.Parallel()
	var config struct {
		MethodConfig []struct {
			Name []struct{ Service, Method string }
		}
	}
	if err := json.Unmarshal([]byte(grpcclient.ServiceConfig()), &config); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range config.MethodConfig[0].Name {
		got = append(got, m.Service+"."+m.Method)
	}
	for _, file := range []protoreflect.FileDescriptor{
		powerv1.File_bmc_power_v1_power_proto, bootv1.File_bmc_boot_v1_boot_proto,
		inventoryv1.File_bmc_inventory_v1_inventory_proto, mediav1.File_bmc_media_v1_media_proto,
		statev1.File_bmc_state_v1_state_proto, consolev1.File_bmc_console_v1_console_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
				lists := strings.HasPrefix(string(m.Name()), "List")
				if (rule.GetGet() != "" || lists) && !m.IsStreamingServer() && !m.IsStreamingClient() {
					want = append(want, string(m.FullName()))
				}
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("methods mismatch (-want +got):\n%s", d)
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
