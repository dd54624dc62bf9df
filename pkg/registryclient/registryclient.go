// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package registryclient keeps a frontend in step with the registry: which BMCs
// it serves, where, and who may log in.
package registryclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Time between attempts to subscribe: from firstDelay, doubled up to
// maxDelay, with up to half of it taken off at random.
const (
	firstDelay = 200 * time.Millisecond
	maxDelay   = 5 * time.Second
)

// retryInterval is how often BMCs that could not be served are tried again, as
// when another program had their port.
const retryInterval = 5 * time.Second

// Handler serves the BMCs that the registry names. Calls come one at a time.
type Handler interface {
	// Apply serves a BMC as the registry says from now on; the same content may
	// come again. An error says why it can't be served and holds no secrets; the
	// registry gets it as acknowledgement.
	Apply(ctx context.Context, bmc *registryv1.BMC) error
	// Remove stops serving a BMC; one that is not served is no error.
	Remove(bmc *referencev1.BMCReference)
}

// Config of a client. All fields but Only and OnSynced are needed.
type Config struct {
	// Conn is the connection to the registry.
	Conn grpc.ClientConnInterface
	// Protocol that the frontend speaks.
	Protocol registryv1.Protocol
	// Replica is the unique name of this frontend.
	Replica string
	// Only is the one BMC that the frontend serves, whatever the registry names;
	// nil: it serves all that are named.
	Only *referencev1.BMCReference
	// Log gets a line for each lost stream.
	Log *slog.Logger
	// OnSynced is called each time that the frontend has all BMCs.
	OnSynced func()
	// Leaving is closed when the frontend is about to end: Run goes on until the
	// registry has given all its BMCs to others. nil: it never is.
	Leaving <-chan struct{}
}

// Run subscribes, and again with back-off whenever the stream is lost, until
// the context ends; its error is returned. While the stream is lost the handler
// keeps what it has. A frontend that is leaving has no error when it has no BMC
// any more.
func Run(ctx context.Context, cfg Config, handler Handler) error {
	c := client{cfg: cfg, handler: handler, known: map[string]known{}, leaving: cfg.Leaving}
	delay := firstDelay
	for {
		synced, err := c.subscribe(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.left() {
			return nil
		}
		if synced {
			delay = firstDelay
		}
		pause := delay - rand.N(delay/2) //nolint:gosec // Jitter is no secret.
		cfg.Log.WarnContext(ctx, "registry stream lost; the BMCs are served as last known",
			logkey.Error, status.Convert(err).Message(), "retry_in", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.leaving:
			c.leave()
			if c.left() {
				return nil
			}
		case <-time.After(pause):
		}
		delay = min(2*delay, maxDelay)
	}
}

// Drain returns a context that ends a while after another, or at once when stop is
// called: Run's, where the other closes Leaving.
func Drain(ctx context.Context, while time.Duration) (drained context.Context, stop context.CancelFunc) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(while, cancel)
		context.AfterFunc(drained, func() { timer.Stop() })
	})
	return drained, func() {
		forget()
		cancel()
	}
}

// known is what the client has of one BMC.
type known struct {
	bmc   *registryv1.BMC
	round uint64 // the subscription in which it was last named
	// revision in which it was last named.
	revision uint64
	// Why it is not served; empty when it is.
	problem string
}

type client struct {
	cfg      Config
	handler  Handler
	known    map[string]known
	revision uint64
	round    uint64
	// leaving is the configuration's until it was closed, then nil.
	leaving <-chan struct{}
}

// leave notes that the frontend is about to end.
func (c *client) leave() { c.leaving = nil }

// left tells whether the frontend is about to end and serves nothing any more.
func (c *client) left() bool {
	return c.cfg.Leaving != nil && c.leaving == nil && len(c.known) == 0
}

// subscribe runs one stream to its end; synced tells whether it got so far as
// to have all BMCs.
func (c *client) subscribe(ctx context.Context) (synced bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := registryv1.NewRegistryServiceClient(c.cfg.Conn).Subscribe(ctx)
	if err != nil {
		return false, err
	}
	hello := &registryv1.Hello{Protocol: c.cfg.Protocol, Replica: c.cfg.Replica, Revision: c.revision}
	if err := stream.Send(&registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Hello{Hello: hello}}); err != nil {
		return false, sendError(err, receive(ctx, stream))
	}
	c.round++
	messages := receive(ctx, stream)
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for !c.left() {
		var acks []*registryv1.Acknowledgement
		select {
		case <-ctx.Done():
			return synced, ctx.Err()
		case <-c.leaving:
			c.leave()
		case <-retry.C:
			acks = c.retry(ctx)
		case m, ok := <-messages:
			if !ok {
				return synced, ctx.Err()
			}
			if errors.Is(m.err, io.EOF) {
				return synced, errors.New("the registry closed the stream")
			}
			if m.err != nil {
				return synced, m.err
			}
			acks = c.handle(ctx, m.response, synced)
			if _, ok := m.response.GetPayload().(*registryv1.SubscribeResponse_Synced); ok {
				synced = true
				if c.cfg.OnSynced != nil {
					c.cfg.OnSynced()
				}
			}
			if synced {
				// Within the first part a revision is not complete yet: a stream that
				// breaks there has to start from the older one.
				c.revision = m.response.GetRevision()
			}
		}
		for _, ack := range acks {
			if err := stream.Send(&registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Acknowledgement{Acknowledgement: ack}}); err != nil {
				return synced, sendError(err, messages)
			}
		}
	}
	return synced, nil
}

// message is what a stream's Recv returned.
type message struct {
	response *registryv1.SubscribeResponse
	err      error
}

// receive passes on what comes, an error last, until the context ends; then it
// closes the channel.
func receive(ctx context.Context, stream grpc.BidiStreamingClient[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) <-chan message {
	messages := make(chan message)
	go func() {
		defer close(messages)
		for {
			response, err := stream.Recv()
			select {
			case messages <- message{response, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// retry tries to serve what could not be served before.
func (c *client) retry(ctx context.Context) []*registryv1.Acknowledgement {
	var acks []*registryv1.Acknowledgement
	for _, k := range c.known {
		if k.problem == "" {
			continue
		}
		if ack := c.upsert(ctx, k.bmc, k.revision, k.round); ack.GetServing() {
			acks = append(acks, ack)
		}
	}
	return acks
}

// handle acts on a message and returns the acknowledgements that it calls for.
func (c *client) handle(ctx context.Context, response *registryv1.SubscribeResponse, synced bool) []*registryv1.Acknowledgement {
	switch payload := response.GetPayload().(type) {
	case *registryv1.SubscribeResponse_Upsert:
		return []*registryv1.Acknowledgement{c.upsert(ctx, payload.Upsert, response.GetRevision(), c.round)}
	case *registryv1.SubscribeResponse_Removal:
		c.remove(payload.Removal)
		return []*registryv1.Acknowledgement{{Bmc: payload.Removal, Revision: response.GetRevision()}}
	case *registryv1.SubscribeResponse_Synced:
		if synced || !payload.Synced.GetFull() {
			return nil
		}
		unknown := map[string]bool{}
		for _, bmc := range payload.Synced.GetUnknown() {
			unknown[keyOf(bmc)] = true
		}
		var acks []*registryv1.Acknowledgement
		for key, k := range c.known {
			if k.round != c.round && !unknown[key] {
				c.remove(k.bmc.GetBmc())
				acks = append(acks, &registryv1.Acknowledgement{Bmc: k.bmc.GetBmc(), Revision: response.GetRevision()})
			}
		}
		return acks
	}
	return nil // A newer registry may say more than this client understands.
}

// upsert serves a BMC as the registry named it in a revision and a round: not
// always the present ones, when it is tried again.
func (c *client) upsert(ctx context.Context, bmc *registryv1.BMC, revision, round uint64) *registryv1.Acknowledgement {
	key := keyOf(bmc.GetBmc())
	k, ok := c.known[key]
	if !ok || k.problem != "" || !proto.Equal(k.bmc, bmc) {
		before := k.problem
		k = known{bmc: bmc}
		if err := c.apply(ctx, bmc); err != nil {
			k.problem = shorten(err.Error())
		}
		if k.problem != "" && k.problem != before {
			c.cfg.Log.ErrorContext(ctx, "BMC can't be served", logkey.Namespace, bmc.GetBmc().GetNamespace(),
				logkey.BMC, bmc.GetBmc().GetName(), logkey.Error, k.problem)
		}
	}
	k.round, k.revision = round, revision
	c.known[key] = k
	return &registryv1.Acknowledgement{Bmc: bmc.GetBmc(), Revision: revision, Serving: k.problem == "", Message: k.problem}
}

// apply serves a BMC if it is one to serve.
func (c *client) apply(ctx context.Context, bmc *registryv1.BMC) error {
	if only := c.cfg.Only; only != nil && keyOf(bmc.GetBmc()) != keyOf(only) {
		return fmt.Errorf("this frontend serves BMC %s alone", keyOf(only))
	}
	return c.handler.Apply(ctx, bmc)
}

func (c *client) remove(bmc *referencev1.BMCReference) {
	delete(c.known, keyOf(bmc))
	c.handler.Remove(bmc)
}

func keyOf(bmc *referencev1.BMCReference) string { return bmc.GetNamespace() + "/" + bmc.GetName() }

// shorten cuts a text to what an acknowledgement may hold.
func shorten(s string) string {
	const most = 1024
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

// sendError returns why a stream broke: what a failed Send says is only that it
// did, the stream's last message says why.
func sendError(err error, messages <-chan message) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for m := range messages {
		if m.err != nil {
			return fmt.Errorf("send: %w", m.err)
		}
	}
	return err
}
