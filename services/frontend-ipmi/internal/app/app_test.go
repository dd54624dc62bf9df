// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/process"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// emptyRegistry has no BMCs, and lets in those that have the token.
type emptyRegistry struct {
	registryv1.UnimplementedRegistryServiceServer
}

func (emptyRegistry) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer the-token" {
		return status.Error(codes.Unauthenticated, "no token")
	}
	synced := &registryv1.SubscribeResponse{Payload: &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: true}}}
	if err := stream.Send(synced); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func startRegistry(t *testing.T) (address, caFile string) {
	t.Helper()
	authority, err := certs.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS13})))
	registryv1.RegisterRegistryServiceServer(server, emptyRegistry{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String(), caFile
}

func TestRun_readyOverTLSWithToken(t *testing.T) {
	t.Parallel()
	address, caFile := startRegistry(t)
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	run := Configure(flags)
	if err := flags.Parse([]string{"-registry", address, "-power", address, "-replica", "r", "-ca-file", caFile, "-token-file", tokenFile, "-listen", "127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx, p) }()
	for deadline := time.Now().Add(10 * time.Second); !p.Health.Ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not ready within 10 s")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestRun_tellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	run := Configure(flag.NewFlagSet("test", flag.ContinueOnError))
	err := run(t.Context(), &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()})
	if err == nil {
		t.Fatal("runs without flags")
	}
	for _, name := range []string{"registry", "power", "ca-file", "token-file"} {
		if !strings.Contains(err.Error(), "--"+name) {
			t.Errorf("error %q does not name --%s", err, name)
		}
	}
}

func TestRun_needsCACertificates(t *testing.T) {
	t.Parallel()
	cfg := Config{Registry: "x", Power: "x", Replica: "x", TokenFile: "x", CAFile: filepath.Join(t.TempDir(), "none")}
	err := run(t.Context(), &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}, cfg)
	if err == nil || !strings.Contains(err.Error(), "CA certificates") {
		t.Errorf("error %v", err)
	}
}
