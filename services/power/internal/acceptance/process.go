// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/power/powerservice"
)

const token = "token"

// process is the power service as a process of its own, and a client of it.
type process struct {
	view      *view
	power     powerv1.PowerServiceClient
	boot      bootv1.BootServiceClient
	inventory inventoryv1.InventoryServiceClient
	// stop ends it, once.
	stop func()
}

// start starts a process that sees the machines of a park.
func start(t *testing.T, h hypervisor.Hypervisor, park *park, holder string) *process {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p := &process{view: &view{Hypervisor: h, park: park, died: make(chan struct{})}}
	service, err := powerservice.New(powerservice.Config{
		Hypervisor: p.view, Log: log, Holder: holder,
		Resolver: hypervisor.ResolverFunc(func(namespace, name string) (hypervisor.Ref, error) {
			return hypervisor.Ref{Namespace: namespace, Name: name}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	var tokens grpcserver.StaticTokens
	tokens.Add(token, "test")
	server, err := grpcserver.New(grpcserver.Config{Log: slog.New(slog.DiscardHandler), Authenticator: tokens, Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	service.Register(server)
	listener := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	go func() { ended <- service.Run(ctx) }()
	connection, err := grpcclient.Dial("passthrough:memory", grpcclient.Config{
		Token: func() (string, error) { return token, nil },
		Options: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.power = powerv1.NewPowerServiceClient(connection)
	p.boot = bootv1.NewBootServiceClient(connection)
	p.inventory = inventoryv1.NewInventoryServiceClient(connection)
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		server.Stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(p.stop)
	return p
}

// kill ends a process as kill -9 does: what it would still do does not happen.
func (p *process) kill() {
	p.view.die()
	p.stop()
}
