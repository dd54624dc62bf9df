// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcprocess_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/testport"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

type power struct {
	powerv1.UnimplementedPowerServiceServer
	entered, leave chan struct{}
}

func (p power) GetPower(ctx context.Context, req *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	switch req.GetBmc().GetName() {
	case "slow":
		close(p.entered)
		<-p.leave
	case "missing":
		return nil, grpcstatus.New(errorsv1.Reason_REASON_BMC_NOT_FOUND, "no BMC missing")
	}
	return &powerv1.GetPowerResponse{Status: &powerv1.PowerStatus{
		State: powerv1.PowerState_POWER_STATE_ON, InstanceId: callctx.RequestID(ctx),
	}}, nil
}

type server struct {
	grpcAddress, restAddress string
	tls                      *tls.Config
	stop                     context.CancelFunc
	done                     chan error
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
}

// files are what a process is given.
type files struct {
	t                *testing.T
	dir              string
	authority        *certs.Authority
	cert, key, token string
}

func newFiles(t *testing.T) *files {
	t.Helper()
	authority, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	f := &files{t: t, dir: t.TempDir(), authority: authority}
	f.token = f.write("token", []byte("other another-secret\n\nsecret\n"))
	f.cert = f.write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	f.key = f.write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	return f
}

func (f *files) write(name string, text []byte) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *files) args() []string {
	return append(f.tlsArgs(), "--token-file", f.token)
}

func (f *files) tlsArgs() []string {
	return []string{"--tls-cert-file", f.cert, "--tls-key-file", f.key}
}

func newProcess() *process.Process {
	return &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
}

func start(t *testing.T, p powerv1.PowerServiceServer) *server {
	t.Helper()
	f := newFiles(t)
	return startWith(t, f, f.args(), nil, p)
}

func startWith(t *testing.T, f *files, args []string, access grpcprocess.Access, p powerv1.PowerServiceServer) *server {
	t.Helper()
	s := &server{
		grpcAddress: freeAddress(t), restAddress: freeAddress(t),
		tls:  &tls.Config{RootCAs: f.authority.Pool(), MinVersion: tls.VersionTLS13},
		done: make(chan error, 1),
	}
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	options := grpcprocess.AddFlags(flags, true)
	if err := flags.Parse(append(args, "--listen", s.grpcAddress, "--rest-listen", s.restAddress)); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	running := newProcess()
	go func() {
		s.done <- options.Serve(ctx, running, grpcprocess.Service{
			Access:   access,
			Register: func(r grpc.ServiceRegistrar) { powerv1.RegisterPowerServiceServer(r, p) },
			RegisterGateway: func(ctx context.Context, mux *runtime.ServeMux, conn grpc.ClientConnInterface) error {
				return powerv1.RegisterPowerServiceHandlerClient(ctx, mux, powerv1.NewPowerServiceClient(conn))
			},
		})
	}()
	t.Cleanup(s.stop)
	for deadline := time.Now().Add(10 * time.Second); !running.Health.Ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not ready within 10 s")
		}
	}
	return s
}

func (s *server) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpcclient.Dial(s.grpcAddress, grpcclient.Config{TLS: s.tls, Token: func() (string, error) { return "secret", nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func request(name string) *powerv1.GetPowerRequest {
	return &powerv1.GetPowerRequest{Bmc: &referencev1.BMCReference{Namespace: "default", Name: name}}
}

func TestServe_gRPCAndREST(t *testing.T) {
	t.Parallel()
	s := start(t, power{})
	conn := s.dial(t)
	if _, err := powerv1.NewPowerServiceClient(conn).GetPower(t.Context(), request("a")); err != nil {
		t.Errorf("GetPower: %v", err)
	}
	if health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v; want SERVING", health, err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	for name, tc := range map[string]struct {
		path, token string
		body        io.Reader
		status      int
		text        string
	}{
		"right token":            {"/v1/namespaces/default/bmcs/a/power", "secret", nil, 200, `"request-1"`},
		"wrong token":            {"/v1/namespaces/default/bmcs/a/power", "wrong", nil, 401, `"UNAUTHENTICATED"`},
		"no token":               {"/v1/namespaces/default/bmcs/a/power", "", nil, 401, `"UNAUTHENTICATED"`},
		"reason in the details":  {"/v1/namespaces/default/bmcs/missing/power", "secret", nil, 404, `"BMC_NOT_FOUND"`},
		"bad name":               {"/v1/namespaces/default/bmcs/A_b/power", "secret", nil, 400, `"INVALID_REQUEST"`},
		"unknown path":           {"/nothing", "secret", nil, 404, ""},
		"a body that is too big": {"/v1/namespaces/default/bmcs/a/power", "secret", bytes.NewReader(make([]byte, 2<<20)), 413, "1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			method := http.MethodGet
			if tc.body != nil {
				method = http.MethodPost
			}
			req, err := http.NewRequest(method, "https://"+s.restAddress+tc.path, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Request-Id", "request-1")
			if tc.token != "" {
				req.Header.Set("Authorization", "Bearer "+tc.token)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status || !strings.Contains(string(text), tc.text) {
				t.Errorf("%s: %s %s, want %d with %s", tc.path, resp.Status, text, tc.status, tc.text)
			}
		})
	}
	s.stop()
	if err := <-s.done; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

// reviewer knows one caller, who may only read.
type reviewer struct{}

func (reviewer) Authenticate(_ context.Context, token string) (grpcserver.Identity, error) {
	if token != "of-ada" {
		return grpcserver.Identity{}, grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "unknown")
	}
	return grpcserver.Identity{Name: "ada"}, nil
}

func (reviewer) Authorize(_ context.Context, caller grpcserver.Identity, request access.Request) error {
	if caller.Name != "ada" || request.String() != "get virtualmachinebmcs/power of default/a" {
		return grpcstatus.New(errorsv1.Reason_REASON_PERMISSION_DENIED, "%s may not %s", caller.Name, request)
	}
	return nil
}

// watched tells who calls.
type watched struct {
	powerv1.UnimplementedPowerServiceServer
	callers chan callctx.Caller
}

func (w watched) GetPower(ctx context.Context, _ *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	w.callers <- callctx.CallerOf(ctx)
	return &powerv1.GetPowerResponse{}, nil
}

// Without a file of tokens the service's reviewer is asked, whichever way a call
// comes, and nobody can call under another's name or address.
func TestServe_reviewer(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	w := watched{callers: make(chan callctx.Caller, 1)}
	s := startWith(t, f, f.tlsArgs(), func(*slog.Logger) (grpcprocess.Reviewer, error) { return reviewer{}, nil }, w)
	forged := callctx.WithCaller(t.Context(), callctx.Caller{User: "root", Address: "192.0.2.1:1", Protocol: "ipmi"})

	grpcCall := func(address string) func(token, bmc string, action bool) error {
		return func(token, bmc string, action bool) error {
			conn, err := grpcclient.Dial(address, grpcclient.Config{TLS: s.tls, Token: func() (string, error) { return token, nil }})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := powerv1.NewPowerServiceClient(conn)
			if action {
				_, err = client.TransitionPower(forged, &powerv1.TransitionPowerRequest{Bmc: request(bmc).GetBmc(), Action: powerv1.PowerAction_POWER_ACTION_ON})
			} else {
				_, err = client.GetPower(forged, request(bmc))
			}
			return err
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	restCall := func(token, bmc string, action bool) error {
		method, body := http.MethodGet, ""
		if action {
			method, body = http.MethodPost, `{"action":"POWER_ACTION_ON"}`
		}
		req, err := http.NewRequest(method, "https://"+s.restAddress+"/v1/namespaces/default/bmcs/"+bmc+"/power", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string]string{
			"Authorization": "Bearer " + token, "X-Bmc-User": "root", "X-Bmc-Address": "192.0.2.1:1",
			"Grpc-Metadata-X-Bmc-User": "root", "Grpc-Metadata-X-Bmc-Address": "192.0.2.1:1", "X-Forwarded-For": "192.0.2.1",
		} {
			req.Header.Set(key, value)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		code, ok := map[int]codes.Code{200: codes.OK, 401: codes.Unauthenticated, 403: codes.PermissionDenied}[resp.StatusCode]
		if !ok {
			code = codes.Unknown
		}
		return status.Error(code, resp.Status)
	}
	for name, tc := range map[string]struct {
		call     func(token, bmc string, action bool) error
		protocol string
	}{
		"gRPC":                {grpcCall(s.grpcAddress), "grpc"},
		"REST":                {restCall, "rest"},
		"gRPC at REST's port": {grpcCall(s.restAddress), "grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			for what, refused := range map[string]struct {
				token, bmc string
				action     bool
				want       codes.Code
			}{
				"stranger":    {"of-eve", "a", false, codes.Unauthenticated},
				"an action":   {"of-ada", "a", true, codes.PermissionDenied},
				"another BMC": {"of-ada", "b", false, codes.PermissionDenied},
			} {
				if err := tc.call(refused.token, refused.bmc, refused.action); status.Code(err) != refused.want {
					t.Errorf("%s: %v, want %v", what, err, refused.want)
				}
			}
			if err := tc.call("of-ada", "a", false); err != nil {
				t.Fatalf("a read that is allowed: %v", err)
			}
			caller := <-w.callers
			host, _, _ := net.SplitHostPort(caller.Address)
			if caller.User != "" || host != "127.0.0.1" || caller.Protocol != tc.protocol {
				t.Errorf("called by %+v, want nobody's name, this host and %s", caller, tc.protocol)
			}
		})
	}
}

func TestServe_end_letsCallsFinish(t *testing.T) {
	t.Parallel()
	p := power{entered: make(chan struct{}), leave: make(chan struct{})}
	s := start(t, p)
	conn := s.dial(t)
	answered := make(chan error, 1)
	go func() {
		_, err := powerv1.NewPowerServiceClient(conn).GetPower(t.Context(), request("slow"))
		answered <- err
	}()
	<-p.entered
	s.stop()
	select {
	case err := <-s.done:
		t.Fatalf("Serve returned %v with a call under way", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(p.leave)
	if err := <-answered; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-s.done; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

// TestServe_notReadyBeforeItListens: whatever else is ready.
func TestServe_notReadyBeforeItListens(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	options := grpcprocess.AddFlags(flags, false)
	address := freeAddress(t)
	if err := flags.Parse(append(f.args(), "--listen", address)); err != nil {
		t.Fatal(err)
	}
	p := newProcess()
	dialed := make(chan error, 1)
	p.Health.OnChange(func(ready bool) {
		if ready {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			dialed <- err
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- options.Serve(ctx, p, grpcprocess.Service{
			Register: func(grpc.ServiceRegistrar) { p.Health.Set("work", true) },
		})
	}()
	if err := <-dialed; err != nil {
		t.Errorf("ready, and then %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

// TestServe_endsBeforeItBegan: a process that is told to end while it starts ends
// well.
func TestServe_endsBeforeItBegan(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	for range 20 {
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		options := grpcprocess.AddFlags(flags, true)
		if err := flags.Parse(append(f.args(), "--listen", freeAddress(t), "--rest-listen", freeAddress(t))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := options.Serve(ctx, newProcess(), grpcprocess.Service{
			Register: func(grpc.ServiceRegistrar) {},
			RegisterGateway: func(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error {
				time.AfterFunc(time.Millisecond, cancel)
				return nil
			},
		})
		cancel()
		if err != nil {
			t.Fatalf("Serve returned %v", err)
		}
	}
}

func TestServe_wrongFlags(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, "--tls-cert-file"},
		"nobody known":   {f.tlsArgs(), "--token-file"},
		"no token":       {append(f.args(), "--token-file", f.write("none", []byte("\n"))), "has none"},
		"too many words": {append(f.args(), "--token-file", f.write("many", []byte("one two three"))), "more than a name and a token"},
		"no token file":  {append(f.args(), "--token-file", "/does/not/exist"), "read tokens"},
		"no certificate": {append(f.args(), "--tls-cert-file", "/does/not/exist"), "/does/not/exist"},
		"no such port":   {append(f.args(), "--listen", "localhost:99999"), "99999"},
		"no REST port":   {append(f.args(), "--listen", "127.0.0.1:0", "--rest-listen", "localhost:99999"), "99999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := flag.NewFlagSet("test", flag.ContinueOnError)
			options := grpcprocess.AddFlags(flags, true)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := options.Serve(t.Context(), newProcess(), grpcprocess.Service{
				Register:        func(grpc.ServiceRegistrar) {},
				RegisterGateway: func(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error { return nil },
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Serve: %v, want an error with %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "three") {
				t.Errorf("the error repeats a token: %v", err)
			}
		})
	}
}
