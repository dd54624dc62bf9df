// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
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
	// Accounts are made and changed in Kubernetes.
	for _, r := range []request{
		{method: "POST", path: accountsPath, body: `{"UserName":"x","Password":"long enough","RoleId":"Operator"}`},
		{method: "PATCH", path: accountsPath + "/reader", body: `{"Password":"long enough"}`},
		{method: "DELETE", path: accountsPath + "/reader"},
		{method: "PATCH", path: rolesPath + "/ReadOnly", body: `{"AssignedPrivileges":["Login"]}`},
	} {
		if a := b.do(r); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
			t.Errorf("%s %s = %d, Allow %q", r.method, r.path, a.status, a.header.Get("Allow"))
		}
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
