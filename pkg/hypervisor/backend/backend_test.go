// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatorprocess"
	"kubevirtbmc.dev/pkg/process"
)

// files are what a process is given.
type files struct{ ca, cert, key, token string }

func newFiles(t *testing.T, tokens string) files {
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
	write := func(name string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return files{
		ca:    write("ca.pem", authority.PEM()),
		cert:  write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})),
		key:   write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		token: write("token", []byte(tokens)),
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

func run(ctx context.Context, args ...string) error {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	start := simulatorprocess.New(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	return start(ctx, &process.Process{
		Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth(),
	})
}

func TestSimulatorProcess(t *testing.T) {
	t.Parallel()
	f := newFiles(t, "power secret\n\nlone-token\n")
	address := freePort(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, "--machines=2", "--listen="+address,
			"--tls-cert-file="+f.cert, "--tls-key-file="+f.key, "--token-file="+f.token)
	}()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(token string) *remote.Client {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		options := remote.Options{Address: "localhost:" + port, CAFile: f.ca, TokenFile: path}
		client, closeConnection, err := options.Dial(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		clientCtx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- client.Run(clientCtx) }()
		t.Cleanup(func() {
			cancel()
			if err := errors.Join(<-done, closeConnection()); err != nil {
				t.Error(err)
			}
		})
		return client
	}
	for _, token := range []string{"secret", "lone-token"} {
		client := dial(token)
		if err := client.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all, err := client.List(); err != nil || len(all) != 2 {
			t.Errorf("the process has %d machines, %v", len(all), err)
		}
	}
	stranger := dial("guess")
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := stranger.WaitSynced(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wrong token: %v", err)
	}
	if err := stranger.Start(t.Context(), hypervisor.Ref{Namespace: "default", Name: "sim-0"}); err == nil {
		t.Error("a wrong token started a machine")
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the process ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the process does not end")
	}
}

func TestFlagsThatAreWrong(t *testing.T) {
	t.Parallel()
	f := newFiles(t, "secret")
	none := newFiles(t, "\n")
	many := newFiles(t, "one two three")
	complete := func(f files) []string {
		return []string{"--listen=localhost:0", "--tls-cert-file=" + f.cert, "--tls-key-file=" + f.key, "--token-file=" + f.token}
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing":            {nil, "are needed"},
		"unknown hypervisor": {append(complete(f), "--hypervisor=vmware"), `"vmware" is none of memory`},
		"no tokens":          {complete(none), "has none"},
		"too many words":     {complete(many), "more than a name and a token"},
		"no token file":      {append(complete(f), "--token-file=/does/not/exist"), "read tokens"},
		"no certificate":     {append(complete(f), "--tls-cert-file=/does/not/exist"), "/does/not/exist"},
		"no port":            {append(complete(f), "--listen=localhost:99999"), "99999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want it to say %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "three") {
				t.Errorf("the error repeats a token: %v", err)
			}
		})
	}
}
