// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry serves a RegistryService whose BMCs are fixed when it
// starts: the registry of standalone mode, where no controller finds them. Of a
// BMC, accounts alone change.
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
	"google.golang.org/protobuf/proto"

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

	mu   sync.Mutex
	bmcs []*entry
	// revision tells the contents of one registry from those of an earlier one,
	// and grows with each change.
	revision uint64
	updated  chan struct{} // closed and replaced at each change
	acks     map[ackKey]*registryv1.Acknowledgement
	changed  chan struct{} // closed and replaced at each acknowledgement
}

// entry is a BMC, replaced as a whole, and the revision that it is of.
type entry struct {
	bmc      *registryv1.BMC
	own      []*registryv1.Account // those of its configuration
	revision uint64
}

type ackKey struct {
	protocol        registryv1.Protocol
	namespace, name string
}

// New returns a registry of BMCs, which it does not copy.
func New(bmcs []*registryv1.BMC) *Registry {
	r := &Registry{
		revision: uint64(time.Now().UnixNano()),
		updated:  make(chan struct{}),
		acks:     map[ackKey]*registryv1.Acknowledgement{},
		changed:  make(chan struct{}),
	}
	for _, bmc := range bmcs {
		r.bmcs = append(r.bmcs, &entry{bmc, bmc.GetAccounts(), r.revision})
	}
	return r
}

// find returns the entry of a BMC, with r.mu held; nil where there is none.
func (r *Registry) find(bmc *referencev1.BMCReference) *entry {
	for _, e := range r.bmcs {
		if proto.Equal(e.bmc.GetBmc(), bmc) {
			return e
		}
	}
	return nil
}

// Owns tells whether a BMC has an account of a name by its configuration;
// BMC_NOT_FOUND where there is no such BMC.
func (r *Registry) Owns(bmc *referencev1.BMCReference, username string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.find(bmc)
	if e == nil {
		return false, grpcstatus.New(errorsv1.Reason_REASON_BMC_NOT_FOUND, "there is no such BMC")
	}
	return slices.ContainsFunc(e.own, func(a *registryv1.Account) bool { return a.GetUsername() == username }), nil
}

// SetAccounts gives a BMC accounts beside those of its configuration.
func (r *Registry) SetAccounts(bmc *referencev1.BMCReference, accounts []*registryv1.Account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.find(bmc)
	if e == nil {
		return
	}
	next := proto.CloneOf(e.bmc)
	next.Accounts = slices.Concat(e.own, accounts)
	r.revision++
	e.bmc, e.revision = next, r.revision
	close(r.updated)
	r.updated = make(chan struct{})
}

// since returns the BMCs of a protocol that are newer than a revision, the
// revision that they make, and a channel that is closed when there are more.
func (r *Registry) since(revision uint64, protocol registryv1.Protocol) (newer []*registryv1.BMC, now uint64, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.bmcs {
		if e.revision > revision && serves(e.bmc, protocol) {
			newer = append(newer, e.bmc)
		}
	}
	return newer, r.revision, r.updated
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
	// Acknowledgements come while BMCs are still being sent: read them
	// meanwhile, or both sides wait for the other with full buffers.
	failed := make(chan error, 1)
	go func() { failed <- r.receive(stream, hello.GetProtocol()) }()
	bmcs, revision, more := r.since(0, hello.GetProtocol())
	full := hello.GetRevision() != revision
	if !full {
		bmcs = nil
	}
	send := func() error {
		for _, bmc := range bmcs {
			if err := stream.Send(&registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Upsert{Upsert: bmc}}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return err
	}
	synced := &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: full}}
	if err := stream.Send(&registryv1.SubscribeResponse{Revision: revision, Payload: synced}); err != nil {
		return err
	}
	for {
		select {
		case err := <-failed:
			return err
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-more:
			bmcs, revision, more = r.since(revision, hello.GetProtocol())
			if err := send(); err != nil {
				return err
			}
		}
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
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.bmcs {
		for _, protocol := range []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH} {
			if serves(e.bmc, protocol) {
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
