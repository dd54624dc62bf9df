// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	accessv1 "kubevirtbmc.dev/proto/gen/go/bmc/access/v1"
)

// defaultRenew is less than the time between a projected token's replacement and
// its end: the kubelet replaces it after 80% of its life, which is 10 min at least,
// and writes the file within a minute or so
// (https://kubernetes.io/docs/concepts/storage/projected-volumes/#serviceaccounttoken).
const defaultRenew = 20 * time.Second

// streamRenewal shows a stream's server each token that takes the place of the one
// with which the stream was opened, where the stream's messages provide for it
// (bmc.access.v1.Renewal).
func streamRenewal(token func() (string, error), every time.Duration) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if !desc.ClientStreams {
			return streamer(ctx, desc, cc, method, opts...)
		}
		// Before the stream is opened, so that none that comes meanwhile is missed.
		shown, _ := token() // Opening the stream says what is wrong.
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, err
		}
		return &renewedStream{ClientStream: stream, token: token, every: every, shown: shown, ctx: ctx, done: make(chan struct{})}, nil
	}
}

// renewedStream lets one goroutine more send than those of the stream's user, who
// are one at a time already.
type renewedStream struct {
	grpc.ClientStream
	token func() (string, error)
	every time.Duration
	// ctx is what the stream was opened with. The stream's own would keep gRPC from
	// sending the call again.
	ctx  context.Context
	once sync.Once
	done chan struct{} // closed when the stream has ended

	mu    sync.Mutex
	begun bool
	ended bool // the user sends no more
	shown string
}

// SendMsg sends a message. The first one tells which messages there are.
func (s *renewedStream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ClientStream.SendMsg(m); err != nil {
		return err
	}
	if !s.begun {
		s.begun = true
		if message, ok := m.(proto.Message); ok && renewalField(message) != nil {
			go s.renew(message.ProtoReflect().Type())
		}
	}
	return nil
}

// CloseSend ends the direction of sending, after which no token can be shown.
func (s *renewedStream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return s.ClientStream.CloseSend()
}

// RecvMsg waits for a message, or for the end.
func (s *renewedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.once.Do(func() { close(s.done) })
	}
	return err
}

// renewalField is the field in which a message shows another token; nil: it has
// none.
func renewalField(message proto.Message) protoreflect.FieldDescriptor {
	field := message.ProtoReflect().Descriptor().Fields().ByName("renewal")
	if field == nil || field.Message() == nil || field.Message().FullName() != (*accessv1.Renewal)(nil).ProtoReflect().Descriptor().FullName() {
		return nil
	}
	return field
}

// renew shows tokens until the stream ends.
func (s *renewedStream) renew(kind protoreflect.MessageType) {
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.done:
			return
		case <-ticker.C:
		}
		// One that can't be read now may be later.
		if token, err := s.token(); err == nil && token != "" && !s.show(kind, token) {
			return
		}
	}
}

// show sends a token that is another than the last; false when none can be sent
// any more, of which the stream's user learns.
func (s *renewedStream) show(kind protoreflect.MessageType, token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || token == s.shown {
		return !s.ended
	}
	message := kind.New()
	message.Set(renewalField(message.Interface()), protoreflect.ValueOfMessage((&accessv1.Renewal{Token: token}).ProtoReflect()))
	if s.ClientStream.SendMsg(message.Interface()) != nil {
		return false
	}
	s.shown = token
	return true
}
