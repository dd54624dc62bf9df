//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/pkg/registryclient"
	"kubevirtbmc.dev/pkg/testport"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

const (
	token = "not-a-secret"
	// readyTime is more than a controller needs to fill its caches.
	readyTime = time.Minute
)

func TestMain(m *testing.M) { os.Exit(rbactest.RunPart(m, "controller")) }

// site is what a controller needs, and what its callers do.
type site struct {
	admin         *rest.Config
	bmcs          dynamic.NamespaceableResourceInterface
	flags         []string
	address, rest string
	caFile        string
	token         func() (string, error)
}

func newSite(t *testing.T) *site {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	bmcs := bmcresourcetest.Install(t, config)
	account := rbactest.New(t, config, "controller", rbactest.Where{Own: "default"})
	authority, err := certs.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
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
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", testport.Free(t)) }
	s := &site{
		admin: config, bmcs: bmcs,
		address: address(), rest: address(), caFile: write("ca.pem", authority.PEM()),
		token: func() (string, error) { return token, nil },
	}
	s.flags = []string{
		"--listen=" + s.address,
		"--tls-cert-file=" + write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})),
		"--tls-key-file=" + write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		"--token-file=" + write("tokens", []byte("frontends "+token)),
		"--kubeconfig=" + account.Kubeconfig(), "--rest-listen=" + s.rest,
	}
	return s
}

// start runs a controller with BMCs of a source until stop is called.
func (s *site) start(t *testing.T, source Source) (stop func()) {
	t.Helper()
	flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	options := newOptions(flags)
	if err := flags.Parse(s.flags); err != nil {
		t.Fatal(err)
	}
	p := &process.Process{Log: slog.New(slog.DiscardHandler), Registry: process.NewRegistry(), Health: process.NewHealth()}
	config, err := loadConfig(options.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return s.run(t, p, func(ctx context.Context) error { return options.run(ctx, p, config, source, nil) })
}

// run runs a process until stop is called.
func (s *site) run(t *testing.T, p *process.Process, run func(context.Context) error) (stop func()) {
	t.Helper()
	ready := make(chan struct{}, 1)
	p.Health.OnChange(func(is bool) {
		if is {
			ready <- struct{}{}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the controller ended: %v", err)
	case <-time.After(readyTime):
		answer := httptest.NewRecorder()
		p.Health.Handler(p.Registry).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
		cancel()
		t.Fatalf("after %v the controller is %s", readyTime, answer.Body)
	}
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the controller ended with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the controller does not end")
		}
	}
}

// fixed is a source whose BMCs do not change.
type fixed []*registryv1.BMC

func (f fixed) Run(ctx context.Context, bmcs *registry.Registry, _ reconciler.Accounts) error {
	for _, bmc := range f {
		bmcs.Put(registry.Entry{BMC: bmc})
	}
	bmcs.Open(nil)
	return bmcs.Run(ctx)
}

func (fixed) StatusChanged(registry.Ref)   {}
func (fixed) AccountsChanged(registry.Ref) {}

func (fixed) AgentOf(context.Context, string) []registry.Ref { return nil }
func (fixed) ReplicasChanged(registryv1.Protocol)            {}

// handler passes on what a frontend is told.
type handler chan string

func (h handler) Apply(_ context.Context, bmc *registryv1.BMC) error {
	h <- "apply " + bmc.GetBmc().GetName()
	return nil
}

func (h handler) Remove(bmc *referencev1.BMCReference) { h <- "remove " + bmc.GetName() }

// TestRun: a controller as a process serves a frontend over TLS, and its
// successor with other BMCs does.
func TestRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bmc := func(name string) *registryv1.BMC {
		return &registryv1.BMC{
			Bmc:  &referencev1.BMCReference{Namespace: "lab", Name: name},
			Ipmi: &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: 20623}},
		}
	}
	stop := s.start(t, fixed{bmc("a")})

	roots, err := certs.LoadRoots(s.caFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpcclient.Dial(s.address, grpcclient.Config{Roots: roots.Pool, Token: s.token})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	told := make(handler)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- registryclient.Run(ctx, registryclient.Config{
			Conn: conn, Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: "r-0", Log: slog.New(slog.DiscardHandler),
		}, told)
	}()
	want := func(what string) {
		t.Helper()
		select {
		case got := <-told:
			if got != what {
				t.Errorf("the frontend is told %q, want %q", got, what)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the frontend is not told %q", what)
		}
	}
	want("apply a")
	s.wantState(t, conn, &tls.Config{RootCAs: roots.Pool(), MinVersion: tls.VersionTLS13})
	stop()
	stop = s.start(t, fixed{bmc("a"), bmc("b")})
	want("apply b")
	stop()
	stop = s.start(t, fixed{})
	want1, want2 := <-told, <-told
	if want1+want2 != "remove aremove b" && want1+want2 != "remove bremove a" {
		t.Errorf("without BMCs the frontend is told %q, %q", want1, want2)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop()
}

// wantState asks for the event log of a BMC that the cluster does not have.
func (s *site) wantState(t *testing.T, conn grpc.ClientConnInterface, tlsConfig *tls.Config) {
	t.Helper()
	nobody := &referencev1.BMCReference{Namespace: "default", Name: "nobody"}
	_, err := statev1.NewStateServiceClient(conn).ListEvents(t.Context(), &statev1.ListEventsRequest{Bmc: nobody})
	if grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_BMC_NOT_FOUND {
		t.Errorf("list events: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, "https://"+s.rest+"/v1/namespaces/default/bmcs/nobody/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("events over REST: %s", response.Status)
	}
}
