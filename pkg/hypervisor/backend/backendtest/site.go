// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package backendtest runs the programs of backends against a simulator that
// outlives them.
package backendtest

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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/testport"
)

// Token is what a site's programs ask of their callers.
const Token = "not-a-secret"

// Machine is the site's machine.
var Machine = hypervisor.Ref{Namespace: "default", Name: "sim-0"}

// Site is a simulator with one machine, served over TLS, and what a program
// needs to use it.
type Site struct {
	Simulator *simulator.Simulator

	flags     []string
	address   string
	rest      string
	caFile    string
	tokenFile string
}

// New makes a site, which ends with the test.
func New(t *testing.T) *Site {
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
	caFile, tokenFile := write("ca.pem", authority.PEM()), write("token", []byte(Token))
	certFile := write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	keyFile := write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))

	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	if err := s.AddMachine(simulator.Spec{Ref: Machine}); err != nil {
		t.Fatal(err)
	}
	var tokens grpcserver.StaticTokens
	tokens.Add(Token, "test")
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
	address, rest := free(t), free(t)
	return &Site{
		Simulator: s, address: address, rest: rest, caFile: caFile, tokenFile: tokenFile,
		flags: []string{
			"--listen=" + address, "--rest-listen=" + rest, "--tls-cert-file=" + certFile, "--tls-key-file=" + keyFile, "--token-file=" + tokenFile,
			"--replica=replica-0", "--hypervisor=simulator", "--simulator-address=" + named(t, listener.Addr().String()),
			"--simulator-ca-file=" + caFile, "--simulator-token-file=" + tokenFile,
		},
	}
}

// free returns an address that a program can listen on again after it has ended.
func free(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("localhost", strconv.Itoa(testport.Free(t)))
}

// named returns an address with the host name that the certificate has.
func named(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("localhost", port)
}

// Start runs a program, with more flags than the site's own, waits until it is ready,
// and returns how to stop it.
func (s *Site) Start(t *testing.T, configure func(*flag.FlagSet) process.Run, more ...string) (stop func()) {
	t.Helper()
	flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	run := configure(flags)
	if err := flags.Parse(slices.Concat(s.flags, more)); err != nil {
		t.Fatal(err)
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
		t.Fatalf("the program ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("the program does not get ready")
	}
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the program ended with %v", err)
		}
	}
}

// Dial connects to the program.
func (s *Site) Dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	roots, err := certs.LoadRoots(s.caFile)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpcclient.Dial(s.address, grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(s.tokenFile)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	return connection
}

// Call sends a REST call to the program; bearer is its token, empty: none.
func (s *Site) Call(t *testing.T, method, path, bearer, body string) (code int, content string) {
	t.Helper()
	roots, err := certs.LoadRoots(s.caFile)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots.Pool(), MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.rest+path, strings.NewReader(body))
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
	read, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	// protojson puts a space behind a colon in some builds and none in others.
	return response.StatusCode, strings.ReplaceAll(string(read), `": `, `":`)
}
