// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// queried escapes a query, but for what makes it one.
func queried(path, query string) string {
	return path + "?" + strings.NewReplacer("%3D", "=", "%26", "&").Replace(url.QueryEscape(query))
}

func TestQuery_refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, tc := range map[string]struct {
		request request
		status  int
		id      string
	}{
		"not known":                  {request{path: queried(systemPath, "$apply=x")}, 501, "QueryNotSupported"},
		"too many levels":            {request{path: queried(systemPath, "$expand=.($levels=4)")}, 400, "QueryParameterOutOfRange"},
		"no expression":              {request{path: queried("/redfish/v1/Systems", "$filter=x")}, 400, "QueryParameterValueFormatError"},
		"together with only":         {request{path: "/redfish/v1/Systems?only&$top=1"}, 400, "QueryCombinationInvalid"},
		"only of no collection":      {request{path: systemPath + "?only"}, 400, "QueryNotSupportedOnResource"},
		"of what is no resource":     {request{path: queried("/redfish/v1/odata", "$select=value")}, 400, "QueryNotSupportedOnResource"},
		"of a change":                {request{method: "PATCH", path: queried(systemPath, "$select=Name"), body: `{"Boot":{"BootSourceOverrideTarget":"Pxe"}}`}, 400, "QueryNotSupportedOnOperation"},
		"expanded without a login":   {request{path: queried("/redfish/v1/", "$expand=."), anonymous: true}, 401, "NoValidSession"},
		"expanded with a wrong one":  {request{path: queried("/redfish/v1/", "$expand=."), user: admin, pass: "wrong"}, 401, "ResourceAtUriUnauthorized"},
		"missing, whatever is asked": {request{path: queried("/redfish/v1/Systems/2", "$expand=.")}, 404, "ResourceMissingAtURI"},
	} {
		a := b.do(tc.request)
		if a.status != tc.status {
			t.Errorf("%s = %d, want %d", name, a.status, tc.status)
		}
		if d := cmp.Diff([]string{tc.id}, a.messageIDs()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if got := b.backend.Overrides(); len(got) > 0 {
		t.Errorf("a refused change was carried out: %v", got)
	}
}

func TestQuery_answers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	whole := b.get(systemPath)

	a := b.get("/redfish/v1/Systems?only")
	if d := cmp.Diff(whole.body, a.body); d != "" {
		t.Errorf("the only system (-want +got):\n%s", d)
	}
	a = b.get(queried("/redfish/v1/Systems", "$expand=.&$select=Members/PowerState"))
	want := map[string]any{
		"@odata.id": "/redfish/v1/Systems", "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection", "@odata.etag": a.header.Get("ETag"),
		"Members": []any{map[string]any{
			"@odata.id": systemPath, "@odata.type": whole.at("@odata.type"), "@odata.etag": whole.header.Get("ETag"), "PowerState": "On",
		}},
	}
	if d := cmp.Diff(want, a.body); d != "" {
		t.Errorf("power states (-want +got):\n%s", d)
	}
	// The tag is that of the resource, whatever is asked of it.
	if a := b.get(queried(systemPath, "$select=Name")); a.header.Get("ETag") != whole.header.Get("ETag") || !strings.Contains(a.header.Get("Link"), "ComputerSystem") {
		t.Errorf("headers of a part are %v", a.header)
	}
	if a := b.do(request{method: http.MethodHead, path: queried(systemPath, "$expand=*")}); a.status != http.StatusOK || len(a.raw) != 0 {
		t.Errorf("HEAD = %d %s", a.status, a.raw)
	}
	interfaces := systemPath + "/EthernetInterfaces"
	all := b.get(interfaces).memberIDs()
	if len(all) != 2 {
		t.Fatalf("interfaces %v", all)
	}
	mac := b.get(all[1]).at("MACAddress").(string)
	if d := cmp.Diff(all[1:], b.get(queried(interfaces, "$filter=MACAddress eq '"+mac+"'")).memberIDs()); d != "" {
		t.Errorf("the interface of an address (-want +got):\n%s", d)
	}
	if d := cmp.Diff(all[1:], b.get(queried(interfaces, "$skip=1&$top=5")).memberIDs()); d != "" {
		t.Errorf("the second page (-want +got):\n%s", d)
	}
	features := b.get("/redfish/v1/").at("ProtocolFeaturesSupported").(map[string]any)
	wantFeatures := map[string]any{
		"ExcerptQuery": false, "DeepOperations": map[string]any{"DeepPATCH": false, "DeepPOST": false}, "FilterQuery": true, "FilterQueryComparisonOperations": true, "FilterQueryCompoundOperations": true,
		"OnlyMemberQuery": true, "SelectQuery": true, "TopSkipQuery": true,
		"ExpandQuery": map[string]any{"ExpandAll": true, "Levels": true, "Links": true, "NoLinks": true, "MaxLevels": 3.0},
	}
	if d := cmp.Diff(wantFeatures, features); d != "" {
		t.Errorf("features that the root names (-want +got):\n%s", d)
	}
	// All of the service is within reach, and the schemas hold for what is put in
	// place of links.
	root := b.get(queried("/redfish/v1/", "$expand=.($levels=3)"))
	if got := root.at("Systems", "Members"); got == nil {
		t.Errorf("the root's systems are %v", root.at("Systems"))
	}
	checkValues(t, "the expanded root", any(root.body))
}

// What a caller may not read stays a link, in the answer to whatever query.
func TestQuery_privileges(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	logIn := b.do(request{method: "POST", path: sessionPath, body: `{"UserName":"admin","Password":"correct horse"}`, anonymous: true})
	for _, as := range []request{{user: "reader", pass: "reader password"}, {user: "operator", pass: "operator password"}} {
		as.path = queried("/redfish/v1/", "$expand=*($levels=3)")
		a := b.do(as)
		if a.status != http.StatusOK {
			t.Fatalf("GET as %s = %d", as.user, a.status)
		}
		if strings.Contains(string(a.raw), accountsPath+"/"+admin) {
			t.Errorf("%s sees the administrator's account", as.user)
		}
		if strings.Contains(string(a.raw), "secret") || strings.Contains(string(a.raw), logIn.header.Get("X-Auth-Token")) {
			t.Errorf("%s sees a secret", as.user)
		}
	}
}

// A backend that does not answer fails the whole: a part would look like all.
func TestQuery_backendFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.backend.Fail(status.Error(codes.Unavailable, "down"))
	a := b.get(queried("/redfish/v1/Systems", "$expand=."))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("GET = %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
	}
}
