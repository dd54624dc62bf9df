// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"sync"
)

// State tells whether bytes can flow.
type State int

// The states.
const (
	// Disconnected: input is dropped.
	Disconnected State = iota + 1
	// Connected to the guest's serial port.
	Connected
)

// Message is a change of the state or some output.
type Message struct {
	// State is 0 in a message with output.
	State  State
	Output []byte
}

// Client is one who watches a console.
type Client struct {
	line     *line
	readOnly bool
	wake     chan struct{}

	mu      sync.Mutex
	waiting []Message
	unread  int
	err     error
}

// Next waits for a message.
func (c *Client) Next(ctx context.Context) (Message, error) {
	for {
		c.mu.Lock()
		switch {
		case c.err != nil:
			defer c.mu.Unlock()
			return Message{}, c.err
		case len(c.waiting) > 0:
			defer c.mu.Unlock()
			message := c.waiting[0]
			c.waiting = c.waiting[1:]
			c.unread -= len(message.Output)
			return message, nil
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// Type types at the guest, what one call has as a whole. It waits for the guest
// to take what others have typed before. While the console is disconnected the
// bytes are dropped. The caller may not change them afterwards.
func (c *Client) Type(ctx context.Context, p []byte) error {
	if c.readOnly {
		return ErrReadOnly
	}
	l := c.line
	l.mu.Lock()
	session := l.session
	l.want()
	l.mu.Unlock()
	if session == nil {
		return nil
	}
	select {
	case session.typed <- p:
		return nil
	case <-session.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the client.
func (c *Client) Close() { c.line.hub.leave(c) }

// put has the client get a message; it copies the output.
func (c *Client) put(message Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if c.unread+len(message.Output) > maxUnread {
		c.err = ErrTooSlow
		c.waiting = nil
		c.signal()
		return
	}
	last := len(c.waiting) - 1
	switch {
	case message.State != 0:
		c.waiting = append(c.waiting, message)
	case last >= 0 && c.waiting[last].State == 0 && len(c.waiting[last].Output)+len(message.Output) <= readSize:
		c.waiting[last].Output = append(c.waiting[last].Output, message.Output...)
	default:
		c.waiting = append(c.waiting, Message{Output: append(make([]byte, 0, readSize), message.Output...)})
	}
	c.unread += len(message.Output)
	c.signal()
}

// fail ends the client with an error.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.signal()
}

func (c *Client) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
