// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package fakeservice

import (
	"bytes"
	"context"
	"sync"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/grpcstatus"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Serial is the serial console of one machine. What is typed at it is kept and,
// if the guest echoes, comes back.
type Serial struct {
	mu        sync.Mutex
	connected bool
	echo      bool
	breaks    int
	hasBreak  bool
	refuse    error
	stalled   chan struct{}
	typed     bytes.Buffer
	streams   map[*serialStream]struct{}
	opened    int
}

type serialStream struct {
	send     chan *consolev1.ConnectResponse
	cut      context.CancelFunc
	readOnly bool
}

// Serial returns the serial console of a machine, which is connected and echoes.
func (s *Services) Serial(bmc *referencev1.BMCReference) *Serial {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.serials[keyOf(bmc)]
	if c == nil {
		c = &Serial{connected: true, echo: true, streams: map[*serialStream]struct{}{}}
		s.serials[keyOf(bmc)] = c
	}
	return c
}

// Say is output of the guest.
func (c *Serial) Say(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.say([]byte(text))
}

func (c *Serial) say(b []byte) {
	for s := range c.streams {
		s.send <- &consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_Output{Output: bytes.Clone(b)}}
	}
}

// SetConnected says whether the guest's serial port is there.
func (c *Serial) SetConnected(connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = connected
	for s := range c.streams {
		s.send <- c.state()
	}
}

// SetEcho says whether the guest echoes.
func (c *Serial) SetEcho(echo bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.echo = echo
}

// SetBreak says whether the hypervisor has a serial break.
func (c *Serial) SetBreak(has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hasBreak = has
}

// Refuse makes opening the console fail; nil: no longer.
func (c *Serial) Refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = err
}

// Stall has the guest take no input until the function that it returns is
// called.
func (c *Serial) Stall() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stalled := make(chan struct{})
	c.stalled = stalled
	return sync.OnceFunc(func() { close(stalled) })
}

// Cut ends all streams, as the end of a replica of the service does.
func (c *Serial) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		s.cut()
	}
}

// Typed returns what was typed so far.
func (c *Serial) Typed() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.typed.String()
}

// Breaks returns how many breaks came.
func (c *Serial) Breaks() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaks
}

// Watchers returns how many streams there are, how many of them are read-only,
// and how many were ever opened.
func (c *Serial) Watchers() (open, readOnly, ever int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		if s.readOnly {
			readOnly++
		}
	}
	return len(c.streams), readOnly, c.opened
}

func (c *Serial) state() *consolev1.ConnectResponse {
	state := consolev1.ConsoleState_CONSOLE_STATE_DISCONNECTED
	if c.connected {
		state = consolev1.ConsoleState_CONSOLE_STATE_CONNECTED
	}
	return &consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_State{State: state}}
}

// Connect implements ConsoleService.
func (s *Services) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.begin(stream.Context()); err != nil {
		return err
	}
	s.mu.Lock()
	s.record(stream.Context(), first.GetOpen().GetBmc(), "open console")
	s.mu.Unlock()
	c := s.Serial(first.GetOpen().GetBmc())
	ctx, cut := context.WithCancel(stream.Context())
	defer cut()
	mine := &serialStream{send: make(chan *consolev1.ConnectResponse, 1<<12), cut: cut, readOnly: first.GetOpen().GetReadOnly()}
	c.mu.Lock()
	if c.refuse != nil {
		defer c.mu.Unlock()
		return c.refuse
	}
	c.opened++
	mine.send <- c.state()
	c.streams[mine] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.streams, mine)
	}()
	ended := make(chan error, 1)
	go func() { ended <- c.take(ctx, stream, mine.readOnly) }()
	for {
		select {
		case r := <-mine.send:
			if err := stream.Send(r); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			return grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "cut")
		}
	}
}

// take takes what a client types.
func (c *Serial) take(ctx context.Context, stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse], readOnly bool) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		c.mu.Lock()
		stalled := c.stalled
		c.mu.Unlock()
		if stalled != nil {
			select {
			case <-stalled:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c.mu.Lock()
		switch {
		case readOnly:
			err = grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "read-only")
		case r.GetBreak() != nil && !c.hasBreak:
			err = grpcstatus.New(errorsv1.Reason_REASON_UNSUPPORTED, "the hypervisor has no serial break")
		case r.GetBreak() != nil:
			c.breaks++
		case c.connected:
			c.typed.Write(r.GetInput())
			if c.echo {
				c.say(r.GetInput())
			}
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}
