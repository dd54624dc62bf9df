// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 3 * time.Second
)

// Client is a hypervisor in another process. Its cache is filled by Run; while
// the connection is lost it shows what was last seen.
type Client struct {
	connection grpc.ClientConnInterface
	log        *slog.Logger

	mu          sync.Mutex
	synced      chan struct{}
	machines    map[hypervisor.Ref]cached
	subscribers follow.Subscribers
	// advanced is closed at the next change of the cache.
	advanced chan struct{}
}

var _ hypervisor.Hypervisor = (*Client)(nil)

type cached struct {
	machine *hypervisor.Machine
	trays   []hypervisor.Tray
	version uint64
}

// NewClient returns a client; Run makes it work.
func NewClient(connection grpc.ClientConnInterface, log *slog.Logger) *Client {
	return &Client{
		connection: connection,
		log:        log,
		synced:     make(chan struct{}),
		machines:   map[hypervisor.Ref]cached{},
		advanced:   make(chan struct{}),
	}
}

// Run keeps the cache until the context ends.
func (c *Client) Run(ctx context.Context) error {
	retry := retryMin
	for {
		received, err := c.watch(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // It was asked to end: the error is that of the end.
		}
		if received {
			retry = retryMin
		}
		c.log.Warn("lost the hypervisor", slog.String(logkey.Error, err.Error()))
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil
		}
		retry = min(2*retry, retryMax)
	}
}

// WaitSynced waits until the cache has been filled.
func (c *Client) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch follows the hypervisor until the stream ends.
func (c *Client) watch(ctx context.Context) (received bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.connection.NewStream(ctx, &watchStream, watchMethod)
	if err != nil {
		return false, err
	}
	if err := stream.SendMsg(&wireMessage{}); err != nil {
		return false, err
	}
	if err := stream.CloseSend(); err != nil {
		return false, err
	}
	listed := map[hypervisor.Ref]bool{}
	for {
		message := &wireMessage{}
		if err := stream.RecvMsg(message); err != nil {
			return received, err
		}
		received = true
		var e event
		if err := unpack(message, &e); err != nil {
			return received, err
		}
		if !e.Synced {
			if listed != nil {
				listed[e.Ref] = true
			}
			if err := c.store(e); err != nil {
				return received, err
			}
			continue
		}
		c.dropOthers(listed)
		listed = nil
	}
}

// store brings the cache up to date.
func (c *Client) store(e event) error {
	entry := cached{machine: e.Machine, trays: e.Trays}
	if e.Machine != nil {
		version, err := strconv.ParseUint(e.Machine.ResourceVersion, 10, 64)
		if err != nil {
			return fmt.Errorf("resource version of %s: %w", e.Ref, err)
		}
		entry.version = version
	}
	c.mu.Lock()
	if e.Machine == nil {
		delete(c.machines, e.Ref)
	} else {
		c.machines[e.Ref] = entry
	}
	c.advance()
	c.mu.Unlock()
	c.subscribers.Changed(e.Ref)
	return nil
}

// dropOthers ends a listing: what it did not have is gone.
func (c *Client) dropOthers(listed map[hypervisor.Ref]bool) {
	c.mu.Lock()
	var gone []hypervisor.Ref
	for ref := range c.machines {
		if !listed[ref] {
			gone = append(gone, ref)
			delete(c.machines, ref)
		}
	}
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
	c.advance()
	c.mu.Unlock()
	for _, ref := range gone {
		c.subscribers.Changed(ref)
	}
}

// advance wakes those who wait for the cache; the caller holds the mutex and tells
// the subscribers after it.
func (c *Client) advance() {
	close(c.advanced)
	c.advanced = make(chan struct{})
}

// find returns what the cache has of a machine.
func (c *Client) find(ref hypervisor.Ref) (cached, error) {
	select {
	case <-c.synced:
	default:
		return cached{}, hypervisor.ErrUnavailable
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.machines[ref]
	if !ok {
		return cached{}, hypervisor.ErrNotFound
	}
	return entry, nil
}

// Get implements hypervisor.Machines.
func (c *Client) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	entry, err := c.find(ref)
	return entry.machine, err
}

// List implements hypervisor.Machines.
func (c *Client) List() ([]*hypervisor.Machine, error) {
	select {
	case <-c.synced:
	default:
		return nil, hypervisor.ErrUnavailable
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	machines := make([]*hypervisor.Machine, 0, len(c.machines))
	for _, entry := range c.machines {
		machines = append(machines, entry.machine)
	}
	return machines, nil
}

// Subscribe implements hypervisor.Machines.
func (c *Client) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	return c.subscribers.Subscribe(changed)
}

// Trays implements hypervisor.Media.
func (c *Client) Trays(ref hypervisor.Ref) ([]hypervisor.Tray, error) {
	entry, err := c.find(ref)
	return slices.Clone(entry.trays), err
}

// do sends a request and waits until the cache shows it.
func (c *Client) do(ctx context.Context, r request) error {
	in, err := pack(r)
	if err != nil {
		return err
	}
	out := &wireMessage{}
	if err := c.connection.Invoke(ctx, requestMethod, in, out); err != nil {
		return unavailable(ctx, err)
	}
	var answer response
	if err := unpack(out, &answer); err != nil {
		return err
	}
	if err := answer.Error.unpack(); err != nil {
		return err
	}
	if answer.Version == "" {
		// The machine was deleted meanwhile: there is nothing to wait for.
		return nil
	}
	version, err := strconv.ParseUint(answer.Version, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version of %s: %w", r.Ref, err)
	}
	return c.waitVersion(ctx, r.Ref, version)
}

// unavailable turns what gRPC says of a lost connection into ErrUnavailable.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %s", hypervisor.ErrUnavailable, status.Convert(err).Message())
	}
	return err
}

func (c *Client) waitVersion(ctx context.Context, ref hypervisor.Ref, version uint64) error {
	known := false
	for {
		c.mu.Lock()
		entry, ok := c.machines[ref]
		advanced := c.advanced
		c.mu.Unlock()
		if ok && entry.version >= version || known && !ok {
			return nil
		}
		known = known || ok
		select {
		case <-advanced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Start implements hypervisor.Power.
func (c *Client) Start(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbStart, Ref: ref})
}

// Stop implements hypervisor.Power.
func (c *Client) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	return c.do(ctx, request{Verb: verbStop, Ref: ref, Grace: grace})
}

// Restart implements hypervisor.Power.
func (c *Client) Restart(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbRestart, Ref: ref})
}

// Reset implements hypervisor.Power.
func (c *Client) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbReset, Ref: ref})
}

// SoftReboot implements hypervisor.Power.
func (c *Client) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbSoftReboot, Ref: ref})
}

// Pause implements hypervisor.Power.
func (c *Client) Pause(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbPause, Ref: ref})
}

// Unpause implements hypervisor.Power.
func (c *Client) Unpause(ctx context.Context, ref hypervisor.Ref) error {
	return c.do(ctx, request{Verb: verbUnpause, Ref: ref})
}

// SetRunStrategy implements hypervisor.Power.
func (c *Client) SetRunStrategy(ctx context.Context, ref hypervisor.Ref, from, to hypervisor.RunStrategy) error {
	return c.do(ctx, request{Verb: verbSetRunStrategy, Ref: ref, From: from, To: to})
}

// DeleteInstance implements hypervisor.Power.
func (c *Client) DeleteInstance(ctx context.Context, ref hypervisor.Ref, uid string) error {
	return c.do(ctx, request{Verb: verbDeleteInstance, Ref: ref, UID: uid})
}

// SetBoot implements hypervisor.Boot.
func (c *Client) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	return c.do(ctx, request{Verb: verbSetBoot, Ref: ref, ResourceVersion: resourceVersion, Orders: orders, Mode: mode})
}

// SetState implements hypervisor.State.
func (c *Client) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	return c.do(ctx, request{Verb: verbSetState, Ref: ref, Old: old, State: state})
}

// Insert implements hypervisor.Media.
func (c *Client) Insert(ctx context.Context, ref hypervisor.Ref, device string, image hypervisor.Image) error {
	return c.do(ctx, request{Verb: verbInsert, Ref: ref, Device: device, Image: image})
}

// Eject implements hypervisor.Media.
func (c *Client) Eject(ctx context.Context, ref hypervisor.Ref, device string) error {
	return c.do(ctx, request{Verb: verbEject, Ref: ref, Device: device})
}

// OpenConsole implements hypervisor.Console. The context counts for the opening
// alone.
func (c *Client) OpenConsole(ctx context.Context, ref hypervisor.Ref) (io.ReadWriteCloser, error) {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	opened, err := c.openConsole(streamCtx, ref)
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, unavailable(ctx, err)
	}
	return &consoleConn{stream: opened, cancel: cancel}, nil
}

func (c *Client) openConsole(ctx context.Context, ref hypervisor.Ref) (grpc.ClientStream, error) {
	stream, err := c.connection.NewStream(ctx, &consoleStream, consoleMethod)
	if err != nil {
		return nil, err
	}
	if err := sendFrame(stream, consoleFrame{Ref: &ref}); err != nil {
		return nil, err
	}
	frame, err := receiveFrame(stream)
	if err != nil {
		return nil, err
	}
	return stream, frame.Error.unpack()
}

// consoleConn is a console over a stream.
type consoleConn struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	unread []byte
	write  sync.Mutex
}

// Read implements io.Reader.
func (c *consoleConn) Read(p []byte) (int, error) {
	for len(c.unread) == 0 {
		frame, err := receiveFrame(c.stream)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return 0, io.EOF
			}
			return 0, fmt.Errorf("%w: %s", hypervisor.ErrUnavailable, status.Convert(err).Message())
		}
		c.unread = frame.Data
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// Write implements io.Writer.
func (c *consoleConn) Write(p []byte) (int, error) {
	c.write.Lock()
	defer c.write.Unlock()
	if err := sendFrame(c.stream, consoleFrame{Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close implements io.Closer.
func (c *consoleConn) Close() error {
	c.cancel()
	return nil
}
