// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package servertest serves a backend's services in the test's own process, as
// the backend's program does, with a client that may call all of them.
package servertest

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
)

// token is what the server asks of its client.
const token = "not-a-secret"

// Service is a backend.
type Service interface {
	Register(registrar grpc.ServiceRegistrar)
	Run(ctx context.Context) error
}

// Start serves a backend until the test ends or stop is called, which ends calls
// under way.
func Start(t testing.TB, service Service, log *slog.Logger, metrics *prometheus.Registry) (connection *grpc.ClientConn, stop func()) {
	t.Helper()
	var tokens grpcserver.StaticTokens
	tokens.Add(token, "test")
	server, err := grpcserver.New(grpcserver.Config{Log: log, Authenticator: tokens, Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	service.Register(server)
	listener := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	go func() { ended <- service.Run(ctx) }()
	connection, err = grpcclient.Dial("passthrough:memory", grpcclient.Config{
		Token: func() (string, error) { return token, nil },
		Options: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
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
	})
	t.Cleanup(stop)
	return connection, stop
}
