// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// named returns the BMC that a call's first message is about; nil when it names
// none.
func named(message any) *referencev1.BMCReference {
	switch m := message.(type) {
	case interface {
		GetBmc() *referencev1.BMCReference
	}:
		return m.GetBmc()
	case *consolev1.ConnectRequest:
		return m.GetOpen().GetBmc()
	default:
		return nil
	}
}

func unaryByBMC(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(withBMC(ctx, req), method, req, reply, cc, opts...)
}

func streamByBMC(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return &lateStream{
		ctx: ctx, opened: make(chan struct{}),
		open: func(ctx context.Context) (grpc.ClientStream, error) { return streamer(ctx, desc, cc, method, opts...) },
	}, nil
}

// lateStream is a stream that is opened by its first message, for that says
// which replica it goes to.
type lateStream struct {
	ctx  context.Context
	open func(context.Context) (grpc.ClientStream, error)

	once   sync.Once
	opened chan struct{}
	stream grpc.ClientStream
	err    error
}

// start opens the stream, for the BMC that the message names.
func (s *lateStream) start(message any) (grpc.ClientStream, error) {
	s.once.Do(func() {
		s.stream, s.err = s.open(withBMC(s.ctx, message))
		close(s.opened)
	})
	return s.stream, s.err
}

// wait waits until the stream is opened.
func (s *lateStream) wait() (grpc.ClientStream, error) {
	select {
	case <-s.opened:
		return s.stream, s.err
	case <-s.ctx.Done():
		return s.start(nil) // It says how the call ends.
	}
}

// SendMsg opens the stream with its first message.
func (s *lateStream) SendMsg(m any) error {
	stream, err := s.start(m)
	if err != nil {
		return err
	}
	return stream.SendMsg(m)
}

// CloseSend closes the direction of sending.
func (s *lateStream) CloseSend() error {
	stream, err := s.start(nil)
	if err != nil {
		return err
	}
	return stream.CloseSend()
}

// RecvMsg waits for a message.
func (s *lateStream) RecvMsg(m any) error {
	stream, err := s.wait()
	if err != nil {
		return err
	}
	return stream.RecvMsg(m)
}

// Header waits for the server's metadata.
func (s *lateStream) Header() (metadata.MD, error) {
	stream, err := s.wait()
	if err != nil {
		return nil, err
	}
	return stream.Header()
}

// Trailer is what the server sent at the end; nil before.
func (s *lateStream) Trailer() metadata.MD {
	select {
	case <-s.opened:
		if s.err == nil {
			return s.stream.Trailer()
		}
	default:
	}
	return nil
}

// Context is the stream's.
func (s *lateStream) Context() context.Context {
	select {
	case <-s.opened:
		if s.err == nil {
			return s.stream.Context()
		}
	default:
	}
	return s.ctx
}
