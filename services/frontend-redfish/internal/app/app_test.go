// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/testport"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
)

func TestOptions_Validate(t *testing.T) {
	t.Parallel()
	whole := []string{"--registry=a", "--power=b", "--media=c", "--ca-file=d", "--token-file=e"}
	for name, tc := range map[string]struct {
		args []string
		want string // empty: nothing is wrong
	}{
		"all that is needed":          {whole, ""},
		"nothing":                     {nil, "--registry is needed"},
		"no CA":                       {append(whole[:3:3], whole[4]), "--ca-file is needed"},
		"no token":                    {whole[:4], "--token-file is needed"},
		"a certificate without a key": {append(whole[:5:5], "--tls-cert-file=x"), "go together"},
	} {
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		o := newOptions(flags)
		if err := flags.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		err := o.Validate()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// The program's parts together, over TLS with a token, as in a cluster.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, tokenFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "token")
	pair := writeCertificate(t, certFile, keyFile)
	if err := os.WriteFile(tokenFile, []byte("the token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bmcPort := testport.Free(t)
	registry := fakebackend.NewRegistry(&registryv1.BMC{
		Bmc: &referencev1.BMCReference{Namespace: "lab", Name: "one"}, Uuid: "11111111-2222-4333-8444-555555555555",
		Accounts: []*registryv1.Account{{
			Username: "admin", Password: "password", Role: registryv1.Role_ROLE_OPERATOR,
			Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH},
		}},
		Redfish: &registryv1.RedfishEndpoint{Https: &registryv1.Listener{Port: uint32(bmcPort)}},
	})
	services, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(pair)),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if md, _ := metadata.FromIncomingContext(ctx); strings.Join(md.Get("authorization"), "") != "Bearer the token" {
				return nil, status.Error(codes.Unauthenticated, "no token")
			}
			return handle(ctx, req)
		}))
	fakebackend.New().Register(server)
	registryv1.RegisterRegistryServiceServer(server, registry)
	go server.Serve(services)
	t.Cleanup(server.Stop)

	flags := flag.NewFlagSet("frontend-redfish", flag.ContinueOnError)
	run := New(flags)
	target := services.Addr().String()
	if err := flags.Parse([]string{
		"--listen=127.0.0.1", "--registry=" + target, "--power=" + target, "--media=" + target, "--ca-file=" + certFile,
		"--token-file=" + tokenFile, "--tls-cert-file=" + certFile, "--tls-key-file=" + keyFile,
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	ready := make(chan struct{}, 8)
	p.Health.OnChange(func(now bool) {
		if now {
			ready <- struct{}{}
		}
	})
	done := make(chan error, 1)
	go func() { done <- run(ctx, p) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("Run ended: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("not ready after 10 s")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(bmcPort)+"/redfish/v1/Systems/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("admin", "password")
	pool := x509.NewCertPool()
	raw, _ := os.ReadFile(certFile)
	pool.AppendCertsFromPEM(raw)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), "lab/vm-1") {
		t.Errorf("GET System = %d %s", response.StatusCode, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if p.Health.Ready() {
		t.Error("ready after it ended")
	}
}

func TestRun_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	o := &Options{Registry: "a", Power: "b", Media: "c", CAFile: "/nowhere", TokenFile: "/nowhere"}
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	if err := o.Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "CA certificates") {
		t.Errorf("a CA file that is not there: %v", err)
	}
	o.CertFile, o.KeyFile = "/nowhere", "/nowhere"
	if err := o.Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "load certificate") {
		t.Errorf("a certificate that is not there: %v", err)
	}
	if err := (&Options{}).Run(t.Context(), p); err == nil {
		t.Error("no options are no error")
	}
}

// writeCertificate writes a self-signed certificate for 127.0.0.1.
func writeCertificate(t *testing.T, certFile, keyFile string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
