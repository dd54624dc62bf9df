// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// consoleBuffer is how much console output goes into one message.
const consoleBuffer = 16 << 10

// Register serves a hypervisor to Clients.
func Register(registrar grpc.ServiceRegistrar, h hypervisor.Hypervisor) {
	watch, console := watchStream, consoleStream
	watch.Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*server).watch(stream) }
	console.Handler = func(srv any, stream grpc.ServerStream) error { return srv.(*server).console(stream) }
	registrar.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Request", Handler: handleRequest}},
		Streams:     []grpc.StreamDesc{watch, console},
	}, &server{h})
}

type server struct{ hypervisor hypervisor.Hypervisor }

//nolint:revive // gRPC wants the arguments in this order.
func handleRequest(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	in := &wireMessage{}
	if err := decode(in); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, in any) (any, error) {
		return srv.(*server).request(ctx, in.(*wireMessage))
	}
	if interceptor == nil {
		return handle(ctx, in)
	}
	return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: requestMethod}, handle)
}

func (s *server) request(ctx context.Context, in *wireMessage) (*wireMessage, error) {
	var r request
	if err := unpack(in, &r); err != nil {
		return nil, err
	}
	out := response{Error: packError(s.do(ctx, &r))}
	if m, err := s.hypervisor.Get(r.Ref); err == nil {
		out.Version = m.ResourceVersion
	}
	return pack(out)
}

func (s *server) do(ctx context.Context, r *request) error {
	h := s.hypervisor
	switch r.Verb {
	case verbStart:
		return h.Start(ctx, r.Ref)
	case verbStop:
		return h.Stop(ctx, r.Ref, r.Grace)
	case verbRestart:
		return h.Restart(ctx, r.Ref)
	case verbReset:
		return h.Reset(ctx, r.Ref)
	case verbSoftReboot:
		return h.SoftReboot(ctx, r.Ref)
	case verbPause:
		return h.Pause(ctx, r.Ref)
	case verbUnpause:
		return h.Unpause(ctx, r.Ref)
	case verbSetRunStrategy:
		return h.SetRunStrategy(ctx, r.Ref, r.From, r.To)
	case verbDeleteInstance:
		return h.DeleteInstance(ctx, r.Ref, r.UID)
	case verbSetBoot:
		return h.SetBoot(ctx, r.Ref, r.ResourceVersion, r.Orders, r.Mode)
	case verbSetState:
		return h.SetState(ctx, r.Ref, r.Old, r.State)
	case verbInsert:
		return h.Insert(ctx, r.Ref, r.Device, r.Image)
	case verbEject:
		return h.Eject(ctx, r.Ref, r.Device)
	default:
		return fmt.Errorf("%w: verb %q", hypervisor.ErrUnsupported, r.Verb)
	}
}

// watch sends all machines and then each change.
func (s *server) watch(stream grpc.ServerStream) error {
	if err := stream.RecvMsg(&wireMessage{}); err != nil {
		return err
	}
	var (
		mu    sync.Mutex
		dirty = map[hypervisor.Ref]bool{}
		wake  = make(chan struct{}, 1)
	)
	cancel := s.hypervisor.Subscribe(func(ref hypervisor.Ref) {
		mu.Lock()
		dirty[ref] = true
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer cancel()

	machines, err := s.hypervisor.List()
	if err != nil {
		return err
	}
	for _, m := range machines {
		if err := s.sendMachine(stream, m.Ref); err != nil {
			return err
		}
	}
	if err := sendEvent(stream, event{Synced: true}); err != nil {
		return err
	}
	for {
		select {
		case <-wake:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
		mu.Lock()
		changed := dirty
		dirty = map[hypervisor.Ref]bool{}
		mu.Unlock()
		for ref := range changed {
			if err := s.sendMachine(stream, ref); err != nil {
				return err
			}
		}
	}
}

func (s *server) sendMachine(stream grpc.ServerStream, ref hypervisor.Ref) error {
	e := event{Ref: ref}
	// The machine first: so its version is not newer than the trays.
	if m, err := s.hypervisor.Get(ref); err == nil {
		e.Machine = m
	}
	if trays, err := s.hypervisor.Trays(ref); err == nil {
		e.Trays = trays
	}
	return sendEvent(stream, e)
}

func sendEvent(stream grpc.ServerStream, e event) error {
	message, err := pack(e)
	if err != nil {
		return err
	}
	return stream.SendMsg(message)
}

// console connects a stream to a machine's serial port.
func (s *server) console(stream grpc.ServerStream) error {
	first, err := receiveFrame(stream)
	if err != nil {
		return err
	}
	if first.Ref == nil {
		return sendFrame(stream, consoleFrame{Error: packError(hypervisor.ErrNotFound)})
	}
	conn, err := s.hypervisor.OpenConsole(stream.Context(), *first.Ref)
	if sendErr := sendFrame(stream, consoleFrame{Error: packError(err)}); err != nil || sendErr != nil {
		return sendErr
	}
	defer func() { _ = conn.Close() }()
	go func() {
		// The client's end of the stream closes the port, which ends the loop
		// below.
		defer func() { _ = conn.Close() }()
		for {
			frame, err := receiveFrame(stream)
			if err != nil {
				return
			}
			if _, err := conn.Write(frame.Data); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, consoleBuffer)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := sendFrame(stream, consoleFrame{Data: buffer[:n]}); err != nil {
				return err
			}
		}
		switch {
		case stream.Context().Err() != nil:
			return status.FromContextError(stream.Context().Err()).Err()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// messageStream is either end of a stream.
type messageStream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

func sendFrame(stream messageStream, frame consoleFrame) error {
	message, err := pack(frame)
	if err != nil {
		return err
	}
	return stream.SendMsg(message)
}

func receiveFrame(stream messageStream) (consoleFrame, error) {
	var frame consoleFrame
	message := &wireMessage{}
	if err := stream.RecvMsg(message); err != nil {
		return frame, err
	}
	return frame, unpack(message, &frame)
}
