// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package registryv1 serves bmc.registry.v1.
package registryv1

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// helloTime is how long a subscriber may take to say hello.
const helloTime = 10 * time.Second

// defaultRecheck is how often a subscriber is authorized again.
const defaultRecheck = time.Minute

// Config of the service. Registry is needed.
type Config struct {
	Registry *registry.Registry
	// AgentOf returns the BMCs whose agent an identity is, or is to become: one
	// subscribes before the registry has its BMC. It is asked while the registry
	// runs. nil: there are no agents.
	AgentOf func(ctx context.Context, identity string) []registry.Ref
	// Recheck is how often a subscriber is authorized again; 0: once a minute.
	Recheck time.Duration
}

// Service is RegistryService.
type Service struct {
	registryv1.UnsafeRegistryServiceServer
	registry *registry.Registry
	agentOf  func(ctx context.Context, identity string) []registry.Ref
	recheck  time.Duration
}

// New makes the service of a registry.
func New(config Config) *Service {
	if config.Recheck <= 0 {
		config.Recheck = defaultRecheck
	}
	if config.AgentOf == nil {
		config.AgentOf = func(context.Context, string) []registry.Ref { return nil }
	}
	return &Service{registry: config.Registry, agentOf: config.AgentOf, recheck: config.Recheck}
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	registryv1.RegisterRegistryServiceServer(registrar, service)
}

type stream = grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]

// authorize tells whether a caller may get the credentials of a BMC; nil: of all.
func authorize(ctx context.Context, bmc *referencev1.BMCReference) error {
	return grpcserver.Authorize(ctx, access.Request{Subresource: access.Credentials, Verb: access.Get, BMC: bmc})
}

// identify returns the identity that a caller serves BMCs alone as; empty for a
// shared frontend, who may get the credentials of all BMCs.
func (s *Service) identify(ctx context.Context) (string, error) {
	err := authorize(ctx, nil)
	if grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_PERMISSION_DENIED {
		return "", err
	}
	identity := grpcserver.IdentityOf(ctx)
	if identity == "" {
		return "", err
	}
	return identity, s.mayServe(ctx, identity)
}

// mayServe tells whether an identity is the agent of a BMC that it may get the
// credentials of.
func (s *Service) mayServe(ctx context.Context, identity string) error {
	refused := grpcstatus.New(errorsv1.Reason_REASON_PERMISSION_DENIED, "%s is the agent of no BMC and may not get the credentials of all", identity)
	for _, ref := range s.agentOf(ctx, identity) {
		err := authorize(ctx, ref.Message())
		if err == nil {
			return nil
		}
		if grpcstatus.ReasonOf(refused) == errorsv1.Reason_REASON_PERMISSION_DENIED {
			refused = err // Or one of which it can't be told.
		}
	}
	return refused
}

// Subscribe implements RegistryService. A caller without a right to all BMCs gets
// those whose agent it is, if it may; one who is no BMC's is refused.
func (s *Service) Subscribe(stream stream) error {
	hello, err := receiveHello(stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if err := s.registry.Serving(); err != nil {
		return err
	}
	agent, err := s.identify(ctx)
	if err != nil {
		return err
	}
	session, err := s.registry.Connect(ctx, agent, hello)
	if err != nil {
		return err
	}
	defer func() {
		// When this controller ends its frontends are not gone: nobody is to be told so
		// before another controller has them.
		if !grpcserver.Stopping(ctx) {
			session.Close()
		}
	}()
	// Both directions go on by themselves: a frontend that does not read must not
	// keep its acknowledgements from being read, nor this call from returning,
	// which is what ends them.
	ended := make(chan error, 2)
	go func() { ended <- send(stream, session, agent != "") }()
	go func() { ended <- receive(stream, session) }()
	recheck := time.NewTicker(s.recheck)
	defer recheck.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-session.Done():
			return session.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-recheck.C:
			// While it can't be told the stream goes on.
			if err := s.stillMay(ctx, session, agent); grpcstatus.ReasonOf(err) == errorsv1.Reason_REASON_PERMISSION_DENIED {
				return err
			}
		}
	}
}

// stillMay tells whether a subscriber may still have what it has, or what it waits
// for.
func (s *Service) stillMay(ctx context.Context, session *registry.Session, agent string) error {
	if agent == "" {
		return authorize(ctx, nil)
	}
	refs := session.BMCs()
	for _, ref := range refs {
		if err := authorize(ctx, ref.Message()); err != nil {
			return err
		}
	}
	if len(refs) > 0 {
		return nil
	}
	return s.mayServe(ctx, agent)
}

// receiveHello waits for the first message.
func receiveHello(stream stream) (*registryv1.Hello, error) {
	type first struct {
		request *registryv1.SubscribeRequest
		err     error
	}
	firsts := make(chan first, 1)
	go func() {
		request, err := stream.Recv()
		firsts <- first{request, err}
	}()
	select {
	case f := <-firsts:
		if f.err != nil {
			return nil, f.err
		}
		if f.request.GetHello() == nil {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the first message is not a hello")
		}
		return f.request.GetHello(), nil
	case <-time.After(helloTime):
		return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "no hello came within %v", helloTime)
	case <-stream.Context().Done():
		return nil, stream.Context().Err()
	}
}

// send sends what the session has to tell; to an agent nothing that it may not
// know.
func send(stream stream, session *registry.Session, agent bool) error {
	for {
		response, err := session.Next(stream.Context())
		if err != nil {
			return err
		}
		if bmc := response.GetUpsert().GetBmc(); agent && bmc != nil {
			if err := authorize(stream.Context(), bmc); err != nil {
				return err
			}
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func receive(stream stream, session *registry.Session) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if request.GetAcknowledgement() == nil {
			return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "a message after the first is no acknowledgement")
		}
		if err := session.Acknowledge(request.GetAcknowledgement()); err != nil {
			return err
		}
	}
}
