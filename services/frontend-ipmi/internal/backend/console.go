// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Console reaches the serial consoles of machines.
type Console interface {
	// Connect opens a machine's console until the context ends, and waits for
	// its state.
	Connect(ctx context.Context, bmc *referencev1.BMCReference, readOnly bool) (ConsoleStream, error)
}

// ConsoleStream is an open console. One may receive while another one sends.
type ConsoleStream interface {
	// Connected tells whether the guest's serial port was there to begin with.
	Connected() bool
	// Receive waits for what comes next.
	Receive() (ConsoleEvent, error)
	// Send types at the guest. It waits while the guest takes no more.
	Send(input []byte) error
	// Break asks for a serial break. A refusal ends the stream: Receive tells.
	Break() error
}

// ConsoleEvent is output of the guest, or whether its serial port is there.
type ConsoleEvent struct {
	Output    []byte
	Connected bool // Means something without Output alone.
}

// NewConsole returns the Console of a connection to a ConsoleService.
func NewConsole(conn grpc.ClientConnInterface) Console {
	return consoleClient{consolev1.NewConsoleServiceClient(conn)}
}

type consoleClient struct {
	client consolev1.ConsoleServiceClient
}

type consoleStream struct {
	stream    grpc.BidiStreamingClient[consolev1.ConnectRequest, consolev1.ConnectResponse]
	connected bool
}

func (c consoleClient) Connect(ctx context.Context, bmc *referencev1.BMCReference, readOnly bool) (ConsoleStream, error) {
	stream, err := c.client.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	s := &consoleStream{stream: stream}
	open := &consolev1.Open{Bmc: bmc, ReadOnly: readOnly}
	// The error of a stream that has ended is what Receive tells.
	if err := stream.Send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: open}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("open console: %w", err)
	}
	first, err := s.Receive()
	if err != nil {
		return nil, fmt.Errorf("open console: %w", err)
	}
	s.connected = first.Connected
	return s, nil
}

func (s *consoleStream) Connected() bool { return s.connected }

func (s *consoleStream) Receive() (ConsoleEvent, error) {
	response, err := s.stream.Recv()
	if err != nil {
		return ConsoleEvent{}, err
	}
	return ConsoleEvent{
		Output:    response.GetOutput(),
		Connected: response.GetState() == consolev1.ConsoleState_CONSOLE_STATE_CONNECTED,
	}, nil
}

func (s *consoleStream) Send(input []byte) error {
	return s.stream.Send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: input}})
}

func (s *consoleStream) Break() error {
	return s.stream.Send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Break{Break: &consolev1.Break{}}})
}
