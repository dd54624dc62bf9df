// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/listener"
)

func TestApply_changedCredentialsCountAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	logIn := func(user, pass string) string {
		return b.do(request{method: "POST", path: sessionPath, anonymous: true, body: fmt.Sprintf(`{"UserName":%q,"Password":%q}`, user, pass)}).header.Get("X-Auth-Token")
	}
	adminToken, operatorToken, readerToken := logIn(admin, password), logIn("operator", "operator password"), logIn("reader", "reader password")

	b.entry = proto.CloneOf(b.entry)
	b.entry.Accounts[0].Password = "changed"
	b.entry.Accounts[1].Role = registryv1.Role_ROLE_READ_ONLY
	b.apply()

	for name, tc := range map[string]struct {
		request request
		status  int
	}{
		"the old password":                     {request{user: admin, pass: password}, 401},
		"the new password":                     {request{user: admin, pass: "changed"}, 200},
		"a session of the old password":        {request{token: adminToken}, 401},
		"a session of the old role":            {request{token: operatorToken}, 401},
		"a session of an account that is kept": {request{token: readerToken}, 200},
	} {
		tc.request.path = systemPath
		if a := b.do(tc.request); a.status != tc.status {
			t.Errorf("%s: status = %d, want %d", name, a.status, tc.status)
		}
	}
}

func TestApply_keepsOpenPortsOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := b.dialTLS()
	defer conn.Close()
	reader := bufio.NewReader(conn)
	ask := func() int {
		t.Helper()
		if _, err := io.WriteString(conn, "GET /redfish/v1 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatalf("write: %v", err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	e := b.server.bmcs[keyOf(b.entry.GetBmc())]
	before := e.https.open
	if got := ask(); got != 200 {
		t.Errorf("before: %d", got)
	}
	b.entry = proto.CloneOf(b.entry)
	b.entry.Accounts[0].Password = "changed"
	b.apply()
	if got := ask(); got != 200 {
		t.Errorf("after: %d", got)
	}
	if e.https.open != before {
		t.Error("the same port was opened again")
	}
}

func TestApply_movesPortsAndServesPlainHTTPWhereAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := b.base
	b.entry = proto.CloneOf(b.entry)
	b.entry.Redfish.Https.Port = freePort(t)
	b.entry.Redfish.Http = &registryv1.Listener{Port: freePort(t)}
	b.apply()
	for _, base := range []string{
		"https://127.0.0.1:" + strconv.Itoa(int(b.entry.Redfish.Https.Port)), "http://127.0.0.1:" + strconv.Itoa(int(b.entry.Redfish.Http.Port)),
	} {
		b.base = base
		if a := b.get(systemPath); a.status != http.StatusOK {
			t.Errorf("GET at %s = %d", base, a.status)
		}
	}
	if conn, err := net.DialTimeout("tcp", strings.TrimPrefix(old, "https://"), time.Second); err == nil {
		conn.Close()
		t.Error("the old port is still open")
	}
	b.entry = proto.CloneOf(b.entry)
	b.entry.Redfish.Http = nil
	plain := b.base
	b.apply()
	if conn, err := net.DialTimeout("tcp", strings.TrimPrefix(plain, "http://"), time.Second); err == nil {
		conn.Close()
		t.Error("plain HTTP is still open")
	}
}

func TestApply_whatCannotBeServed(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, tc := range map[string]struct {
		change func(*registryv1.BMC)
		want   string
	}{
		"a port that is taken": {func(e *registryv1.BMC) { e.Redfish.Https.Port = uint32(taken.Addr().(*net.TCPAddr).Port) }, "address already in use"},
		"a broken certificate": {func(e *registryv1.BMC) { e.Redfish.Certificate.PrivateKeyPem = []byte("x") }, "read the BMC's certificate"},
		"no certificate": {func(e *registryv1.BMC) {
			e.Bmc, e.Redfish.Certificate = &referencev1.BMCReference{Namespace: "lab", Name: "another"}, nil
		}, "no certificate"},
		"no Redfish":        {func(e *registryv1.BMC) { e.Redfish = nil }, "no port"},
		"no account":        {func(e *registryv1.BMC) { e.Accounts = e.Accounts[3:] }, "no account"},
		"an empty password": {func(e *registryv1.BMC) { e.Accounts = e.Accounts[:1]; e.Accounts[0].Password = "" }, "no account"},
	} {
		b := newBench(t)
		entry := proto.CloneOf(b.entry)
		tc.change(entry)
		err := b.server.Apply(t.Context(), entry)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want one with %q", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%s: the error has the password", name)
		}
		if err := b.server.Apply(t.Context(), b.entry); err != nil {
			t.Errorf("%s: the right entry afterwards: %v", name, err)
		}
		if a := b.get(systemPath); a.status != http.StatusOK {
			t.Errorf("%s: GET with the right entry afterwards = %d", name, a.status)
		}
	}
}

func TestApply_aBrokenCertificateLeavesTheOneBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	entry := proto.CloneOf(b.entry)
	entry.Accounts[0].Password = "changed"
	entry.Redfish.Certificate.ChainPem = nil
	if err := b.server.Apply(t.Context(), entry); err == nil {
		t.Error("a broken certificate is no error")
	}
	if a := b.do(request{path: systemPath, user: admin, pass: "changed"}); a.status != http.StatusOK {
		t.Errorf("GET = %d: credentials count whatever the certificate", a.status)
	}
}

// A registry that has no certificate for a BMC for a while, as with a controller that
// can't read its CA, takes none away that is valid.
func TestApply_withoutCertificateKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	without := proto.CloneOf(b.entry)
	without.Redfish.Certificate = nil
	if err := b.server.Apply(t.Context(), without); err != nil {
		t.Errorf("an entry without a certificate: %v", err)
	}
	if a := b.get(systemPath); a.status != http.StatusOK {
		t.Errorf("GET with the certificate before = %d", a.status)
	}
	expired := proto.CloneOf(b.entry)
	expired.Redfish.Certificate.ChainPem, expired.Redfish.Certificate.PrivateKeyPem = selfSignedUntil(t, "expired", time.Now().Add(-time.Minute))
	if err := b.server.Apply(t.Context(), expired); err != nil {
		t.Errorf("an entry with an expired certificate: %v", err)
	}
	if err := b.server.Apply(t.Context(), without); err == nil {
		t.Error("a certificate that has expired is served on")
	}
	b.apply()
	if a := b.get(systemPath); a.status != http.StatusOK {
		t.Errorf("GET with a certificate again = %d", a.status)
	}
	off := proto.CloneOf(without)
	off.Redfish.Https, off.Redfish.Http = nil, &registryv1.Listener{Port: freePort(t)}
	if err := b.server.Apply(t.Context(), off); err != nil {
		t.Errorf("an entry without HTTPS: %v", err)
	}
	if err := b.server.Apply(t.Context(), without); err == nil {
		t.Error("the certificate outlives HTTPS")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	address := strings.TrimPrefix(b.base, "https://")
	names := func(cfg *tls.Config) (string, error) {
		cfg.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", address, cfg)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
	}
	if _, err := names(&tls.Config{MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is served")
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		if got, err := names(&tls.Config{MinVersion: version, MaxVersion: version}); err != nil || got != "bmc-1" {
			t.Errorf("%s: certificate of %q, error %v", tls.VersionName(version), got, err)
		}
	}
	b.entry = proto.CloneOf(b.entry)
	b.entry.Redfish.Certificate.ChainPem, b.entry.Redfish.Certificate.PrivateKeyPem = selfSigned(t, "rotated")
	b.apply()
	if got, err := names(&tls.Config{}); err != nil || got != "rotated" {
		t.Errorf("after rotation: certificate of %q, error %v", got, err)
	}
	// The certificate is checked as clients do it.
	pool := x509.NewCertPool()
	block, _ := pem.Decode(b.entry.Redfish.Certificate.ChainPem)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(leaf)
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool})
	if err != nil {
		t.Errorf("verify the certificate: %v", err)
	} else {
		conn.Close()
	}
}

func TestTLS_theFrontendsOwnCertificate(t *testing.T) {
	t.Parallel()
	conn := fakebackend.New().Serve(t)
	chain, key := selfSigned(t, "shared")
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, Config{
		Listen: "127.0.0.1", Backend: backend.New(conn, conn, conn, conn), Log: slog.New(slog.DiscardHandler),
		Certificate: func() (*tls.Certificate, error) { return &pair, nil },
	})
	port := freePort(t)
	err = s.Apply(t.Context(), &registryv1.BMC{
		Bmc: &referencev1.BMCReference{Namespace: "lab", Name: "x"}, Accounts: []*registryv1.Account{account1(admin, password, registryv1.Role_ROLE_OPERATOR)},
		Redfish: &registryv1.RedfishEndpoint{Https: &registryv1.Listener{Port: port}},
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got := client.ConnectionState().PeerCertificates[0].Subject.CommonName; got != "shared" {
		t.Errorf("certificate of %q", got)
	}
}

func TestRemove_closesPortsAndConnections(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := b.dialTLS()
	defer conn.Close()
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	b.server.Remove(b.entry.GetBmc())
	b.server.Remove(b.entry.GetBmc())
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("an idle connection lives on: %v", err)
	}
	if c, err := net.DialTimeout("tcp", strings.TrimPrefix(b.base, "https://"), time.Second); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
}

// When another replica takes over, what this one has begun is still answered.
func TestRemove_answersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hold := b.backend.HoldTransitions()
	conn := b.dialTLS()
	defer conn.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.base+resetPath, strings.NewReader(`{"ResetType":"ForceOff"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(admin, password)
	if err := request.Write(conn); err != nil {
		t.Fatal(err)
	}
	<-hold.Entered
	b.server.Remove(b.entry.GetBmc())
	close(hold.Release)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("status = %d, want 204", response.StatusCode)
	}
	if _, err := reader.ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection lives on: %v", err)
	}
}

// A client that holds connections open takes only from its own BMC, and new
// connections still get in.
func TestConnections_areBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.entry = proto.CloneOf(b.entry)
	b.entry.Redfish.Http = &registryv1.Listener{Port: freePort(t)}
	b.apply()
	address := fmt.Sprintf("127.0.0.1:%d", b.entry.Redfish.Http.Port)
	for range listener.MaxConns + 20 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET /redfish/v1 HTTP/1.1\r\nX-Slow: ")
	}
	b.base = "http://" + address
	for range 3 {
		if a := b.get(systemPath); a.status != http.StatusOK {
			t.Errorf("GET beside %d slow clients = %d", listener.MaxConns+20, a.status)
		}
	}
}

// 1,000 BMCs in one process, each with its own port and credentials.
func TestThousandBMCs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 1,000 ports")
	}
	conn := fakebackend.New().Serve(t)
	s := startServer(t, Config{Listen: "127.0.0.1", Backend: backend.New(conn, conn, conn, conn), Log: slog.New(slog.DiscardHandler)})
	const n = 1000
	ports := make([]uint32, n)
	for i := range n {
		ports[i] = freePort(t)
		err := s.Apply(t.Context(), &registryv1.BMC{
			Bmc:      &referencev1.BMCReference{Namespace: "lab", Name: fmt.Sprintf("bmc-%d", i)},
			Uuid:     fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
			Accounts: []*registryv1.Account{account1(admin, fmt.Sprintf("password-%d", i), registryv1.Role_ROLE_OPERATOR)},
			Redfish:  &registryv1.RedfishEndpoint{Http: &registryv1.Listener{Port: ports[i]}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	client := newClient(t)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	get := func(i int, path, pass string) (int, string) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", ports[i], path), nil)
		req.SetBasicAuth(admin, pass)
		response, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		raw, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(raw)
	}
	for i := range n {
		if status, raw := get(i, "/redfish/v1/Managers/BMC", fmt.Sprintf("password-%d", i)); status != 200 || !strings.Contains(raw, fmt.Sprintf("-8000-%012d", i)) {
			t.Fatalf("BMC %d = %d %s", i, status, raw)
		}
	}
	if status, _ := get(1, systemPath, "password-2"); status != 401 {
		t.Errorf("another BMC's password = %d, want 401", status)
	}
}
