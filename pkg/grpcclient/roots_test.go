// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
)

// A client's CA certificates change under a stream: the stream goes on, and the
// next handshake is verified with the new ones.
func TestDial_rootsOfEachHandshake(t *testing.T) {
	t.Parallel()
	authority := func() (*certs.Authority, *tls.Certificate) {
		ca, err := certs.NewAuthority("test CA", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.Issue([]string{"127.0.0.1"}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca, leaf
	}
	first, firstLeaf := authority()
	second, secondLeaf := authority()
	var serves atomic.Pointer[tls.Certificate]
	serves.Store(firstLeaf)
	var trusts atomic.Pointer[x509.CertPool]
	trusts.Store(first.Pool())

	server, err := grpcserver.New(grpcserver.Config{
		Log: slog.New(slog.DiscardHandler), Authenticator: grpcserver.StaticTokens{}, Metrics: prometheus.NewRegistry(),
		TLS: certs.ServerTLS(func() (*tls.Certificate, error) { return serves.Load(), nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.SetReady(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	t.Cleanup(server.Stop)

	var last atomic.Pointer[net.Conn]
	conn, err := grpcclient.Dial("passthrough:///"+listener.Addr().String(), grpcclient.Config{
		Roots: trusts.Load,
		Options: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				last.Store(&c)
			}
			return c, err
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health := healthpb.NewHealthClient(conn)
	check := func() codes.Code {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := health.Check(ctx, &healthpb.HealthCheckRequest{})
		return status.Code(err)
	}
	stream, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}

	serves.Store(secondLeaf)
	trusts.Store(second.Pool())
	server.SetReady(false)
	if answer, err := stream.Recv(); err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("a stream whose server's CA is not trusted any more: %v, %v", answer, err)
	}
	(*last.Load()).Close()
	if _, err := stream.Recv(); err == nil {
		t.Fatal("the stream goes on without its connection")
	}
	eventually(t, "handshake with the second CA", func() bool { return check() == codes.OK })

	trusts.Store(first.Pool())
	if got := check(); got != codes.OK {
		t.Errorf("the connection that stands: %v", got)
	}
	(*last.Load()).Close()
	eventually(t, "refused handshake", func() bool { return check() == codes.Unavailable })
	trusts.Store(second.Pool())
	eventually(t, "handshake with the second CA again", func() bool { return check() == codes.OK })
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}
