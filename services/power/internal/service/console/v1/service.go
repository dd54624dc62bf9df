// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package consolev1 serves bmc.console.v1.
package consolev1

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/power/internal/console"
	"kubevirtbmc.dev/services/power/internal/service/reason"
)

// Config of the service.
type Config struct {
	Hub      *console.Hub
	Resolver hypervisor.Resolver
	Audit    *audit.Trail
}

// Service is ConsoleService.
type Service struct {
	consolev1.UnsafeConsoleServiceServer
	hub      *console.Hub
	resolver hypervisor.Resolver
	audit    *audit.Trail
}

// New makes the service.
func New(config Config) *Service {
	return &Service{hub: config.Hub, resolver: config.Resolver, audit: config.Audit}
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	consolev1.RegisterConsoleServiceServer(registrar, service)
}

// Connect implements ConsoleService.
func (s *Service) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the first message must open the console")
	}
	client, err := s.open(open)
	err = reason.Status(err)
	if !open.GetReadOnly() {
		s.audit.Record(stream.Context(), grpcserver.IdentityOf(stream.Context()), "CONSOLE_OPEN", open.GetBmc(), err)
	}
	if err != nil {
		return err
	}
	defer client.Close()

	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { cancel(receive(stream, client)) }()
	sent := make(chan error, 1)
	go func() { sent <- send(ctx, stream, client) }()
	// Sending may wait for a client that does not read; returning ends that.
	select {
	case err = <-sent:
	case <-client.TooSlow():
		err = console.ErrTooSlow
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	if errors.Is(err, errClosed) {
		return nil
	}
	return reason.Status(err)
}

// send hands the client's messages to the stream.
func send(ctx context.Context, stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse], client *console.Client) error {
	for {
		message, err := client.Next(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(response(message)); err != nil {
			return err
		}
	}
}

func (s *Service) open(open *consolev1.Open) (*console.Client, error) {
	ref, err := s.resolver.Resolve(open.GetBmc().GetNamespace(), open.GetBmc().GetName())
	if err != nil {
		return nil, err
	}
	return s.hub.Connect(ref, open.GetReadOnly())
}

// errClosed ends a stream whose client has nothing more to say.
var errClosed = errors.New("closed by the client")

// receive takes the client's messages until there are no more. A client that
// closes its side ends the stream.
func receive(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse], client *console.Client) error {
	for {
		request, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errClosed
		case err != nil:
			return err
		}
		switch payload := request.GetPayload().(type) {
		case *consolev1.ConnectRequest_Input:
			err := client.Type(stream.Context(), payload.Input)
			switch {
			case errors.Is(err, console.ErrReadOnly):
				return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "%s", err)
			case err != nil:
				return err
			}
		case *consolev1.ConnectRequest_Break:
			return grpcstatus.New(errorsv1.Reason_REASON_UNSUPPORTED, "the hypervisor has no serial break")
		default:
			return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the console is open already")
		}
	}
}

func response(message console.Message) *consolev1.ConnectResponse {
	switch message.State {
	case console.Connected:
		return &consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_State{State: consolev1.ConsoleState_CONSOLE_STATE_CONNECTED}}
	case console.Disconnected:
		return &consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_State{State: consolev1.ConsoleState_CONSOLE_STATE_DISCONNECTED}}
	default:
		return &consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_Output{Output: message.Output}}
	}
}
