// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
)

const (
	accountsPath = "/redfish/v1/AccountService/Accounts"
	rolesPath    = "/redfish/v1/AccountService/Roles"
)

// memberIDs returns the links of a collection's members.
func (a answer) memberIDs() []string {
	members, _ := a.body["Members"].([]any)
	var ids []string
	for _, m := range members {
		link, _ := m.(map[string]any)
		id, _ := link["@odata.id"].(string)
		ids = append(ids, id)
	}
	return ids
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const odd = "a/b c?#%41"
	b.entry.Accounts = append(b.entry.Accounts, &registryv1.Account{
		Username: odd, Password: "odd password", Role: registryv1.Role_ROLE_READ_ONLY,
		Protocols: []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH},
	})
	b.apply()
	oddPath := accountsPath + "/" + url.PathEscape(odd)
	for _, tc := range []struct {
		user, pass string
		members    []string
		others     int // the status of another's account
	}{
		// Who may use IPMI alone is not there.
		{admin, password, []string{accountsPath + "/admin", accountsPath + "/operator", accountsPath + "/reader", oddPath}, http.StatusOK},
		{"operator", "operator password", []string{accountsPath + "/operator"}, http.StatusForbidden},
		{"reader", "reader password", []string{accountsPath + "/reader"}, http.StatusForbidden},
		{odd, "odd password", []string{oddPath}, http.StatusForbidden},
	} {
		a := b.do(request{path: accountsPath, user: tc.user, pass: tc.pass})
		if d := cmp.Diff(tc.members, a.memberIDs()); d != "" {
			t.Errorf("accounts that %s sees (-want +got):\n%s", tc.user, d)
		}
		for _, path := range tc.members {
			if a := b.do(request{path: path, user: tc.user, pass: tc.pass}); a.status != http.StatusOK {
				t.Errorf("GET %s as %s = %d", path, tc.user, a.status)
			}
		}
		path := accountsPath + "/reader"
		if tc.user == "reader" {
			path = accountsPath + "/" + admin
		}
		if a := b.do(request{path: path, user: tc.user, pass: tc.pass}); a.status != tc.others {
			t.Errorf("GET %s as %s = %d, want %d", path, tc.user, a.status, tc.others)
		}
	}
	for path, want := range map[string]map[string]any{
		accountsPath + "/reader": {"Id": "reader", "UserName": "reader", "Password": nil, "RoleId": "ReadOnly", "AccountTypes": []any{"Redfish", "IPMI"}, "Enabled": true},
		oddPath:                  {"Id": odd, "UserName": odd, "Password": nil, "RoleId": "ReadOnly", "AccountTypes": []any{"Redfish"}, "Enabled": true},
	} {
		a := b.get(path)
		for name, value := range want {
			if d := cmp.Diff(value, a.at(name)); d != "" {
				t.Errorf("%s of %s (-want +got):\n%s", name, path, d)
			}
		}
		if b.get(path).at("Links", "Role", "@odata.id") != rolesPath+"/ReadOnly" {
			t.Errorf("%s has links %v", path, a.at("Links"))
		}
	}
	for _, path := range []string{accountsPath + "/nobody", accountsPath + "/ipmi-only", rolesPath + "/Root"} {
		if a := b.get(path); a.status != http.StatusNotFound {
			t.Errorf("GET %s = %d", path, a.status)
		}
	}
	if a := b.do(request{method: "PATCH", path: rolesPath + "/ReadOnly", body: `{"AssignedPrivileges":["Login"]}`}); a.status != http.StatusMethodNotAllowed {
		t.Errorf("PATCH of a role = %d", a.status)
	}
}

// The BMC's own account comes from its Secret: there is always one to log in with.
func TestAccounts_theBMCsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	path := accountsPath + "/admin"
	if a := b.get(path); a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
		t.Errorf("Allow %q", a.header.Get("Allow"))
	}
	a := b.do(request{method: "PATCH", path: path, body: `{"Password":"long enough"}`})
	if d := cmp.Diff([]string{"PropertyNotWritable"}, a.messageIDs()); d != "" || a.status != http.StatusBadRequest {
		t.Errorf("PATCH = %d (-want +got):\n%s", a.status, d)
	}
	if text, _ := a.at("error", "message").(string); !strings.Contains(text, "Secret") {
		t.Errorf("PATCH says %q", text)
	}
	if a := b.do(request{method: "DELETE", path: path}); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
		t.Errorf("DELETE = %d, Allow %q", a.status, a.header.Get("Allow"))
	}
}

func TestAccounts_lifeCycle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	path := accountsPath + "/web"
	status := func(user, pass, path string) int {
		t.Helper()
		return b.do(request{path: path, user: user, pass: pass}).status
	}
	create := request{method: "POST", path: accountsPath, body: `{"UserName":"web","Password":"web password","RoleId":"Operator","Locked":false,"Vendor":1}`}
	a := b.do(create)
	if a.status != http.StatusCreated || a.header.Get("Location") != path || a.header.Get("ETag") == "" || strings.Contains(string(a.raw), "web password") {
		t.Fatalf("POST = %d %v %s", a.status, a.header, a.raw)
	}
	if a.at("RoleId") != "Operator" || a.at("Password") != nil || !strings.Contains(string(a.raw), "PropertyUnknown") {
		t.Errorf("created %s", a.raw)
	}
	// It counts as soon as the answer is there.
	if got := status("web", "web password", systemPath); got != http.StatusOK {
		t.Errorf("login = %d", got)
	}
	again := b.do(create)
	if d := cmp.Diff([]string{"ResourceAlreadyExists"}, again.messageIDs()); d != "" || again.status != http.StatusConflict {
		t.Errorf("POST again = %d (-want +got):\n%s", again.status, d)
	}
	if a := b.get(path); a.at("Enabled") != true || a.header.Get("Allow") != "DELETE, GET, HEAD, OPTIONS, PATCH" {
		t.Errorf("GET = %s, Allow %q", a.raw, a.header.Get("Allow"))
	}

	// One's own password, and nothing else without the privilege.
	own := func(body string) answer {
		t.Helper()
		return b.do(request{method: "PATCH", path: path, user: "web", pass: "web password", body: body})
	}
	for _, body := range []string{`{"RoleId":"Administrator"}`, `{"Password":"another password","RoleId":"Administrator"}`, `{"Enabled":true}`} {
		if a := own(body); a.status != http.StatusForbidden {
			t.Errorf("PATCH %s of one's own = %d", body, a.status)
		}
	}
	session := b.do(request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"web","Password":"web password"}`})
	if a := own(`{"Password":"another password"}`); a.status != http.StatusOK {
		t.Fatalf("PATCH of one's own password = %d %s", a.status, a.raw)
	}
	if got := status("web", "web password", systemPath); got != http.StatusUnauthorized {
		t.Errorf("login with the former password = %d", got)
	}
	if a := b.do(request{path: systemPath, token: session.header.Get("X-Auth-Token")}); a.status != http.StatusUnauthorized {
		t.Errorf("the session of the former password is good for %d", a.status)
	}
	if a := b.do(request{method: "PATCH", path: path, user: "reader", pass: "reader password", body: `{"Password":"another password"}`}); a.status != http.StatusForbidden {
		t.Errorf("PATCH of another's password = %d", a.status)
	}

	// Role, Enabled.
	tag := b.get(path).header.Get("ETag")
	if a := b.do(request{method: "PATCH", path: path, body: `{"RoleId":"ReadOnly"}`, header: http.Header{"If-Match": {tag}}}); a.at("RoleId") != "ReadOnly" || a.header.Get("ETag") == tag {
		t.Errorf("PATCH of the role = %d %s", a.status, a.raw)
	}
	for _, method := range []string{"PATCH", "DELETE"} {
		if a := b.do(request{method: method, path: path, body: `{"Enabled":false}`, header: http.Header{"If-Match": {tag}}}); a.status != http.StatusPreconditionFailed {
			t.Errorf("%s with an old ETag = %d", method, a.status)
		}
	}
	if a := b.do(request{method: "PATCH", path: path, body: `{"Enabled":false}`}); a.at("Enabled") != false {
		t.Errorf("PATCH of Enabled = %d %s", a.status, a.raw)
	}
	if got := status("web", "another password", systemPath); got != http.StatusUnauthorized {
		t.Errorf("login while disabled = %d", got)
	}
	if a := b.get(accountsPath); len(a.memberIDs()) != 4 {
		t.Errorf("a disabled account is not listed: %v", a.memberIDs())
	}
	if a := b.do(request{method: "PATCH", path: path, body: `{"Enabled":true}`}); a.at("Enabled") != true {
		t.Errorf("PATCH of Enabled = %d %s", a.status, a.raw)
	}
	if got := status("web", "another password", systemPath); got != http.StatusOK {
		t.Errorf("login when enabled again = %d", got)
	}
	if a := b.do(request{method: "DELETE", path: path}); a.status != http.StatusNoContent {
		t.Errorf("DELETE = %d %s", a.status, a.raw)
	}
	if got := status("web", "another password", systemPath); got != http.StatusUnauthorized {
		t.Errorf("login after DELETE = %d", got)
	}
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		if a := b.do(request{method: method, path: path, body: `{"Enabled":true}`}); a.status != http.StatusNotFound {
			t.Errorf("%s after DELETE = %d", method, a.status)
		}
	}
}

func TestAccounts_passwordChangeRequired(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.do(request{method: "POST", path: accountsPath, body: `{"UserName":"new","Password":"first password","RoleId":"Administrator","PasswordChangeRequired":true}`})
	if a.status != http.StatusCreated || a.at("PasswordChangeRequired") != true {
		t.Fatalf("POST = %d %s", a.status, a.raw)
	}
	path := accountsPath + "/new"
	session := b.do(request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"new","Password":"first password"}`})
	if session.status != http.StatusCreated || !strings.Contains(string(session.raw), "PasswordChangeRequired") || !strings.Contains(string(session.raw), path) {
		t.Fatalf("login = %d %s", session.status, session.raw)
	}
	if s := schemas(); s != nil {
		s.check(t, "session", session.raw, locationOf("#Session.v1_8_0.Session"))
	}
	for _, r := range []request{
		{path: systemPath},
		{path: accountsPath},
		{path: accountsPath + "/admin"},
		{path: "/redfish/v1/?$expand=."},
		{method: "POST", path: resetPath, body: `{"ResetType":"ForceOff"}`},
		{method: "DELETE", path: path},
		{method: "PATCH", path: path, body: `{"PasswordChangeRequired":false}`},
	} {
		for _, token := range []string{"", session.header.Get("X-Auth-Token")} {
			r.user, r.pass, r.token = "new", "first password", token
			a := b.do(r)
			if strings.Contains(r.path, "expand") {
				if a.status == http.StatusOK && strings.Contains(string(a.raw), "SerialNumber") {
					t.Errorf("an expanded root tells of the system: %s", a.raw)
				}
				continue
			}
			if a.status != http.StatusForbidden {
				t.Errorf("%s %s = %d", r.method, r.path, a.status)
			}
		}
	}
	token := session.header.Get("X-Auth-Token")
	if a := b.do(request{path: path, token: token}); a.status != http.StatusOK {
		t.Errorf("GET of the own account = %d", a.status)
	}
	if a := b.do(request{method: "PATCH", path: path, token: token, body: `{"Password":"second password"}`}); a.status != http.StatusOK || a.at("PasswordChangeRequired") != false {
		t.Errorf("PATCH of the password = %d %s", a.status, a.raw)
	}
	if a := b.do(request{path: systemPath, user: "new", pass: "second password"}); a.status != http.StatusOK {
		t.Errorf("with the new password = %d", a.status)
	}
}

func TestAccounts_refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.do(request{method: "POST", path: accountsPath, body: `{"UserName":"web","Password":"web password","RoleId":"Operator"}`})
	const path = accountsPath + "/web"
	for name, tc := range map[string]struct {
		request request
		status  int
		ids     []string
	}{
		"nothing":                        {request{method: "POST", path: accountsPath}, 400, []string{"MalformedJSON"}},
		"an empty object":                {request{method: "POST", path: accountsPath, body: `{}`}, 400, []string{"EmptyJSON"}},
		"a name alone":                   {request{method: "POST", path: accountsPath, body: `{"UserName":"x"}`}, 400, []string{"PropertyMissing", "PropertyMissing"}},
		"a short password":               {request{method: "POST", path: accountsPath, body: `{"UserName":"x","Password":"1234567","RoleId":"Operator"}`}, 400, []string{"PropertyValueFormatError"}},
		"an unknown role":                {request{method: "POST", path: accountsPath, body: `{"UserName":"x","Password":"12345678","RoleId":"Root"}`}, 400, []string{"PropertyValueNotInList"}},
		"a name of another type":         {request{method: "POST", path: accountsPath, body: `{"UserName":1,"Password":"12345678","RoleId":"Operator"}`}, 400, []string{"PropertyValueTypeError"}},
		"an account that is locked":      {request{method: "POST", path: accountsPath, body: `{"UserName":"x","Password":"12345678","RoleId":"Operator","Locked":true}`}, 400, []string{"PropertyValueNotInList"}},
		"types that it does not get":     {request{method: "POST", path: accountsPath, body: `{"UserName":"x","Password":"12345678","RoleId":"Operator","AccountTypes":["Redfish"]}`}, 400, []string{"PropertyValueConflict"}},
		"the name of the BMC's own":      {request{method: "POST", path: accountsPath, body: `{"UserName":"admin","Password":"12345678","RoleId":"Operator"}`}, 409, []string{"ResourceAlreadyExists"}},
		"by an operator":                 {request{method: "POST", path: accountsPath, user: "operator", pass: "operator password", body: `{}`}, 403, []string{"InsufficientPrivilege"}},
		"another name":                   {request{method: "PATCH", path: path, body: `{"UserName":"x"}`}, 400, []string{"PropertyNotWritable"}},
		"unknown properties alone":       {request{method: "PATCH", path: path, body: `{"x":1}`}, 400, []string{"PropertyUnknown"}},
		"a password of another type":     {request{method: "PATCH", path: path, body: `{"Password":12345678}`}, 400, []string{"PropertyValueTypeError"}},
		"enabled with text":              {request{method: "PATCH", path: path, body: `{"Enabled":"true"}`}, 400, []string{"PropertyValueTypeError"}},
		"an annotation alone":            {request{method: "PATCH", path: path, body: `{"@odata.id":"/x"}`}, 400, []string{"NoOperation"}},
		"a POST to an account":           {request{method: "POST", path: path, body: `{}`}, 405, []string{"OperationNotAllowed"}},
		"DELETE by an operator":          {request{method: "DELETE", path: path, user: "operator", pass: "operator password"}, 403, []string{"InsufficientPrivilege"}},
		"settings of the lockout":        {request{method: "PATCH", path: "/redfish/v1/AccountService", body: `{"AccountLockoutThreshold":3}`}, 405, []string{"OperationNotAllowed"}},
		"an IPMI user's own account":     {request{method: "PATCH", path: accountsPath + "/ipmi-only", body: `{"Enabled":false}`}, 404, []string{"ResourceMissingAtURI"}},
		"a change with a wrong If-Match": {request{method: "PATCH", path: path, body: `{"Enabled":true}`, header: http.Header{"If-Match": {`"0"`}}}, 412, []string{"PreconditionFailed"}},
	} {
		a := b.do(tc.request)
		if d := cmp.Diff(tc.ids, a.messageIDs()); d != "" || a.status != tc.status {
			t.Errorf("%s = %d, want %d (-want +got):\n%s", name, a.status, tc.status, d)
		}
		if strings.Contains(string(a.raw), "1234567") {
			t.Errorf("%s: the answer repeats the password: %s", name, a.raw)
		}
	}
	for i := range fakebackend.MaxAccounts {
		a := b.do(request{method: "POST", path: accountsPath, body: fmt.Sprintf(`{"UserName":"user-%d","Password":"12345678","RoleId":"Operator"}`, i)})
		if i == fakebackend.MaxAccounts-1 {
			if d := cmp.Diff([]string{"CreateLimitReachedForResource"}, a.messageIDs()); d != "" || a.status != http.StatusBadRequest {
				t.Errorf("one account too many = %d (-want +got):\n%s", a.status, d)
			}
		} else if a.status != http.StatusCreated {
			t.Errorf("account %d = %d", i, a.status)
		}
	}
}

// Who failed too often can be let in again, by whoever may change the account.
func TestAccounts_unlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.do(request{method: "POST", path: accountsPath, body: `{"UserName":"web","Password":"web password","RoleId":"Operator"}`})
	for range account.FreeFailures + 3 {
		b.do(request{path: systemPath, user: "web", pass: "wrong"})
	}
	if a := b.do(request{path: systemPath, user: "web", pass: "web password"}); a.status != http.StatusServiceUnavailable {
		t.Fatalf("after too many failures = %d", a.status)
	}
	if a := b.do(request{method: "PATCH", path: accountsPath + "/web", body: `{"Locked":false}`}); a.status != http.StatusOK || a.at("Locked") != false {
		t.Errorf("PATCH = %d %s", a.status, a.raw)
	}
	if a := b.do(request{path: systemPath, user: "web", pass: "web password"}); a.status != http.StatusOK {
		t.Errorf("after PATCH of Locked = %d", a.status)
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for role, want := range map[string][]any{
		"Administrator": {"Login", "ConfigureSelf", "ConfigureComponents", "ConfigureUsers", "ConfigureManager"},
		"Operator":      {"Login", "ConfigureSelf", "ConfigureComponents"},
		"ReadOnly":      {"Login", "ConfigureSelf"},
	} {
		a := b.do(request{path: rolesPath + "/" + role, user: "reader", pass: "reader password"})
		if d := cmp.Diff(any(want), a.at("AssignedPrivileges")); d != "" || a.at("IsPredefined") != true {
			t.Errorf("privileges of %s (-want +got):\n%s", role, d)
		}
	}
}
