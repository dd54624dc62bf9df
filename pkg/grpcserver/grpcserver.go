// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcserver makes the gRPC servers of the services, with what they all
// need: authentication, request ids, validation, logs, metrics, recovery from
// panics, health and reflection.
package grpcserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// maxConnectionAge makes clients connect anew now and then, and so learn of
// replicas that were added. Calls and streams that are open stay on the old
// connection until they end.
const maxConnectionAge = 5 * time.Minute

// Config of a server. Log, Authenticator and Metrics are needed.
type Config struct {
	// Log gets a line for each call that fails or changes something.
	Log *slog.Logger
	// TLS of the listener; nil where TLS ends elsewhere in the same process.
	TLS *tls.Config
	// Authenticator checks the bearer token of each call.
	Authenticator Authenticator
	// Authorizer tells who may do what; nil: whoever is authenticated may do
	// everything.
	Authorizer Authorizer
	// Recheck is how often the caller of a stream is authenticated and authorized
	// again; 0: once a minute.
	Recheck time.Duration
	// Metrics gets the call counters and latencies.
	Metrics prometheus.Registerer
}

// Server is a gRPC server and its health service.
type Server struct {
	*grpc.Server
	health *health.Server
	// stopping ends with StopStreams.
	stopping    context.Context
	stopStreams context.CancelFunc
}

// New returns a server without services. Messages are limited to gRPC's default
// of 4 MiB.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil || cfg.Authenticator == nil || cfg.Metrics == nil {
		return nil, errors.New("make gRPC server: log, authenticator and metrics are needed")
	}
	validator, err := protovalidate.New()
	if err != nil {
		return nil, err
	}
	metrics := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60})))
	if err := cfg.Metrics.Register(metrics); err != nil {
		return nil, err
	}
	onPanic := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		cfg.Log.ErrorContext(ctx, "panic in a gRPC handler", "panic", p, "stack", string(debug.Stack()),
			logkey.Request, callctx.RequestID(ctx))
		return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "internal error")
	})
	stopping, stopStreams := context.WithCancel(context.Background())
	check := guard{cfg.Log, cfg.Authenticator, cfg.Authorizer, cmp.Or(cfg.Recheck, time.Minute), validator, stopping}
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(metrics.UnaryServerInterceptor(), check.unary, recovery.UnaryServerInterceptor(onPanic)),
		grpc.ChainStreamInterceptor(metrics.StreamServerInterceptor(), check.stream, recovery.StreamServerInterceptor(onPanic)),
		// A frontend that falls silent is found out in 2.5 s, half of the time in which
		// its BMCs are to be reachable again.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: 1500 * time.Millisecond, MaxConnectionAge: maxConnectionAge}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
	}
	if cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s := &Server{Server: grpc.NewServer(options...), health: health.NewServer(), stopping: stopping, stopStreams: stopStreams}
	healthpb.RegisterHealthServer(s.Server, s.health)
	s.SetReady(false)
	reflection.Register(s.Server)
	return s, nil
}

// SetReady sets what the health service answers for the server as a whole.
func (s *Server) SetReady(ready bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
}

// StopStreams ends the streams, which would go on for ever, with UNAVAILABLE, as
// far as their handlers heed their contexts; new ones are refused. Other calls
// go on.
func (s *Server) StopStreams() { s.stopStreams() }

// Shutdown tells health watchers that the server is going and ends streams, then
// lets other calls end until the context does, then ends them.
func (s *Server) Shutdown(ctx context.Context) {
	s.health.Shutdown()
	s.StopStreams()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.Stop()
		<-done
	}
}
