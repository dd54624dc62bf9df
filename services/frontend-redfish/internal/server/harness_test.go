// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/testport"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
)

const (
	admin    = "admin"
	password = "correct horse"
	bmcUUID  = "11111111-2222-4333-8444-555555555555"
)

// bench is a server with one BMC and a fake backend.
type bench struct {
	t       testing.TB
	server  *Server
	backend *fakebackend.Backend
	entry   *registryv1.BMC
	log     *safeBuffer
	client  *http.Client
	// base is the BMC's HTTPS address, as https://127.0.0.1:1234.
	base string
}

// newBench starts a server.
func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, backend: fakebackend.New(), log: &safeBuffer{}}
	conn := b.backend.Serve(t)
	b.server = startServer(t, Config{
		Listen: "127.0.0.1", Backend: backend.New(conn, conn, conn, conn), Version: "v1.2.3",
		Log: slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	chain, key := selfSigned(t, "bmc-1")
	b.entry = &registryv1.BMC{
		Bmc:  &referencev1.BMCReference{Namespace: "lab", Name: "bmc-1"},
		Uuid: bmcUUID,
		Accounts: []*registryv1.Account{
			account1(admin, password, registryv1.Role_ROLE_ADMINISTRATOR),
			account1("operator", "operator password", registryv1.Role_ROLE_OPERATOR),
			account1("reader", "reader password", registryv1.Role_ROLE_READ_ONLY),
			{
				Username: "ipmi-only", Password: "ipmi password", Role: registryv1.Role_ROLE_ADMINISTRATOR,
				Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI},
			},
		},
		Ipmi: &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: 20623, ClientPort: 623}},
		Redfish: &registryv1.RedfishEndpoint{
			Https:       &registryv1.Listener{Port: freePort(t)},
			Certificate: &registryv1.Certificate{ChainPem: chain, PrivateKeyPem: key},
		},
	}
	b.apply()
	own := b.entry.GetAccounts()
	b.backend.OnAccounts(func(created []*registryv1.Account) {
		entry := proto.CloneOf(b.entry)
		entry.Accounts = slices.Concat(own, created)
		b.server.Apply(context.Background(), entry)
	})
	b.base = "https://127.0.0.1:" + strconv.Itoa(int(b.entry.GetRedfish().GetHttps().GetPort()))
	b.client = newClient(t)
	return b
}

func account1(name, pass string, role registryv1.Role) *registryv1.Account {
	return &registryv1.Account{
		Username: name, Password: pass, Role: role,
		Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH},
	}
}

func startServer(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func newClient(t testing.TB) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// apply gives the server the bench's registry entry.
func (b *bench) apply() {
	b.t.Helper()
	if err := b.server.Apply(b.t.Context(), b.entry); err != nil {
		b.t.Fatalf("Apply: %v", err)
	}
}

// answer is an HTTP response, read.
type answer struct {
	status int
	header http.Header
	raw    []byte
	body   map[string]any
}

// request is how do asks; the zero value is an administrator's GET.
type request struct {
	method, path string
	body         string
	user, pass   string
	token        string
	anonymous    bool
	header       http.Header
}

func (b *bench) do(r request) answer {
	b.t.Helper()
	if r.method == "" {
		r.method = http.MethodGet
	}
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), r.method, b.base+r.path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	switch {
	case r.anonymous:
	case r.token != "":
		req.Header.Set("X-Auth-Token", r.token)
	case r.user != "":
		req.SetBasicAuth(r.user, r.pass)
	default:
		req.SetBasicAuth(admin, password)
	}
	for name, values := range r.header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	response, err := b.client.Do(req)
	if err != nil {
		b.t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer response.Body.Close()
	a := answer{status: response.StatusCode, header: response.Header}
	if a.raw, err = io.ReadAll(response.Body); err != nil {
		b.t.Fatal(err)
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") && r.method != http.MethodHead {
		if err := json.Unmarshal(a.raw, &a.body); err != nil {
			b.t.Fatalf("%s %s: body %q: %v", r.method, r.path, a.raw, err)
		}
	}
	return a
}

func (b *bench) get(path string) answer { b.t.Helper(); return b.do(request{path: path}) }

// messageIDs returns the message keys of an error answer, without the registry.
func (a answer) messageIDs() []string {
	var ids []string
	failure, _ := a.body["error"].(map[string]any)
	infos, _ := failure["@Message.ExtendedInfo"].([]any)
	for _, info := range infos {
		m, _ := info.(map[string]any)
		id, _ := m["MessageId"].(string)
		ids = append(ids, strings.TrimPrefix(id, "Base.1.22."))
	}
	return ids
}

// at returns a value inside the body.
func (a answer) at(names ...string) any {
	var v any = a.body
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// freePort returns a TCP port that is free.
func freePort(t testing.TB) uint32 {
	t.Helper()
	return uint32(testport.Free(t))
}

// selfSigned returns a certificate and its key as PEM.
func selfSigned(t testing.TB, name string) (chain, key []byte) {
	t.Helper()
	return selfSignedUntil(t, name, time.Now().Add(time.Hour))
}

// selfSignedUntil returns one that expires at a time.
func selfSignedUntil(t testing.TB, name string, expires time.Time) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: expires, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// safeBuffer is a buffer for a log that several goroutines write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// dialTLS opens a connection to the BMC's HTTPS port.
func (b *bench) dialTLS() *tls.Conn {
	b.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(b.base, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		b.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}
