// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcserver makes the gRPC servers of the services, with what they all
// need: authentication, request ids, validation, logs, metrics, recovery from
// panics, health and reflection.
package grpcserver

import (
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// Config of a server. All fields but TLS are needed.
type Config struct {
	// Log gets a line for each call that fails or changes something.
	Log *slog.Logger
	// TLS of the listener; nil where TLS ends elsewhere in the same process.
	TLS *tls.Config
	// Authenticator checks the bearer token of each call.
	Authenticator Authenticator
	// Authorize tells whether an identity may call a method, by an error of
	// package grpcstatus when it may not; nil: whoever is authenticated may.
	Authorize func(identity, method string) error
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
	check := guard{cfg.Log, cfg.Authenticator, cfg.Authorize, validator, stopping}
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(metrics.UnaryServerInterceptor(), check.unary, recovery.UnaryServerInterceptor(onPanic)),
		grpc.ChainStreamInterceptor(metrics.StreamServerInterceptor(), check.stream, recovery.StreamServerInterceptor(onPanic)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Second, Timeout: 2 * time.Second}),
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

// guard is what each call passes before its handler.
type guard struct {
	log           *slog.Logger
	authenticator Authenticator
	authorize     func(identity, method string) error
	validator     protovalidate.Validator
	stopping      context.Context
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	ctx, err := g.admit(ctx, info.FullMethod)
	if err == nil {
		err = validate(g.validator, req)
	}
	var resp any
	if err == nil {
		resp, err = handler(ctx, req)
	}
	err = withStatus(err)
	g.report(ctx, info.FullMethod, start, err)
	return resp, err
}

func (g guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	start := time.Now()
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.stopping, cancel)()
		err = handler(srv, guardedStream{ss, ctx, g.validator})
	}
	if err != nil && g.stopping.Err() != nil {
		err = grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "the service is stopping")
	}
	err = withStatus(err)
	g.report(ctx, info.FullMethod, start, err)
	return err
}

// withStatus gives an error that is none of gRPC's, as of a context that ended,
// the code that the client gets.
func withStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// admit authenticates a call and gives its context a request id and an
// identity.
func (g guard) admit(ctx context.Context, method string) (context.Context, error) {
	ctx = callctx.Incoming(ctx)
	if open(method) {
		return ctx, nil
	}
	ctx, err := authenticate(ctx, g.authenticator)
	if err == nil && g.authorize != nil {
		err = g.authorize(IdentityOf(ctx), method)
	}
	return ctx, err
}

// report logs a call's end: what the caller can put right as information, what
// an operator has to as an error.
func (g guard) report(ctx context.Context, method string, start time.Time, err error) {
	level := slog.LevelDebug
	switch status.Code(err) {
	case codes.OK, codes.Canceled:
	case codes.Internal, codes.Unknown, codes.DataLoss:
		level = slog.LevelError
	case codes.Unavailable, codes.DeadlineExceeded:
		level = slog.LevelWarn
	default:
		level = slog.LevelInfo
	}
	if !g.log.Enabled(ctx, level) {
		return
	}
	caller := callctx.CallerOf(ctx)
	attrs := []slog.Attr{
		slog.String(logkey.RPC, method), slog.String(logkey.Request, callctx.RequestID(ctx)),
		slog.String(logkey.Identity, IdentityOf(ctx)), slog.String(logkey.User, caller.User),
		slog.String(logkey.Source, caller.Address), slog.String(logkey.Protocol, caller.Protocol),
		slog.String(logkey.Code, status.Code(err).String()), slog.Duration(logkey.Duration, time.Since(start)),
	}
	if err != nil {
		attrs = append(attrs, slog.String(logkey.Reason, grpcstatus.ReasonOf(err).String()), slog.String(logkey.Error, status.Convert(err).Message()))
	}
	g.log.LogAttrs(ctx, level, "gRPC call ended", attrs...)
}

// guardedStream gives a stream's handler the admitted context and validates
// each message that it receives.
type guardedStream struct {
	grpc.ServerStream
	ctx       context.Context
	validator protovalidate.Validator
}

func (s guardedStream) Context() context.Context { return s.ctx }

func (s guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return validate(s.validator, m)
}
