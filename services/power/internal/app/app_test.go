// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
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

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/process"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/app"
)

const token = "not-a-secret"

var (
	ref = hypervisor.Ref{Namespace: "default", Name: "sim-0"}
	bmc = &referencev1.BMCReference{Namespace: "default", Name: "sim-0"}
)

// site is a simulator that outlives the power processes of a test.
type site struct {
	*testing.T
	simulator *simulator.Simulator
	flags     []string
	address   string
	caFile    string
	tokenFile string
}

func newSite(t *testing.T) *site {
	t.Helper()
	authority, err := certs.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"localhost"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	caFile, tokenFile := write("ca.pem", authority.PEM()), write("token", []byte(token))
	certFile := write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	keyFile := write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))

	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	if err := s.AddMachine(simulator.Spec{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	var tokens grpcserver.StaticTokens
	tokens.Add(token, "power")
	server, err := grpcserver.New(grpcserver.Config{
		Log: slog.New(slog.DiscardHandler), TLS: certs.ServerTLS(func() (*tls.Certificate, error) { return leaf, nil }),
		Authenticator: tokens, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	remote.Register(server, s)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	address := freePort(t)
	return &site{
		T: t, simulator: s, address: address, caFile: caFile, tokenFile: tokenFile,
		flags: []string{
			"--listen=" + address, "--tls-cert-file=" + certFile, "--tls-key-file=" + keyFile, "--token-file=" + tokenFile,
			"--replica=power-0", "--hypervisor=simulator", "--simulator-address=localhost:" + port(t, listener.Addr().String()),
			"--simulator-ca-file=" + caFile, "--simulator-token-file=" + tokenFile,
		},
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// start runs the program until stop is called.
func (s *site) start() (stop func()) {
	s.Helper()
	flags := flag.NewFlagSet("power", flag.ContinueOnError)
	run := app.New(flags)
	if err := flags.Parse(s.flags); err != nil {
		s.Fatal(err)
	}
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	ready := make(chan struct{}, 1)
	p.Health.OnChange(func(is bool) {
		if is {
			select {
			case ready <- struct{}{}:
			default:
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p) }()
	select {
	case <-ready:
	case err := <-ended:
		s.Fatalf("the program ended: %v", err)
	case <-time.After(30 * time.Second):
		s.Fatal("the program does not get ready")
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("the program ended with %v", err)
		}
	}
}

func (s *site) client() powerv1.PowerServiceClient {
	s.Helper()
	tlsConfig, err := grpcclient.TLSFromCA(s.caFile)
	if err != nil {
		s.Fatal(err)
	}
	connection, err := grpcclient.Dial("localhost:"+port(s.T, s.address), grpcclient.Config{TLS: tlsConfig, Token: grpcclient.TokenFile(s.tokenFile)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := connection.Close(); err != nil {
			s.Error(err)
		}
	})
	return powerv1.NewPowerServiceClient(connection)
}

func (s *site) get(client powerv1.PowerServiceClient) *powerv1.PowerStatus {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		response, err := client.GetPower(s.Context(), &powerv1.GetPowerRequest{Bmc: bmc})
		switch {
		case err == nil:
			return response.GetStatus()
		case status.Code(err) != codes.Unavailable || time.Now().After(end):
			s.Fatal(err)
		}
	}
}

// TestRestart: a program that goes while it cycles a machine, and its successor
// that finishes the cycle.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.start()
	client := s.client()
	act := func(action powerv1.PowerAction) {
		t.Helper()
		if _, err := client.TransitionPower(t.Context(), &powerv1.TransitionPowerRequest{Bmc: bmc, Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(want powerv1.PowerState) *powerv1.PowerStatus {
		t.Helper()
		for range 3000 {
			now := s.get(client)
			if now.GetState() == want && now.GetOperation().GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY {
				return now
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("machine is %v, want %s", s.get(client), want)
		return nil
	}
	act(powerv1.PowerAction_POWER_ACTION_ON)
	first := until(powerv1.PowerState_POWER_STATE_ON)
	for range 3 {
		act(powerv1.PowerAction_POWER_ACTION_POWER_CYCLE)
		stop()
		stop = s.start()
		now := until(powerv1.PowerState_POWER_STATE_ON)
		if now.GetInstanceId() == first.GetInstanceId() || now.GetOperation().GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED {
			t.Errorf("after the restart: %v", now)
		}
		first = now
	}
	stop()
	stops := 0
	for _, verb := range s.simulator.Done(ref) {
		if verb == simulator.VerbStop {
			stops++
		}
	}
	if stops != 3 {
		t.Errorf("three cycles stopped the machine %d times", stops)
	}
}

func TestREST(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	defer s.start()()
	tlsConfig, err := grpcclient.TLSFromCA(s.caFile)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	call := func(method, path, bearer, body string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://localhost:"+port(t, s.address)+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			request.Header.Set("Authorization", "Bearer "+bearer)
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(content)
	}
	const path = "/v1/namespaces/default/bmcs/sim-0"
	for name, test := range map[string]struct {
		method, path, bearer, body string
		code                       int
		want                       string
	}{
		"power":         {http.MethodGet, path + "/power", token, "", http.StatusOK, `"state":"POWER_STATE_OFF"`},
		"inventory":     {http.MethodGet, path + "/inventory", token, "", http.StatusOK, `"machine_name":"sim-0"`},
		"boot":          {http.MethodGet, path + "/boot", token, "", http.StatusOK, `"BOOT_TARGET_PXE"`},
		"no token":      {http.MethodGet, path + "/power", "", "", http.StatusUnauthorized, "UNAUTHENTICATED"},
		"wrong token":   {http.MethodGet, path + "/power", "guess", "", http.StatusUnauthorized, "UNAUTHENTICATED"},
		"no such BMC":   {http.MethodGet, "/v1/namespaces/default/bmcs/nobody/power", token, "", http.StatusNotFound, "BMC_NOT_FOUND"},
		"invalid BMC":   {http.MethodGet, "/v1/namespaces/default/bmcs/No_Body/power", token, "", http.StatusBadRequest, "INVALID_REQUEST"},
		"cycle, is off": {http.MethodPost, path + "/power", token, `{"action":"POWER_ACTION_POWER_CYCLE"}`, http.StatusBadRequest, "INVALID_POWER_STATE"},
		"not JSON":      {http.MethodPost, path + "/power", token, `{`, http.StatusBadRequest, ""},
		"no such path":  {http.MethodGet, path + "/weather", token, "", http.StatusNotFound, ""},
	} {
		code, content := call(test.method, test.path, test.bearer, test.body)
		content = strings.ReplaceAll(content, ": ", ":")
		if code != test.code || !strings.Contains(content, test.want) {
			t.Errorf("%s: got %d %s, want %d with %s", name, code, content, test.code, test.want)
		}
	}
	code, content := call(http.MethodPost, path+"/power", token, `{"action":"POWER_ACTION_ON","wait":"30s"}`)
	if code != http.StatusOK || !strings.Contains(content, "POWER_STATE_ON") {
		t.Errorf("on: got %d %s", code, content)
	}
}
