// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/listener"
)

// direct is a server whose handler is called without a network in between.
type direct struct {
	server *Server
	conn   net.Conn
}

func newDirect(f *testing.F) *direct {
	f.Helper()
	fake := fakebackend.New()
	grpcConn := fake.Serve(f)
	s, err := New(Config{Backend: backend.New(grpcConn, grpcConn, grpcConn, grpcConn), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	e := newEndpoint(&referencev1.BMCReference{Namespace: "lab", Name: "bmc-1"})
	e.state.Store(&state{uuid: bmcUUID, accounts: account.NewSet([]*registryv1.Account{account1(admin, password, registryv1.Role_ROLE_ADMINISTRATOR)})})
	fake.OnAccounts(func(created []*registryv1.Account) {
		own := account1(admin, password, registryv1.Role_ROLE_ADMINISTRATOR)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.replace(&state{uuid: bmcUUID, accounts: account.NewSet(append(created, own))})
	})
	pipe, other := net.Pipe()
	f.Cleanup(func() { pipe.Close(); other.Close() })
	return &direct{server: s, conn: listener.Adopt(&e.owner, pipe)}
}

// do answers a request and checks what holds for every answer.
func (d *direct) do(t *testing.T, method, rawPath, query, contentType, body string, header http.Header) {
	t.Helper()
	r := &http.Request{
		Method: method, URL: &url.URL{Path: rawPath, RawQuery: query}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, RemoteAddr: "192.0.2.1:1234", RequestURI: rawPath,
	}
	if body != "" {
		r.Body = struct {
			*strings.Reader
			nopCloser
		}{strings.NewReader(body), nopCloser{}}
		r.ContentLength = int64(len(body))
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if r.Header.Get("X-Auth-Token") == "" && r.Header.Get("Authorization") == "" {
		r.SetBasicAuth(admin, password)
	}
	d.server.backoff = account.NewBackoff() // Else a failed login would keep all that follows from being tried.
	w := httptest.NewRecorder()
	d.server.serveHTTP(w, r.WithContext(context.WithValue(t.Context(), connKey{}, d.conn)))
	if w.Code >= 500 && w.Code != http.StatusNotImplemented && w.Code != http.StatusServiceUnavailable {
		t.Errorf("%s %q %q = %d %s", method, rawPath, body, w.Code, w.Body)
	}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && method != http.MethodHead && !json.Valid(w.Body.Bytes()) {
		t.Errorf("%s %q: the answer is no JSON: %q", method, rawPath, w.Body)
	}
	if w.Code >= 300 && w.Code < 400 {
		t.Errorf("%s %q = redirect %d to %q", method, rawPath, w.Code, w.Header().Get("Location"))
	}
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

func FuzzBody(f *testing.F) {
	d := newDirect(f)
	for _, body := range []string{
		`{"ResetType":"On"}`, `{"ResetType":["On"]}`, `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`,
		`{"Boot":{"BootSourceOverrideEnabled":"Once"}}`, `{"Boot":{"a/b~c":1}}`, `{"UserName":"admin","Password":"correct horse"}`,
		`{"UserName":"\u0000","Password":""}`, `{}`, `[]`, `null`, `"x"`, `{"Boot":`, `{"a":{"a":{"a":[[[[]]]]}}}`, "\xff\xfe", `{"ResetType":"\xff"}`,
	} {
		f.Add(body, "application/json")
	}
	for _, body := range []string{
		`{"UserName":"web","Password":"web password","RoleId":"Operator","Enabled":false,"AccountTypes":["IPMI","Redfish"]}`,
		`{"Password":"12345678","RoleId":"ReadOnly","Locked":false,"PasswordChangeRequired":true,"Enabled":true}`,
		`{"AccountTypes":[null],"Locked":1}`, `{"Boot":{"BootOrder":["cdrom","root"]}}`, `{"Boot":{"BootOrder":[1,null]}}`,
		`{"Attributes":{"BootMode":"UEFI","SecureBoot":"Enabled"},"@Redfish.SettingsApplyTime":{"ApplyTime":"OnReset"}}`,
	} {
		f.Add(body, "application/json; charset=utf-8")
	}
	f.Add("x", "text/plain; charset=\"")
	f.Fuzz(func(t *testing.T, body, contentType string) {
		for _, target := range [...]struct{ method, path string }{
			{http.MethodPatch, systemPath},
			{http.MethodPost, resetPath},
			{http.MethodPost, "/redfish/v1/Managers/BMC/Actions/Manager.Reset"},
			{http.MethodPost, sessionPath},
			{http.MethodPost, accountsPath},
			{http.MethodPatch, accountsPath + "/web"},
			{http.MethodPatch, accountsPath + "/" + admin},
			{http.MethodPatch, biosPath + "/Settings"},
			{http.MethodPost, logPath + "/Actions/LogService.ClearLog"},
		} {
			d.do(t, target.method, target.path, "", contentType, body, nil)
		}
	})
}

func FuzzRequest(f *testing.F) {
	d := newDirect(f)
	for _, path := range []string{
		"/redfish", "/redfish/v1/", "/redfish/v1/$metadata", systemPath + "/EthernetInterfaces/default", sessionPath + "/x", "*", "", "//", "/..", "/redfish/v1/%00",
		systemPath + "/Processors/{id}", "/redfish/v1/Systems/1/\xff",
	} {
		f.Add("GET", path, "", "If-Match", `"x"`)
	}
	f.Add("PATCH", systemPath, "$expand=*", "X-Auth-Token", "x")
	f.Add("GET", systemPath, "%zz&;", "Accept", "text/html;q=0.")
	f.Add("OPTIONS", "*", "", "Authorization", "Basic !")
	f.Add("DELETE", sessionPath+"/x", "only", "OData-Version", "4.0")
	f.Fuzz(func(t *testing.T, method, path, query, header, value string) {
		d.do(t, method, path, query, "", "", http.Header{http.CanonicalHeaderKey(header): {value}})
	})
}
