// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
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
	// tooSlow is closed when the client has not kept up.
	tooSlow chan struct{}

	mu      sync.Mutex
	waiting []Message
	unread  int
	err     error
}

// Next waits for a message. The error that ends the client comes after all
// messages, but ErrTooSlow in place of those that were not read.
func (c *Client) Next(ctx context.Context) (Message, error) {
	for {
		c.mu.Lock()
		switch {
		case len(c.waiting) > 0:
			defer c.mu.Unlock()
			message := c.waiting[0]
			c.waiting = c.waiting[1:]
			c.unread -= messageSize + len(message.Output)
			return message, nil
		case c.err != nil:
			defer c.mu.Unlock()
			return Message{}, c.err
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// TooSlow is closed when Next has ErrTooSlow, for who is held up elsewhere.
func (c *Client) TooSlow() <-chan struct{} { return c.tooSlow }

// Type types at the guest, what one call has as a whole, and returns when the
// connection has taken it. It waits for the guest to take what others have typed
// before. While the console is disconnected the bytes are dropped. The caller may
// not change them afterwards.
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
	typed := input{bytes: p, done: make(chan struct{})}
	select {
	case session.typed <- typed:
	case <-session.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-typed.done:
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
	last := len(c.waiting) - 1
	if message.State == 0 && last >= 0 && c.waiting[last].State == 0 && len(c.waiting[last].Output)+len(message.Output) <= readSize {
		c.waiting[last].Output = append(c.waiting[last].Output, message.Output...)
		c.unread += len(message.Output)
	} else {
		message.Output = bytes.Clone(message.Output)
		c.waiting = append(c.waiting, message)
		c.unread += messageSize + len(message.Output)
	}
	if c.unread > maxUnread {
		c.err = ErrTooSlow
		c.waiting = nil
		close(c.tooSlow)
	}
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
