// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// rights answers each request with a reason, UNSPECIFIED: it is allowed. What it
// does not know is denied.
type rights struct {
	mu      sync.Mutex
	answers map[string]errorsv1.Reason
	asked   []string
}

func (r *rights) Authorize(_ context.Context, caller grpcserver.Identity, request access.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, caller.Name+" "+request.String())
	reason, ok := r.answers[request.String()]
	switch {
	case !ok:
		reason = errorsv1.Reason_REASON_PERMISSION_DENIED
	case reason == errorsv1.Reason_REASON_UNSPECIFIED:
		return nil
	}
	return grpcstatus.New(reason, "rights say so")
}

func (r *rights) set(request string, reason errorsv1.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[request] = reason
}

const (
	getPower       = "get virtualmachinebmcs/power of default/sim-0"
	updatePower    = "update virtualmachinebmcs/power of default/sim-0"
	getConsole     = "get virtualmachinebmcs/console of default/sim-0"
	updateConsole  = "update virtualmachinebmcs/console of default/sim-0"
	getCredentials = "get virtualmachinebmcs/credentials of default/sim-0"

	allowed     = errorsv1.Reason_REASON_UNSPECIFIED
	unavailable = errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE
	denied      = errorsv1.Reason_REASON_PERMISSION_DENIED
)

// recorder is PowerService and ConsoleService. It keeps for whom calls are made
// and what is typed.
type recorder struct {
	powerv1.UnimplementedPowerServiceServer
	consolev1.UnimplementedConsoleServiceServer
	registryv1.UnimplementedRegistryServiceServer
	// early makes the console answer before it is opened.
	early bool

	mu      sync.Mutex
	callers []callctx.Caller
	typed   string
}

func (r *recorder) record(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callers = append(r.callers, callctx.CallerOf(ctx))
}

func (r *recorder) GetPower(ctx context.Context, _ *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	r.record(ctx)
	return &powerv1.GetPowerResponse{}, nil
}

func (r *recorder) TransitionPower(ctx context.Context, _ *powerv1.TransitionPowerRequest) (*powerv1.TransitionPowerResponse, error) {
	r.record(ctx)
	return &powerv1.TransitionPowerResponse{}, nil
}

func (r *recorder) WatchPower(_ *powerv1.WatchPowerRequest, stream grpc.ServerStreamingServer[powerv1.WatchPowerResponse]) error {
	r.record(stream.Context())
	return stream.Send(&powerv1.WatchPowerResponse{})
}

// Connect sends back how much has been typed.
func (r *recorder) Connect(stream grpc.BidiStreamingServer[consolev1.ConnectRequest, consolev1.ConnectResponse]) error {
	if r.early {
		if err := stream.Send(&consolev1.ConnectResponse{}); err != nil {
			return err
		}
	}
	for first := true; ; first = false {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if first {
			r.record(stream.Context())
		}
		r.mu.Lock()
		r.typed += string(request.GetInput())
		typed := r.typed
		r.mu.Unlock()
		if err := stream.Send(&consolev1.ConnectResponse{Payload: &consolev1.ConnectResponse_Output{Output: []byte(typed)}}); err != nil {
			return err
		}
	}
}

func (r *recorder) reached() []callctx.Caller {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.callers
}

// guarded serves a recorder to whom rights say, and returns a client's
// connection and the server's log.
func guarded(t *testing.T, rights *rights, r *recorder, recheck time.Duration) (*grpc.ClientConn, *lockedBuffer) {
	t.Helper()
	address, tlsConfig, log := serve(t, grpcserver.Config{Authorizer: rights, Recheck: recheck}, func(registrar grpc.ServiceRegistrar) {
		powerv1.RegisterPowerServiceServer(registrar, r)
		consolev1.RegisterConsoleServiceServer(registrar, r)
		registrar.RegisterService(&undeclared, nil)
	})
	return dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")}), log
}

// undeclared is a service whose methods have no access rules.
var undeclared = grpc.ServiceDesc{
	ServiceName: "test.Undeclared",
	Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		request := &emptypb.Empty{}
		if err := decode(request); err != nil {
			return nil, err
		}
		return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/test.Undeclared/Call"}, func(context.Context, any) (any, error) {
			return &emptypb.Empty{}, nil
		})
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Talk", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return stream.SendMsg(&emptypb.Empty{})
	}}},
}

func TestAuthorization_unary(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers      map[string]errorsv1.Reason
		read, action errorsv1.Reason
	}{
		"may do all":        {map[string]errorsv1.Reason{getPower: allowed, updatePower: allowed}, allowed, allowed},
		"may read":          {map[string]errorsv1.Reason{getPower: allowed}, allowed, denied},
		"may act alone":     {map[string]errorsv1.Reason{updatePower: allowed}, denied, allowed},
		"may do nothing":    {nil, denied, denied},
		"nobody can tell":   {map[string]errorsv1.Reason{getPower: unavailable, updatePower: unavailable}, unavailable, unavailable},
		"may log in to BMC": {map[string]errorsv1.Reason{getCredentials: allowed}, denied, denied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{}
			conn, log := guarded(t, &rights{answers: tc.answers}, r, 0)
			client := powerv1.NewPowerServiceClient(conn)
			_, err := client.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: sim0})
			if got := grpcstatus.ReasonOf(err); got != tc.read {
				t.Errorf("GetPower: %v, want reason %v", err, tc.read)
			}
			_, err = client.TransitionPower(t.Context(), &powerv1.TransitionPowerRequest{Bmc: sim0, Action: powerv1.PowerAction_POWER_ACTION_ON})
			if got := grpcstatus.ReasonOf(err); got != tc.action {
				t.Errorf("TransitionPower: %v, want reason %v", err, tc.action)
			}
			stream, err := client.WatchPower(t.Context(), &powerv1.WatchPowerRequest{Bmc: sim0})
			if err == nil {
				_, err = stream.Recv()
			}
			if got := grpcstatus.ReasonOf(err); got != tc.read {
				t.Errorf("WatchPower: %v, want reason %v", err, tc.read)
			}
			want := 0
			for _, reason := range []errorsv1.Reason{tc.read, tc.read, tc.action} {
				if reason == allowed {
					want++
				}
			}
			if got := len(r.reached()); got != want {
				t.Errorf("%d calls reached their handlers, want %d", got, want)
			}
			audited := strings.Contains(log.String(), "audit=true")
			if want := tc.action == denied; audited != want {
				t.Errorf("denied action in the audit log: %v, want %v:\n%s", audited, want, log)
			}
			if audited && !strings.Contains(log.String(), "action=TransitionPower namespace=default bmc=sim-0 identity=test-identity") {
				t.Errorf("the audit line does not say who wanted what:\n%s", log)
			}
			if strings.Contains(log.String(), "action=GetPower") {
				t.Errorf("a denied read is in the audit log:\n%s", log)
			}
		})
	}
}

// Whoever has no right learns nothing from what is validated behind it, but a
// request must name its BMC before it can be judged.
func TestAuthorization_invalidRequest(t *testing.T) {
	t.Parallel()
	r := &rights{}
	conn, _ := guarded(t, r, &recorder{}, 0)
	_, err := powerv1.NewPowerServiceClient(conn).GetPower(t.Context(), &powerv1.GetPowerRequest{})
	if got := grpcstatus.ReasonOf(err); got != errorsv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("GetPower without a BMC: %v, want INVALID_REQUEST", err)
	}
	if len(r.asked) > 0 {
		t.Errorf("rights were asked for %q", r.asked)
	}
}

// exchange sends a message and waits for the answer. Where the stream has ended
// already, sending fails with io.EOF alone, and receiving says why it has.
func exchange(stream grpc.ClientStream, request, response any) error {
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return stream.RecvMsg(response)
}

func TestAuthorization_methodWithoutRule(t *testing.T) {
	t.Parallel()
	conn, _ := guarded(t, &rights{}, &recorder{}, 0)
	err := conn.Invoke(t.Context(), "/test.Undeclared/Call", &emptypb.Empty{}, &emptypb.Empty{})
	if got := grpcstatus.ReasonOf(err); got != denied {
		t.Errorf("unary call: %v, want PERMISSION_DENIED", err)
	}
	stream, err := conn.NewStream(t.Context(), &undeclared.Streams[0], "/test.Undeclared/Talk")
	if err == nil {
		err = exchange(stream, &emptypb.Empty{}, &emptypb.Empty{})
	}
	if got := grpcstatus.ReasonOf(err); got != denied {
		t.Errorf("stream: %v, want PERMISSION_DENIED", err)
	}
}

func openConsole(bmc *referencev1.BMCReference, readOnly bool) *consolev1.ConnectRequest {
	return &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc, ReadOnly: readOnly}}}
}

func input(text string) *consolev1.ConnectRequest {
	return &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte(text)}}
}

func TestAuthorization_stream(t *testing.T) {
	t.Parallel()
	sim1 := &referencev1.BMCReference{Namespace: "default", Name: "sim-1"}
	watch := map[string]errorsv1.Reason{getConsole: allowed}
	operate := map[string]errorsv1.Reason{getConsole: allowed, updateConsole: allowed}
	for name, tc := range map[string]struct {
		answers  map[string]errorsv1.Reason
		early    bool
		messages []*consolev1.ConnectRequest
		want     []string // answers before the end
		reason   errorsv1.Reason
	}{
		"an operator types":        {operate, false, []*consolev1.ConnectRequest{openConsole(sim0, false), input("a"), input("b")}, []string{"", "a", "ab"}, allowed},
		"a watcher watches":        {watch, false, []*consolev1.ConnectRequest{openConsole(sim0, true)}, []string{""}, allowed},
		"a watcher wants to type":  {watch, false, []*consolev1.ConnectRequest{openConsole(sim0, false)}, nil, denied},
		"no right":                 {nil, false, []*consolev1.ConnectRequest{openConsole(sim0, true)}, nil, denied},
		"nobody can tell":          {map[string]errorsv1.Reason{updateConsole: unavailable}, false, []*consolev1.ConnectRequest{openConsole(sim0, false)}, nil, unavailable},
		"no BMC":                   {operate, false, []*consolev1.ConnectRequest{input("a")}, nil, errorsv1.Reason_REASON_INVALID_REQUEST},
		"another BMC later":        {operate, false, []*consolev1.ConnectRequest{openConsole(sim0, false), openConsole(sim1, false)}, []string{""}, errorsv1.Reason_REASON_INVALID_REQUEST},
		"more rights later":        {operate, false, []*consolev1.ConnectRequest{openConsole(sim0, true), openConsole(sim0, false)}, []string{""}, errorsv1.Reason_REASON_INVALID_REQUEST},
		"a handler that is hasty":  {operate, true, []*consolev1.ConnectRequest{openConsole(sim0, false)}, nil, errorsv1.Reason_REASON_INTERNAL},
		"the same for one without": {nil, true, []*consolev1.ConnectRequest{openConsole(sim0, false)}, nil, errorsv1.Reason_REASON_INTERNAL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, _ := guarded(t, &rights{answers: tc.answers}, &recorder{early: tc.early}, 0)
			stream, err := consolev1.NewConsoleServiceClient(conn).Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, message := range tc.messages {
				if err = stream.Send(message); err != nil {
					_, err = stream.Recv()
					break
				}
				var response *consolev1.ConnectResponse
				if response, err = stream.Recv(); err != nil {
					if i < len(tc.messages)-1 {
						t.Errorf("the stream ended at message %d: %v", i, err)
					}
					break
				}
				got = append(got, string(response.GetOutput()))
			}
			if reason := grpcstatus.ReasonOf(err); reason != tc.reason {
				t.Errorf("the stream ended with %v, want reason %v", err, tc.reason)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("answers mismatch (-want +got):\n%s", d)
			}
		})
	}
}

// A stream whose caller has lost its right ends, and nothing that is typed
// afterwards gets through. While rights can't be told it goes on.
func TestAuthorization_streamIsRechecked(t *testing.T) {
	t.Parallel()
	rights := &rights{answers: map[string]errorsv1.Reason{updateConsole: allowed}}
	r := &recorder{}
	conn, _ := guarded(t, rights, r, 5*time.Millisecond)
	stream, err := consolev1.NewConsoleServiceClient(conn).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	say := func(message *consolev1.ConnectRequest) error {
		return exchange(stream, message, &consolev1.ConnectResponse{})
	}
	if err := say(openConsole(sim0, false)); err != nil {
		t.Fatal(err)
	}
	asked := func() int {
		rights.mu.Lock()
		defer rights.mu.Unlock()
		return len(rights.asked)
	}
	recheckedFrom := func(n int) {
		for end := time.Now().Add(30 * time.Second); asked() < n+2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the stream is not authorized again")
			}
		}
	}
	rights.set(updateConsole, unavailable)
	recheckedFrom(asked())
	if err := say(input("before ")); err != nil {
		t.Errorf("the stream ended while rights could not be told: %v", err)
	}
	n := asked()
	rights.set(updateConsole, denied)
	for end := time.Now().Add(30 * time.Second); asked() == n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stream is not authorized again")
		}
	}
	time.Sleep(20 * time.Millisecond) // The denial takes effect right after the answer.
	if err := say(input("after")); grpcstatus.ReasonOf(err) != denied {
		t.Errorf("after the right was lost: %v, want PERMISSION_DENIED", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.typed != "before " {
		t.Errorf("typed %q", r.typed)
	}
}

// accounts are the callers that tokens stand for; a token can be revoked.
type accounts struct {
	mu    sync.Mutex
	whose map[string]grpcserver.Identity
	asked map[string]int
}

// Authenticate implements grpcserver.Authenticator.
func (a *accounts) Authenticate(_ context.Context, token string) (grpcserver.Identity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[token]++
	identity, ok := a.whose[token]
	if !ok {
		return grpcserver.Identity{}, grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "not valid")
	}
	return identity, nil
}

func (a *accounts) revoke(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.whose, token)
}

// askedAbout waits until a token has been asked about a number of times more.
func (a *accounts) askedAbout(t *testing.T, token string, more int) {
	t.Helper()
	count := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.asked[token]
	}
	for end, n := time.Now().Add(30*time.Second), count()+more; count() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody asks whose token %q is", token)
		}
	}
}

// A stream lasts as long as its caller has a token that is valid, and has shown it.
func TestAuthentication_streamIsRechecked(t *testing.T) {
	t.Parallel()
	const gone = errorsv1.Reason_REASON_UNAUTHENTICATED
	pod := func(uid, jti string) grpcserver.Identity {
		return grpcserver.Identity{Name: "frontend", UID: "1", Groups: []string{"a"}, Extra: map[string][]string{
			"authentication.kubernetes.io/pod-uid": {uid}, "authentication.kubernetes.io/credential-id": {jti},
		}}
	}
	for name, tc := range map[string]struct {
		next   string // the token that takes the first one's place
		revoke []string
		want   errorsv1.Reason
	}{
		"the token is revoked":              {"first", []string{"first"}, gone},
		"the token is replaced":             {"second", []string{"first"}, allowed},
		"the account is deleted":            {"second", []string{"first", "second"}, gone},
		"another pod's token":               {"other pod", nil, gone},
		"another caller's token":            {"other", nil, gone},
		"a token of nobody":                 {"nobody", nil, gone},
		"nothing happens":                   {"first", nil, allowed},
		"the token is replaced, both valid": {"second", nil, allowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			who := &accounts{asked: map[string]int{}, whose: map[string]grpcserver.Identity{
				"first": pod("1", "1"), "second": pod("1", "2"), "other pod": pod("2", "3"), "other": {Name: "other"},
			}}
			r := &recorder{}
			address, tlsConfig, _ := serve(t, grpcserver.Config{
				Authenticator: who, Authorizer: &rights{answers: map[string]errorsv1.Reason{updateConsole: allowed}}, Recheck: 5 * time.Millisecond,
			}, func(registrar grpc.ServiceRegistrar) { consolev1.RegisterConsoleServiceServer(registrar, r) })
			var token atomic.Pointer[string]
			first := "first"
			token.Store(&first)
			conn := dial(t, address, grpcclient.Config{TLS: tlsConfig, Renew: time.Millisecond, Token: func() (string, error) { return *token.Load(), nil }})
			stream, err := consolev1.NewConsoleServiceClient(conn).Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			say := func(message *consolev1.ConnectRequest) error {
				return exchange(stream, message, &consolev1.ConnectResponse{})
			}
			if err := say(openConsole(sim0, false)); err != nil {
				t.Fatal(err)
			}
			who.askedAbout(t, "first", 2)
			token.Store(&tc.next)
			if tc.want == allowed || len(tc.revoke) > 0 {
				who.askedAbout(t, tc.next, 2)
			} else {
				who.askedAbout(t, tc.next, 1)
			}
			for _, token := range tc.revoke {
				who.revoke(token)
			}
			if tc.want == allowed {
				who.askedAbout(t, tc.next, 2)
				if err := say(input("typed")); err != nil {
					t.Errorf("the stream has ended: %v", err)
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.typed != "typed" {
					t.Errorf("typed %q", r.typed)
				}
				return
			}
			if len(tc.revoke) > 0 {
				who.askedAbout(t, tc.next, 1)
			}
			time.Sleep(50 * time.Millisecond) // The answer takes effect right after it.
			if err := say(input("typed")); grpcstatus.ReasonOf(err) != tc.want {
				t.Errorf("the stream ended with %v, want reason %v", err, tc.want)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.typed != "" {
				t.Errorf("typed %q", r.typed)
			}
		})
	}
}

// One that only sends ends by itself.
func TestAuthentication_watchIsRechecked(t *testing.T) {
	t.Parallel()
	who := &accounts{asked: map[string]int{}, whose: map[string]grpcserver.Identity{"first": {Name: "watcher"}}}
	watch := "get virtualmachinebmcs/power of default/endless"
	address, tlsConfig, _ := serve(t, grpcserver.Config{
		Authenticator: who, Authorizer: &rights{answers: map[string]errorsv1.Reason{watch: allowed}}, Recheck: 5 * time.Millisecond,
	}, func(registrar grpc.ServiceRegistrar) { powerv1.RegisterPowerServiceServer(registrar, power{}) })
	conn := dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("first")})
	stream, err := powerv1.NewPowerServiceClient(conn).WatchPower(t.Context(), &powerv1.WatchPowerRequest{Bmc: &referencev1.BMCReference{Namespace: "default", Name: "endless"}})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	who.askedAbout(t, "first", 2)
	who.revoke("first")
	if _, err := stream.Recv(); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_UNAUTHENTICATED {
		t.Errorf("the stream ended with %v, want UNAUTHENTICATED", err)
	}
}

func TestVouching(t *testing.T) {
	t.Parallel()
	claim := callctx.Caller{User: "admin", Address: "192.0.2.1:623", Protocol: "ipmi"}
	for name, tc := range map[string]struct {
		credentials errorsv1.Reason
		claim       callctx.Caller
		honoured    bool
		reason      errorsv1.Reason
	}{
		"a frontend":              {allowed, claim, true, allowed},
		"an ordinary user":        {denied, claim, false, allowed},
		"nobody can tell":         {unavailable, claim, false, unavailable},
		"nobody to vouch for":     {unavailable, callctx.Caller{}, false, allowed},
		"a user with a name only": {denied, callctx.Caller{User: "admin"}, false, allowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{}
			rights := &rights{answers: map[string]errorsv1.Reason{getPower: allowed, getConsole: allowed, getCredentials: tc.credentials}}
			conn, log := guarded(t, rights, r, 0)
			ctx := callctx.WithCaller(t.Context(), tc.claim)
			_, err := powerv1.NewPowerServiceClient(conn).GetPower(ctx, &powerv1.GetPowerRequest{Bmc: sim0})
			if got := grpcstatus.ReasonOf(err); got != tc.reason {
				t.Errorf("GetPower: %v, want reason %v", err, tc.reason)
			}
			stream, err := consolev1.NewConsoleServiceClient(conn).Connect(ctx)
			if err == nil {
				err = exchange(stream, openConsole(sim0, true), &consolev1.ConnectResponse{})
			}
			if got := grpcstatus.ReasonOf(err); got != tc.reason {
				t.Errorf("Connect: %v, want reason %v", err, tc.reason)
			}
			// What an audit line would say of who called.
			_, err = powerv1.NewPowerServiceClient(conn).TransitionPower(ctx, &powerv1.TransitionPowerRequest{Bmc: sim0, Action: powerv1.PowerAction_POWER_ACTION_ON})
			if got := grpcstatus.ReasonOf(err); got != denied {
				t.Errorf("TransitionPower: %v, want PERMISSION_DENIED", err)
			}
			if tc.claim.User != "" && !tc.honoured && strings.Contains(log.String(), "user="+tc.claim.User) {
				t.Errorf("the log has a user that nobody vouched for:\n%s", log)
			}
			want := 0
			if tc.reason == allowed {
				want = 2
			}
			callers := r.reached()
			if len(callers) != want {
				t.Fatalf("%d calls reached their handlers, want %d", len(callers), want)
			}
			for _, caller := range callers {
				if tc.honoured {
					if caller != tc.claim {
						t.Errorf("caller is %+v, want %+v", caller, tc.claim)
					}
					continue
				}
				host, _, _ := net.SplitHostPort(caller.Address)
				if caller.User != "" || caller.Protocol != "grpc" || host != "127.0.0.1" {
					t.Errorf("caller is %+v, want what the server sees", caller)
				}
			}
		})
	}
}

// Probes carry no token; descriptions of methods are for whoever has one.
func TestAuthorization_healthAndReflection(t *testing.T) {
	t.Parallel()
	address, tlsConfig, _ := serve(t, grpcserver.Config{Authorizer: &rights{}}, func(registrar grpc.ServiceRegistrar) {
		powerv1.RegisterPowerServiceServer(registrar, &recorder{})
	})
	for name, tc := range map[string]struct {
		token      func() (string, error)
		reflection errorsv1.Reason
	}{
		"no token":                {nil, errorsv1.Reason_REASON_UNAUTHENTICATED},
		"wrong token":             {token("wrong"), errorsv1.Reason_REASON_UNAUTHENTICATED},
		"token without any right": {token("right"), allowed},
	} {
		conn := dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: tc.token})
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("%s: health: %v", name, err)
		}
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// A stream that is refused may have ended before anything is sent, and has
		// when more is.
		for range 2 {
			request := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
			err := exchange(stream, request, &reflectionv1.ServerReflectionResponse{})
			if got := grpcstatus.ReasonOf(err); got != tc.reflection {
				t.Errorf("%s: reflection: %v, want reason %v", name, err, tc.reflection)
			}
		}
	}
}

// Subscribe tells whether its caller may do what the test wants to know.
func (r *recorder) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := grpcserver.Authorize(stream.Context(), access.Request{Subresource: access.Credentials, Verb: access.Get}); err != nil {
		return err
	}
	return stream.Send(&registryv1.SubscribeResponse{})
}

// A method that is about the BMCs that its caller has the right to asks by
// itself.
func TestAuthorization_byTheService(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		authorizer grpcserver.Authorizer
		want       errorsv1.Reason
	}{
		"no authorizer":   {nil, allowed},
		"may do it":       {&rights{answers: map[string]errorsv1.Reason{"get virtualmachinebmcs/credentials of all BMCs": allowed}}, allowed},
		"may not":         {&rights{answers: map[string]errorsv1.Reason{getCredentials: allowed}}, denied},
		"nobody can tell": {&rights{answers: map[string]errorsv1.Reason{"get virtualmachinebmcs/credentials of all BMCs": unavailable}}, unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, tlsConfig, _ := serve(t, grpcserver.Config{Authorizer: tc.authorizer}, func(registrar grpc.ServiceRegistrar) {
				registryv1.RegisterRegistryServiceServer(registrar, &recorder{})
			})
			conn := dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")})
			stream, err := registryv1.NewRegistryServiceClient(conn).Subscribe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			hello := &registryv1.Hello{Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: "r"}
			request := &registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Hello{Hello: hello}}
			err = exchange(stream, request, &registryv1.SubscribeResponse{})
			if got := grpcstatus.ReasonOf(err); got != tc.want {
				t.Errorf("Subscribe: %v, want reason %v", err, tc.want)
			}
		})
	}
}
