// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry serves a RegistryService whose BMCs are fixed when it
// starts: the registry of standalone mode, where no controller finds them.
package registry

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Problem is a BMC that a frontend can't serve.
type Problem struct {
	BMC      *referencev1.BMCReference
	Protocol registryv1.Protocol
	Message  string
}

// Registry is the server. All replicas of a frontend serve all BMCs.
type Registry struct {
	registryv1.UnsafeRegistryServiceServer
	bmcs []*registryv1.BMC
	// revision tells the contents of one registry from those of an earlier one.
	revision uint64

	mu      sync.Mutex
	acks    map[ackKey]*registryv1.Acknowledgement
	changed chan struct{} // closed and replaced at each acknowledgement
}

type ackKey struct {
	protocol        registryv1.Protocol
	namespace, name string
}

// New returns a registry of BMCs, which it does not copy.
func New(bmcs []*registryv1.BMC) *Registry {
	return &Registry{
		bmcs:     bmcs,
		revision: uint64(time.Now().UnixNano()),
		acks:     map[ackKey]*registryv1.Acknowledgement{},
		changed:  make(chan struct{}),
	}
}

// Register adds the service to a gRPC server.
func (r *Registry) Register(s grpc.ServiceRegistrar) { registryv1.RegisterRegistryServiceServer(s, r) }

// Subscribe implements registryv1.RegistryServiceServer.
func (r *Registry) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := request.GetHello()
	if hello == nil {
		return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the first message is not a hello")
	}
	// The method's rule leaves it to the service which BMCs a caller may have. Here
	// it is all or none.
	if err := grpcserver.Authorize(stream.Context(), access.Request{Subresource: access.Credentials, Verb: access.Get}); err != nil {
		return err
	}
	full := hello.GetRevision() != r.revision
	// Acknowledgements come while BMCs are still being sent: read them
	// meanwhile, or both sides wait for the other with full buffers.
	failed := make(chan error, 1)
	go func() { failed <- r.receive(stream, hello.GetProtocol()) }()
	if full {
		for _, bmc := range r.bmcs {
			if !serves(bmc, hello.GetProtocol()) {
				continue
			}
			if err := stream.Send(&registryv1.SubscribeResponse{Revision: r.revision, Payload: &registryv1.SubscribeResponse_Upsert{Upsert: bmc}}); err != nil {
				return err
			}
		}
	}
	synced := &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: full}}
	if err := stream.Send(&registryv1.SubscribeResponse{Revision: r.revision, Payload: synced}); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// receive takes acknowledgements until the stream ends.
func (r *Registry) receive(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse], protocol registryv1.Protocol) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		ack := request.GetAcknowledgement()
		if ack == nil {
			return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "a second hello on one stream")
		}
		r.mu.Lock()
		r.acks[ackKey{protocol, ack.GetBmc().GetNamespace(), ack.GetBmc().GetName()}] = ack
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

// Settled returns a channel that is closed once each BMC was acknowledged over
// each protocol that it is served by.
func (r *Registry) Settled() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		for {
			r.mu.Lock()
			got, changed := len(r.acks), r.changed
			r.mu.Unlock()
			if got >= r.expected() {
				return
			}
			<-changed
		}
	}()
	return settled
}

// Problems returns the BMCs that frontends said they can't serve.
func (r *Registry) Problems() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	var problems []Problem
	for key, ack := range maps.All(r.acks) {
		if !ack.GetServing() {
			problems = append(problems, Problem{ack.GetBmc(), key.protocol, ack.GetMessage()})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.BMC.GetNamespace(), b.BMC.GetNamespace()), cmp.Compare(a.BMC.GetName(), b.BMC.GetName()), cmp.Compare(a.Protocol, b.Protocol))
	})
	return problems
}

func (r *Registry) expected() int {
	n := 0
	for _, bmc := range r.bmcs {
		for _, protocol := range []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH} {
			if serves(bmc, protocol) {
				n++
			}
		}
	}
	return n
}

// serves tells whether a BMC is served over a protocol.
func serves(bmc *registryv1.BMC, protocol registryv1.Protocol) bool {
	switch protocol {
	case registryv1.Protocol_PROTOCOL_IPMI:
		return bmc.GetIpmi() != nil
	case registryv1.Protocol_PROTOCOL_REDFISH:
		return bmc.GetRedfish() != nil
	}
	return false
}
