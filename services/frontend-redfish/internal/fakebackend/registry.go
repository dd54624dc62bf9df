// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package fakebackend

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kubevirtbmc.dev/pkg/grpcclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Registry is a RegistryService of one frontend.
type Registry struct {
	registryv1.UnimplementedRegistryServiceServer

	// Changes are sent after the entries that there are at the start.
	Changes chan *registryv1.SubscribeResponse
	// Acknowledgements gets what the frontend answers.
	Acknowledgements chan *registryv1.Acknowledgement

	mu      sync.Mutex
	entries []*registryv1.BMC
	hello   *registryv1.Hello
}

// NewRegistry returns a registry with entries.
func NewRegistry(entries ...*registryv1.BMC) *Registry {
	return &Registry{
		Changes:          make(chan *registryv1.SubscribeResponse),
		Acknowledgements: make(chan *registryv1.Acknowledgement, 64),
		entries:          entries,
	}
}

// Upsert returns the message for a changed entry.
func Upsert(revision uint64, bmc *registryv1.BMC) *registryv1.SubscribeResponse {
	return &registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Upsert{Upsert: bmc}}
}

// Removal returns the message for an entry that is gone.
func Removal(revision uint64, ref *referencev1.BMCReference) *registryv1.SubscribeResponse {
	return &registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Removal{Removal: ref}}
}

// Hello returns the latest subscriber's hello; nil before there is one.
func (r *Registry) Hello() *registryv1.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hello
}

// Serve serves the registry in this process until the test ends and returns a
// connection to it.
func (r *Registry) Serve(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return serve(t, func(s *grpc.Server) { registryv1.RegisterRegistryServiceServer(s, r) })
}

// Subscribe sends the entries and then the changes.
func (r *Registry) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.hello = first.GetHello()
	entries := r.entries
	r.mu.Unlock()
	go func() {
		for {
			request, err := stream.Recv()
			if err != nil {
				return
			}
			r.Acknowledgements <- request.GetAcknowledgement()
		}
	}()
	for _, e := range entries {
		if err := stream.Send(Upsert(1, e)); err != nil {
			return err
		}
	}
	synced := &registryv1.SubscribeResponse{Revision: 1, Payload: &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: true}}}
	if err := stream.Send(synced); err != nil {
		return err
	}
	for {
		select {
		case change := <-r.Changes:
			if err := stream.Send(change); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// serve runs a gRPC server in this process until the test ends and returns a
// connection to it, made as the frontend makes its own.
func serve(t testing.TB, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	pipe := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	register(s)
	go s.Serve(pipe) //nolint:errcheck // Ends with the test.
	conn, err := grpcclient.Dial("passthrough:///memory", grpcclient.Config{Options: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close() //nolint:errcheck // Ends with the test.
		s.Stop()
	})
	return conn
}
