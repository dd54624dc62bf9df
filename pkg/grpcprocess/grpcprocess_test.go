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
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/process"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
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
	return []string{"--tls-cert-file", f.cert, "--tls-key-file", f.key, "--token-file", f.token}
}

func newProcess() *process.Process {
	return &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
}

func start(t *testing.T, p power) *server {
	t.Helper()
	f := newFiles(t)
	s := &server{
		grpcAddress: freeAddress(t), restAddress: freeAddress(t),
		tls:  &tls.Config{RootCAs: f.authority.Pool(), MinVersion: tls.VersionTLS13},
		done: make(chan error, 1),
	}
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	options := grpcprocess.AddFlags(flags, true)
	if err := flags.Parse(append(f.args(), "--listen", s.grpcAddress, "--rest-listen", s.restAddress)); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	running := newProcess()
	go func() {
		s.done <- options.Serve(ctx, running, grpcprocess.Service{
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

func TestServe_wrongFlags(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, "--token-file"},
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
