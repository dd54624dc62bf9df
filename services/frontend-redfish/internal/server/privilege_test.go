// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
)

const privilegeFile = "../../../../../shared/redfish/registries/Redfish_1.8.0_PrivilegeRegistry.json"

// alternatives are sets of privileges of which one is enough.
type alternatives []struct{ Privilege []string }

type mapping struct {
	Entity               string
	OperationMap         map[string]alternatives
	SubordinateOverrides []struct {
		Targets      []string
		OperationMap map[string]alternatives
	}
}

// privilegeRegistry reads the DMTF's file; nil where it is not there.
func privilegeRegistry(t *testing.T) map[string]mapping {
	t.Helper()
	raw, err := os.ReadFile(privilegeFile)
	if err != nil {
		t.Skipf("the DMTF's privilege registry is not at %s", privilegeFile)
	}
	var registry struct{ Mappings []mapping }
	if err := json.Unmarshal(raw, &registry); err != nil {
		t.Fatal(err)
	}
	entities := map[string]mapping{}
	for _, m := range registry.Mappings {
		entities[m.Entity] = m
	}
	return entities
}

// needs returns what a method on a resource needs, given the types of the resources
// above it, outermost first.
func (m mapping) needs(method string, above []string) alternatives {
	for _, o := range m.SubordinateOverrides {
		left := o.Targets
		for _, entity := range above {
			if len(left) > 0 && left[0] == entity {
				left = left[1:]
			}
		}
		if list, ok := o.OperationMap[method]; ok && len(left) == 0 {
			return list
		}
	}
	return m.OperationMap[method]
}

// admits tells whether a role has one of the sets. Of others' sessions and accounts,
// ConfigureSelf is none.
func (a alternatives) admits(role registryv1.Role) bool {
	has := account.Privileges(role).Names()
	for _, set := range a {
		if !slices.ContainsFunc(set.Privilege, func(p string) bool { return p == "ConfigureSelf" || !slices.Contains(has, p) }) {
			return true
		}
	}
	return false
}

// Each operation of each route is open to the roles that the DMTF's privilege
// registry names, and to no others.
func TestPrivileges_asTheRegistryHasThem(t *testing.T) {
	t.Parallel()
	registry := privilegeRegistry(t)
	b := newBench(t)
	logIn := func() string {
		return b.do(request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":"` + password + `"}`}).header.Get("Location")
	}
	logIn()
	b.do(request{method: "POST", path: accountsPath, body: `{"UserName":"web","Password":"web password","RoleId":"Operator"}`})
	entityOf := func(uri string) string {
		odataType, _ := b.get(uri).at("@odata.type").(string)
		return odataType[strings.LastIndex(odataType, ".")+1:]
	}
	users := []struct {
		name, pass string
		role       registryv1.Role
	}{
		{"reader", "reader password", registryv1.Role_ROLE_READ_ONLY},
		{"operator", "operator password", registryv1.Role_ROLE_OPERATOR},
		{admin, password, registryv1.Role_ROLE_ADMINISTRATOR},
	}
	checked := 0
	for _, rt := range b.server.routes() {
		uri := rt.pattern
		if prefix, found := strings.CutSuffix(uri, "/{id}"); found {
			members := b.get(prefix).memberIDs()
			switch {
			case prefix == accountsPath:
				uri = prefix + "/web"
			case len(members) > 0:
				uri = members[0]
			default: // Drives are no collection; they are below one that is checked.
				continue
			}
		}
		for method, op := range rt.operations {
			if op.needs == anybody || strings.HasSuffix(uri, "/Members") {
				continue
			}
			if method == http.MethodDelete && path.Dir(uri) == sessionPath {
				uri = logIn()
			}
			owner, _, _ := strings.Cut(uri, "/Actions/")
			if b.get(owner).at("@odata.type") == nil {
				continue // A stream or a file: no resource of the registry.
			}
			entity := entityOf(owner)
			var above []string
			for up := path.Dir(owner); strings.HasPrefix(up, "/redfish/v1/"); up = path.Dir(up) {
				if b.get(up).at("@odata.type") != nil {
					above = slices.Insert(above, 0, entityOf(up))
				}
			}
			m, ok := registry[entity]
			if !ok {
				t.Errorf("%s: the registry has no %s", uri, entity)
				continue
			}
			for _, u := range users {
				body := ""
				if method != http.MethodGet && method != http.MethodDelete {
					body = "{}"
				}
				checked++
				a := b.do(request{method: method, path: uri, user: u.name, pass: u.pass, body: body})
				if refused := a.status == http.StatusForbidden; refused == m.needs(method, above).admits(u.role) {
					t.Errorf("%s %s (%s below %v) as %s = %d; the registry wants %v", method, uri, entity, above, u.name, a.status, m.needs(method, above))
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("%d operations were checked, which are not all", checked)
	}
}

// Without login nothing is open but what DSP0266 wants open.
func TestRoutes_openToAnybody(t *testing.T) {
	t.Parallel()
	s := &Server{}
	var open []string
	for _, rt := range s.routes() {
		for method, op := range rt.operations {
			if op.needs == anybody {
				open = append(open, method+" "+rt.pattern)
			}
		}
	}
	slices.Sort(open)
	want := []string{
		"GET /redfish", "GET /redfish/v1", "GET /redfish/v1/$metadata", "GET /redfish/v1/odata",
		"POST " + sessionPath, "POST " + sessionPath + "/Members",
	}
	if !slices.Equal(open, want) {
		t.Errorf("open to anybody: %q, want %q", open, want)
	}
}
