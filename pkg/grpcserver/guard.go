// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// guard is what each call passes before its handler.
type guard struct {
	log           *slog.Logger
	authenticator Authenticator
	authorizer    Authorizer
	recheck       time.Duration
	validator     protovalidate.Validator
	stopping      context.Context
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	start := time.Now()
	ctx, err := g.admit(ctx, info.FullMethod)
	if err == nil {
		err = validate(g.validator, req)
	}
	if err == nil && governed(info.FullMethod) {
		ctx, _, err = g.authorize(ctx, info.FullMethod, req)
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
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(g.stopping, func() { cancel(errStopping) })()
		guarded := &guardedStream{ServerStream: ss, guard: g, method: info.FullMethod, ctx: ctx, end: cancel}
		err = handler(srv, guarded)
		if cause := context.Cause(ctx); err != nil && cause != nil && ss.Context().Err() == nil {
			err = cause
		}
		ctx = guarded.Context()
	}
	err = withStatus(err)
	g.report(ctx, info.FullMethod, start, err)
	return err
}

// errStopping ends the streams of a server that ends.
var errStopping = grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "the service is stopping")

// Stopping tells whether a stream's context has ended because its server ends, not
// for anything that its client has done.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStopping) }

// withStatus gives an error that is none of gRPC's, as of a context that ended,
// the code that the client gets.
func withStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// admit authenticates a call and gives its context a request id, an identity and
// a caller: what the server sees of it, not what it says of itself.
func (g guard) admit(ctx context.Context, method string) (context.Context, error) {
	ctx = callctx.WithCaller(callctx.Incoming(ctx), observed(ctx))
	if open(method) {
		return ctx, nil
	}
	ctx, err := authenticate(ctx, g.authenticator)
	if err == nil && g.authorizer != nil {
		ctx = context.WithValue(ctx, authorizerKey{}, g.authorizer)
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

// guardedStream authorizes a stream by its first message, before its handler can
// send anything, and validates each message that it receives. Handlers get the
// admitted context.
type guardedStream struct {
	grpc.ServerStream
	guard  guard
	method string
	// end ends the stream with a cause.
	end context.CancelCauseFunc

	mu         sync.Mutex
	ctx        context.Context
	authorized bool
	request    *access.Request // of the first message; nil: it asked for nothing
}

// Context implements grpc.ServerStream. It is to be asked for again after the
// first message, which says for whom the call is made.
func (s *guardedStream) Context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx
}

// RecvMsg implements grpc.ServerStream. Handlers see no message that shows another
// token.
func (s *guardedStream) RecvMsg(m any) error {
	for {
		if err := s.ServerStream.RecvMsg(m); err != nil {
			return err
		}
		if err := validate(s.guard.validator, m); err != nil {
			return err
		}
		if !governed(s.method) {
			return nil
		}
		later, err := s.admit(m)
		if err != nil || !later {
			return err
		}
		token := renewal(m)
		if token == "" {
			return s.sameBMC(m)
		}
		ctx := s.Context()
		if err := credentialOf(ctx).renew(ctx, s.guard.authenticator, token); err != nil {
			return err
		}
	}
}

// admit authorizes the stream by its first message; later tells that this is none.
func (s *guardedStream) admit(m any) (later bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false, context.Cause(s.ctx)
	}
	if s.authorized {
		return true, nil
	}
	ctx, request, err := s.guard.authorize(s.ctx, s.method, m)
	if err != nil {
		return false, err
	}
	s.ctx, s.request, s.authorized = ctx, request, true
	go s.guard.watch(ctx, request, s.end)
	return false, nil
}

// SendHeader implements grpc.ServerStream.
func (s *guardedStream) SendHeader(md metadata.MD) error {
	if err := s.maySend(); err != nil {
		return err
	}
	return s.ServerStream.SendHeader(md)
}

// SendMsg implements grpc.ServerStream.
func (s *guardedStream) SendMsg(m any) error {
	if err := s.maySend(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// maySend keeps handlers from answering before the caller is authorized, and
// after it has lost its right.
func (s *guardedStream) maySend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guard.authorizer == nil || !governed(s.method) {
		return nil
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if s.authorized {
		return nil
	}
	return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "%s answers before its first message is there", s.method)
}
