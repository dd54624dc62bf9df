// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// power answers with what the test wants.
type power struct {
	powerv1.UnimplementedPowerServiceServer
	get func(context.Context) error
}

func (p power) GetPower(ctx context.Context, _ *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	return &powerv1.GetPowerResponse{}, p.get(ctx)
}

func (power) WatchPower(req *powerv1.WatchPowerRequest, stream grpc.ServerStreamingServer[powerv1.WatchPowerResponse]) error {
	if err := stream.Send(&powerv1.WatchPowerResponse{}); err != nil || req.GetBmc().GetName() != "endless" {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// lockedBuffer is a log that handlers write to while the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start serves p over TLS and returns the server's address, a TLS
// configuration that trusts it, and its log.
func start(t *testing.T, p power) (string, *tls.Config, *lockedBuffer) {
	t.Helper()
	return serve(t, grpcserver.Config{}, func(r grpc.ServiceRegistrar) { powerv1.RegisterPowerServiceServer(r, p) })
}

// serve is start with other services and a configuration.
func serve(t *testing.T, config grpcserver.Config, register func(grpc.ServiceRegistrar)) (string, *tls.Config, *lockedBuffer) {
	t.Helper()
	ca, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var tokens grpcserver.StaticTokens
	tokens.Add("other", "other-identity")
	tokens.Add("right", "test-identity")
	log := &lockedBuffer{}
	config.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	config.TLS = certs.ServerTLS(func() (*tls.Certificate, error) { return leaf, nil })
	if config.Authenticator == nil {
		config.Authenticator = tokens
	}
	config.Metrics = prometheus.NewRegistry()
	server, err := grpcserver.New(config)
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	server.SetReady(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		// Streams are no reason to wait: without StopStreams this would.
		server.Shutdown(context.Background())
		serving.Wait()
	})
	return listener.Addr().String(), &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13}, log
}

func dial(t *testing.T, target string, cfg grpcclient.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpcclient.Dial(target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func token(s string) func() (string, error) { return func() (string, error) { return s, nil } }

var sim0 = &referencev1.BMCReference{Namespace: "default", Name: "sim-0"}

func TestServer_authentication(t *testing.T) {
	t.Parallel()
	address, tlsConfig, log := start(t, power{get: func(ctx context.Context) error {
		if got := grpcserver.IdentityOf(ctx); got != "test-identity" {
			t.Errorf("identity %q", got)
		}
		return nil
	}})
	for name, tc := range map[string]struct {
		token func() (string, error)
		want  errorsv1.Reason
	}{
		"right token": {token("right"), errorsv1.Reason_REASON_UNSPECIFIED},
		"wrong token": {token("wrong-secret"), errorsv1.Reason_REASON_UNAUTHENTICATED},
		"empty token": {token(""), errorsv1.Reason_REASON_UNAUTHENTICATED},
		"no token":    {nil, errorsv1.Reason_REASON_UNAUTHENTICATED},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: tc.token})
			_, err := powerv1.NewPowerServiceClient(conn).GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: sim0})
			if got := grpcstatus.ReasonOf(err); got != tc.want {
				t.Errorf("GetPower: %v, want reason %v", err, tc.want)
			}
			stream, err := powerv1.NewPowerServiceClient(conn).WatchPower(t.Context(), &powerv1.WatchPowerRequest{Bmc: sim0})
			if err == nil {
				_, err = stream.Recv()
			}
			if got := grpcstatus.ReasonOf(err); got != tc.want {
				t.Errorf("WatchPower: %v, want reason %v", err, tc.want)
			}
			if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("health check: %v", err)
			}
		})
	}
	if strings.Contains(log.String(), "wrong-secret") {
		t.Error("the log has a token in it")
	}
}

func TestServer_untrustedCertificate_isRefusedByClient(t *testing.T) {
	t.Parallel()
	address, _, _ := start(t, power{get: func(context.Context) error { return nil }})
	conn := dial(t, address, grpcclient.Config{TLS: &tls.Config{MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}, Token: token("right")})
	if _, err := powerv1.NewPowerServiceClient(conn).GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: sim0}); err == nil {
		t.Error("a server with an unknown CA was trusted")
	}
}

func TestServer_validation_namesTheField(t *testing.T) {
	t.Parallel()
	address, tlsConfig, _ := start(t, power{get: func(context.Context) error { t.Error("an invalid request reached the handler"); return nil }})
	client := powerv1.NewPowerServiceClient(dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")}))
	_, err := client.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: &referencev1.BMCReference{Namespace: "Bad_Name", Name: "sim-0"}})
	if got := grpcstatus.ReasonOf(err); got != errorsv1.Reason_REASON_INVALID_REQUEST {
		t.Fatalf("GetPower: %v, want INVALID_REQUEST", err)
	}
	var fields []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	if d := cmp.Diff([]string{"bmc.namespace"}, fields); d != "" {
		t.Errorf("fields mismatch (-want +got):\n%s", d)
	}
	for name, req := range map[string]*powerv1.TransitionPowerRequest{
		"no BMC":       {Action: powerv1.PowerAction_POWER_ACTION_ON},
		"no action":    {Bmc: sim0},
		"not defined":  {Bmc: sim0, Action: 99},
		"wait below 0": {Bmc: sim0, Action: powerv1.PowerAction_POWER_ACTION_ON, Wait: durationpb.New(-time.Second)},
		"wait too big": {Bmc: sim0, Action: powerv1.PowerAction_POWER_ACTION_ON, Wait: durationpb.New(3 * time.Minute)},
	} {
		if _, err := client.TransitionPower(t.Context(), req); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_INVALID_REQUEST {
			t.Errorf("%s: %v, want INVALID_REQUEST", name, err)
		}
	}
	stream, err := client.WatchPower(t.Context(), &powerv1.WatchPowerRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if got := grpcstatus.ReasonOf(err); got != errorsv1.Reason_REASON_INVALID_REQUEST {
		t.Errorf("WatchPower without a BMC: %v, want INVALID_REQUEST", err)
	}
}

func TestServer_panic_isAnInternalErrorAndLogged(t *testing.T) {
	t.Parallel()
	address, tlsConfig, log := start(t, power{get: func(context.Context) error { panic("boom") }})
	client := powerv1.NewPowerServiceClient(dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")}))
	for range 2 { // The server lives on.
		_, err := client.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: sim0})
		if got := grpcstatus.ReasonOf(err); got != errorsv1.Reason_REASON_INTERNAL || strings.Contains(err.Error(), "boom") {
			t.Errorf("GetPower: %v, want INTERNAL without the panic's text", err)
		}
	}
	if !strings.Contains(log.String(), "boom") {
		t.Error("the panic is not in the log")
	}
}

func TestServer_requestIDAndCaller_reachHandlerAndLog(t *testing.T) {
	t.Parallel()
	want := callctx.Caller{User: "admin", Address: "192.0.2.1:623", Protocol: "ipmi"}
	address, tlsConfig, log := start(t, power{get: func(ctx context.Context) error {
		if got := callctx.CallerOf(ctx); got != want || callctx.RequestID(ctx) != "req-42" {
			t.Errorf("caller %+v, request id %q", got, callctx.RequestID(ctx))
		}
		return grpcstatus.New(errorsv1.Reason_REASON_BMC_NOT_FOUND, "no BMC default/sim-0")
	}})
	client := powerv1.NewPowerServiceClient(dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")}))
	ctx := callctx.WithCaller(callctx.WithRequestID(t.Context(), "req-42"), want)
	if _, err := client.GetPower(ctx, &powerv1.GetPowerRequest{Bmc: sim0}); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_BMC_NOT_FOUND {
		t.Errorf("GetPower: %v, want BMC_NOT_FOUND", err)
	}
	for _, part := range []string{"request=req-42", "user=admin", "identity=test-identity", "code=NotFound", "REASON_BMC_NOT_FOUND"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, log.String())
		}
	}
}

// The server of this test ends while a stream is open.
func TestServer_end_endsStreams(t *testing.T) {
	t.Parallel()
	var stream grpc.ServerStreamingClient[powerv1.WatchPowerResponse]
	t.Run("stream", func(t *testing.T) {
		address, tlsConfig, _ := start(t, power{get: func(context.Context) error { return nil }})
		conn, err := grpcclient.Dial(address, grpcclient.Config{TLS: tlsConfig, Token: token("right")})
		if err != nil {
			t.Fatal(err)
		}
		endless := &referencev1.BMCReference{Namespace: "default", Name: "endless"}
		stream, err = powerv1.NewPowerServiceClient(conn).WatchPower(context.Background(), &powerv1.WatchPowerRequest{Bmc: endless})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if _, err := stream.Recv(); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("end of the stream: %v, want UNAVAILABLE since the service is stopping", err)
	}
}

// A client that goes away is nobody's error.
func TestServer_canceledCall_isNotLoggedAsError(t *testing.T) {
	t.Parallel()
	address, tlsConfig, log := start(t, power{get: func(context.Context) error { return context.Canceled }})
	client := powerv1.NewPowerServiceClient(dial(t, address, grpcclient.Config{TLS: tlsConfig, Token: token("right")}))
	if _, err := client.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: sim0}); status.Code(err) != codes.Canceled {
		t.Errorf("GetPower: %v, want Canceled", err)
	}
	if strings.Contains(log.String(), "ERROR") {
		t.Errorf("the log has an error:\n%s", log.String())
	}
}
