// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registryclient_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/registryclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// registry hands each stream to the test.
type registry struct {
	registryv1.UnimplementedRegistryServiceServer
	streams chan stream
}

type stream struct {
	grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]
	end chan error
}

func (r registry) Subscribe(s grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	st := stream{s, make(chan error)}
	select {
	case r.streams <- st:
	case <-s.Context().Done():
		return s.Context().Err()
	}
	select {
	case err := <-st.end:
		return err
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

// handler notes what it is told.
type handler struct {
	mu    sync.Mutex
	calls []string
	fail  map[string]error
}

func (h *handler) note(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, s)
}

func (h *handler) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

func (h *handler) Apply(_ context.Context, bmc *registryv1.BMC) error {
	h.note("apply " + bmc.GetBmc().GetName())
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fail[bmc.GetBmc().GetName()]
}

func (h *handler) Remove(bmc *referencev1.BMCReference) { h.note("remove " + bmc.GetName()) }

func start(t *testing.T, h *handler, only ...*referencev1.BMCReference) registry {
	t.Helper()
	var cfg registryclient.Config
	if len(only) > 0 {
		cfg.Only = only[0]
	}
	r, _ := startWith(t, h, cfg)
	return r
}

// startWith starts a client with what a configuration has beyond the usual. done
// is closed when the client has ended.
func startWith(t *testing.T, h *handler, cfg registryclient.Config) (r registry, done <-chan struct{}) {
	t.Helper()
	r = registry{streams: make(chan stream)}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	registryv1.RegisterRegistryServiceServer(server, r)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := grpcclient.Dial("passthrough:registry", grpcclient.Config{Options: []grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Conn, cfg.Protocol, cfg.Replica, cfg.Log = conn, registryv1.Protocol_PROTOCOL_IPMI, "r-0", slog.New(slog.DiscardHandler)
	var group sync.WaitGroup
	ended := make(chan struct{})
	group.Go(func() { _ = server.Serve(listener) })
	group.Go(func() {
		defer close(ended)
		err := registryclient.Run(ctx, cfg, h)
		if !errors.Is(err, context.Canceled) && (err != nil || cfg.Leaving == nil) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); server.Stop(); _ = conn.Close(); group.Wait() })
	return r, ended
}

func ref(name string) *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: "default", Name: name}
}

func upsert(revision uint64, name, password string) *registryv1.SubscribeResponse {
	bmc := &registryv1.BMC{Bmc: ref(name), Accounts: []*registryv1.Account{{Username: "admin", Password: password}}}
	return &registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Upsert{Upsert: bmc}}
}

func synced(revision uint64, full bool) *registryv1.SubscribeResponse {
	return &registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: full}}}
}

// next waits for a stream and its hello.
func next(t *testing.T, r registry) (stream, *registryv1.Hello) {
	t.Helper()
	select {
	case s := <-r.streams:
		request, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return s, request.GetHello()
	case <-time.After(10 * time.Second):
		t.Fatal("the client does not subscribe")
		return stream{}, nil
	}
}

func send(t *testing.T, s stream, responses ...*registryv1.SubscribeResponse) {
	t.Helper()
	for _, response := range responses {
		if err := s.Send(response); err != nil {
			t.Fatal(err)
		}
	}
}

func wantAck(t *testing.T, s stream, want *registryv1.Acknowledgement) {
	t.Helper()
	request, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, request.GetAcknowledgement(), protocmp.Transform()); d != "" {
		t.Errorf("acknowledgement mismatch (-want +got):\n%s", d)
	}
}

func TestRun_resumesAndDropsWhatIsGone(t *testing.T) {
	t.Parallel()
	h := &handler{fail: map[string]error{"bad": errors.New("port taken " + strings.Repeat("x", 2000))}}
	r := start(t, h)

	s, hello := next(t, r)
	want := &registryv1.Hello{Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: "r-0"}
	if d := cmp.Diff(want, hello, protocmp.Transform()); d != "" {
		t.Errorf("first hello mismatch (-want +got):\n%s", d)
	}
	send(t, s, upsert(7, "a", "p1"), upsert(7, "b", "p1"), upsert(7, "bad", "p1"), synced(7, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 7, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("b"), Revision: 7, Serving: true})
	request, err := s.Recv()
	if ack := request.GetAcknowledgement(); err != nil || ack.GetServing() || !strings.HasPrefix(ack.GetMessage(), "port taken") || len(ack.GetMessage()) > 1024 {
		t.Errorf("acknowledgement of a BMC that can't be served: %v, %v", ack, err)
	}
	send(t, s, upsert(8, "a", "p2"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 8, Serving: true})
	if d := cmp.Diff([]string{"apply a", "apply b", "apply bad", "apply a"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}

	// The stream breaks: the client resumes from 8, keeps what it has meanwhile,
	// and does not apply again what is the same.
	s.end <- errors.New("broken")
	s, hello = next(t, r)
	if hello.GetRevision() != 8 {
		t.Errorf("second hello has revision %d, want 8", hello.GetRevision())
	}
	send(t, s, synced(8, false), upsert(9, "a", "p2"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 9, Serving: true})
	if calls := h.take(); calls != nil {
		t.Errorf("calls after resuming: %v", calls)
	}

	// A registry that knows less says all it has: the rest goes. What failed is
	// tried again.
	s.end <- errors.New("broken")
	h.mu.Lock()
	h.fail = nil
	h.mu.Unlock()
	s, _ = next(t, r)
	send(t, s, upsert(1, "a", "p2"), upsert(1, "bad", "p1"), synced(1, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 1, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("bad"), Revision: 1, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("b"), Revision: 1})
	send(t, s, &registryv1.SubscribeResponse{Revision: 2, Payload: &registryv1.SubscribeResponse_Removal{Removal: ref("a")}})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 2})
	if d := cmp.Diff([]string{"apply bad", "remove b", "remove a"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}
}

func TestRun_streamBrokenBeforeSynced_startsOver(t *testing.T) {
	t.Parallel()
	r := start(t, &handler{})
	s, _ := next(t, r)
	send(t, s, upsert(5, "a", "p"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 5, Serving: true})
	s.end <- errors.New("broken")
	if _, hello := next(t, r); hello.GetRevision() != 0 {
		t.Errorf("hello after a broken first part has revision %d, want 0", hello.GetRevision())
	}
}

// A BMC whose port is taken is served as soon as the port is free.
func TestRun_whatCanNotBeServed_isTriedAgain(t *testing.T) {
	t.Parallel()
	h := &handler{fail: map[string]error{"a": errors.New("port taken")}}
	r := start(t, h)
	s, _ := next(t, r)
	send(t, s, upsert(3, "a", "p"), synced(3, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 3, Message: "port taken"})
	h.mu.Lock()
	h.fail = nil
	h.mu.Unlock()
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 3, Serving: true})
}

// A BMC that could not be served and is gone after the stream was lost stays
// gone, also when it was tried again before the new stream had said all.
func TestRun_goneWhileTriedAgain_isRemoved(t *testing.T) {
	t.Parallel()
	h := &handler{fail: map[string]error{"gone": errors.New("port taken")}}
	r := start(t, h)
	s, _ := next(t, r)
	send(t, s, upsert(3, "gone", "p"), synced(3, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("gone"), Revision: 3, Message: "port taken"})
	s.end <- errors.New("broken")
	s, _ = next(t, r)
	send(t, s, upsert(4, "a", "p"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 4, Serving: true})
	h.mu.Lock()
	h.fail = nil
	h.mu.Unlock()
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("gone"), Revision: 3, Serving: true}) // Tried again.
	send(t, s, synced(4, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("gone"), Revision: 4})
	if d := cmp.Diff([]string{"apply gone", "apply a", "apply gone", "remove gone"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}
}

// What a new registry does not know yet stays as it is, until it says that it is
// gone.
func TestRun_unknown_isKept(t *testing.T) {
	t.Parallel()
	h := &handler{}
	r := start(t, h)
	s, _ := next(t, r)
	send(t, s, upsert(3, "gone", "p"), upsert(4, "unknown", "p"), synced(4, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("gone"), Revision: 3, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("unknown"), Revision: 4, Serving: true})
	s.end <- errors.New("broken")

	s, _ = next(t, r)
	send(t, s, &registryv1.SubscribeResponse{Revision: 9, Payload: &registryv1.SubscribeResponse_Synced{
		Synced: &registryv1.Synced{Full: true, Unknown: []*referencev1.BMCReference{ref("unknown")}},
	}})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("gone"), Revision: 9})
	send(t, s, &registryv1.SubscribeResponse{Revision: 10, Payload: &registryv1.SubscribeResponse_Removal{Removal: ref("unknown")}})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("unknown"), Revision: 10})
	if d := cmp.Diff([]string{"apply gone", "apply unknown", "remove gone", "remove unknown"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}
}

// A frontend of one BMC serves no other, whatever it is told.
func TestRun_onlyOneBMC_refusesOthers(t *testing.T) {
	t.Parallel()
	h := &handler{}
	r := start(t, h, ref("a"))
	s, _ := next(t, r)
	send(t, s, upsert(3, "a", "p"), upsert(3, "b", "p"), synced(3, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 3, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("b"), Revision: 3, Message: "this frontend serves BMC default/a alone"})
	if d := cmp.Diff([]string{"apply a"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}
}

// A frontend that is leaving goes on until it has no BMC any more, over streams
// that break too.
func TestRun_leaving_waitsForOthersToTakeOver(t *testing.T) {
	t.Parallel()
	leaving := make(chan struct{})
	h := &handler{}
	r, done := startWith(t, h, registryclient.Config{Leaving: leaving})
	s, _ := next(t, r)
	send(t, s, upsert(3, "a", "p"), upsert(4, "b", "p"), synced(4, true))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 3, Serving: true})
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("b"), Revision: 4, Serving: true})
	close(leaving)
	removal := func(revision uint64, name string) *registryv1.SubscribeResponse {
		return &registryv1.SubscribeResponse{Revision: revision, Payload: &registryv1.SubscribeResponse_Removal{Removal: ref(name)}}
	}
	send(t, s, removal(5, "a"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("a"), Revision: 5})
	s.end <- errors.New("broken")
	s, _ = next(t, r)
	send(t, s, synced(5, false), upsert(6, "b", "new"))
	wantAck(t, s, &registryv1.Acknowledgement{Bmc: ref("b"), Revision: 6, Serving: true})
	select {
	case <-done:
		t.Fatal("Run has ended with a BMC")
	default:
	}
	send(t, s, removal(7, "b"))
	wantEnd(t, done)
	if d := cmp.Diff([]string{"apply a", "apply b", "remove a", "apply b", "remove b"}, h.take()); d != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", d)
	}
}

// A frontend that is leaving does not wait for a registry that it can do without.
func TestRun_leaving_withoutBMCs(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(registry){
		"subscribed": func(r registry) {
			s, _ := next(t, r)
			send(t, s, synced(1, true))
		},
		"no stream": func(r registry) {
			s, _ := next(t, r)
			s.end <- errors.New("broken")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaving := make(chan struct{})
			r, done := startWith(t, &handler{}, registryclient.Config{Leaving: leaving})
			prepare(r)
			close(leaving)
			wantEnd(t, done)
		})
	}
}

// A frontend that nobody relieves ends when its time is over.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		work, stop := registryclient.Drain(ctx, time.Minute)
		defer stop()
		time.Sleep(time.Hour)
		cancel()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if work.Err() != nil {
			t.Error("it has ended before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if work.Err() == nil {
			t.Error("it goes on after its time")
		}
		stopped, stop := registryclient.Drain(t.Context(), time.Minute)
		stop()
		if stopped.Err() == nil {
			t.Error("it goes on after stop")
		}
	})
}

func wantEnd(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
}
