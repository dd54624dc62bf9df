// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubeaccess_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

var update = flag.Bool("update", false, "rewrite the table of docs/security.md")

const (
	manifests   = "../../deploy/rbac"
	security    = "../../docs/security.md"
	beginMarker = "<!-- methods: go test . -update, in pkg/kubeaccess -->\n"
	endMarker   = "<!-- end of methods -->\n"

	aggregate = "rbac.authorization.k8s.io/aggregate-to-"
)

// roleNames are the ClusterRoles, the least first.
var roleNames = []string{"viewer", "operator", "editor", "admin", "frontend"}

// readRoles reads the manifests of deploy/rbac, by name without the group.
func readRoles(t *testing.T) map[string]*rbacv1.ClusterRole {
	t.Helper()
	paths, err := filepath.Glob(manifests + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]*rbacv1.ClusterRole{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		role := &rbacv1.ClusterRole{}
		if err := yaml.UnmarshalStrict(text, role); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if role.Kind != "ClusterRole" || role.Name != access.Group+":"+name {
			t.Errorf("%s holds %s %s", path, role.Kind, role.Name)
		}
		roles[name] = role
	}
	for _, name := range roleNames {
		if roles[name] == nil {
			t.Errorf("there is no role %s", name)
		}
	}
	if len(roles) != len(roleNames) {
		t.Errorf("%d roles, want %d", len(roles), len(roleNames))
	}
	return roles
}

// allows tells whether a role allows a verb on a resource of our group.
func allows(role *rbacv1.ClusterRole, resource, verb string) bool {
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, access.Group) && slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb)
	})
}

// method is one of the API's.
type method struct {
	name string // with slashes
	// subresource and verb that its rule asks for.
	subresource, verb string
	granted           bool   // the service asks about each BMC
	http, path, body  string // REST, empty where it has none
	descriptor        protoreflect.MethodDescriptor
}

// methods are all of the API that have a rule, sorted by name.
func methods(t *testing.T) []method {
	t.Helper()
	var all []method
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				descriptor := service.Methods().Get(j)
				m := method{name: fmt.Sprintf("/%s/%s", service.FullName(), descriptor.Name()), descriptor: descriptor}
				rule, ok := access.RuleOf(m.name)
				if !ok {
					continue
				}
				m.subresource, m.verb, m.granted = access.SubresourceName(rule.GetSubresource()), access.VerbName(rule.GetVerb()), rule.GetGrantedBmcs()
				if rest, ok := proto.GetExtension(descriptor.Options(), annotations.E_Http).(*annotations.HttpRule); ok && rest != nil {
					for verb, path := range map[string]string{
						http.MethodGet: rest.GetGet(), http.MethodPost: rest.GetPost(), http.MethodPut: rest.GetPut(),
						http.MethodPatch: rest.GetPatch(), http.MethodDelete: rest.GetDelete(),
					} {
						if path != "" {
							m.http, m.path, m.body = verb, path, rest.GetBody()
						}
					}
					if m.http == "" {
						t.Errorf("%s: REST method unknown to this test: %v", m.name, rest)
					}
				}
				all = append(all, m)
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b method) int { return strings.Compare(a.name, b.name) })
	if len(all) == 0 {
		t.Fatal("no methods")
	}
	return all
}

// table is the table of docs/security.md.
func rows(methods []method, roles map[string]*rbacv1.ClusterRole) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| method | REST | needs | %s |\n|---|---|---|%s\n", strings.Join(roleNames, " | "), strings.Repeat(":-:|", len(roleNames)))
	for _, m := range methods {
		rest := "-"
		if m.http != "" {
			rest = fmt.Sprintf("`%s …%s`", m.http, strings.TrimPrefix(m.path, "/v1/namespaces/{bmc.namespace}/bmcs/{bmc.name}"))
		}
		verbs := []string{m.verb}
		needs := fmt.Sprintf("`%s %s`", m.verb, m.subresource)
		if m.granted {
			needs += " of what it tells"
		}
		if canBeReadOnly(m.descriptor) {
			needs = fmt.Sprintf("`%s %s`; read-only: `%s %s`", m.verb, m.subresource, access.Get, m.subresource)
			verbs = append(verbs, access.Get)
		}
		service := strings.Split(strings.TrimPrefix(m.name, "/"), "/")
		fmt.Fprintf(&b, "| %s.%s | %s | %s |", service[0][strings.LastIndex(service[0], ".")+1:], service[1], rest, needs)
		for _, role := range roleNames {
			mark := " "
			for _, verb := range verbs {
				if allows(roles[role], access.Resource+"/"+m.subresource, verb) {
					mark = " ● "
				}
			}
			fmt.Fprintf(&b, "%s|", mark)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func canBeReadOnly(m protoreflect.MethodDescriptor) bool {
	fields := m.Input().Fields()
	for i := range fields.Len() {
		if payload := fields.Get(i).Message(); payload != nil && payload.Fields().ByName("read_only") != nil {
			return true
		}
	}
	return fields.ByName("read_only") != nil
}

// The table of docs/security.md says what rules and roles say.
func TestTable(t *testing.T) {
	t.Parallel()
	table.CheckPart(t, security, beginMarker, endMarker, *update, rows(methods(t), readRoles(t)))
}

// No role takes more than it says it does, and those that become part of
// Kubernetes' own roles don't raise who holds them.
func TestRoles(t *testing.T) {
	t.Parallel()
	roles := readRoles(t)
	parts := map[string]string{}
	for name, role := range roles {
		for label := range role.Labels {
			parts[strings.TrimPrefix(label, aggregate)] = name
		}
		for _, rule := range role.Rules {
			if len(rule.NonResourceURLs)+len(rule.ResourceNames) > 0 {
				t.Errorf("%s: a rule with names: %v", name, rule)
			}
			for _, group := range rule.APIGroups {
				if group != access.Group {
					t.Errorf("%s is about the API group %q", name, group)
				}
			}
			for _, word := range slices.Concat(rule.Resources, rule.Verbs) {
				if strings.Contains(word, "*") {
					t.Errorf("%s has a wildcard: %v", name, rule)
				}
			}
			for _, resource := range rule.Resources {
				changes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
				if resource == access.Resource+"/status" && changes {
					t.Errorf("%s changes the status, which is the controller's", name)
				}
				if name == "viewer" && changes {
					t.Errorf("the viewer may change %s", resource)
				}
			}
		}
	}
	if parts["view"] != "viewer" || parts["edit"] != "editor" || parts["admin"] != "admin" || len(parts) != 3 {
		t.Errorf("parts of Kubernetes' roles: %v", parts)
	}
	for role, forbidden := range map[string][]string{
		"viewer":   {"get console", "get credentials"},
		"operator": {"get credentials", "update credentials", "update state"},
		"editor":   {"get credentials", "update credentials", "update state"},
	} {
		for _, right := range forbidden {
			verb, subresource, _ := strings.Cut(right, " ")
			if allows(roles[role], access.Resource+"/"+subresource, verb) {
				t.Errorf("%s may %s", role, right)
			}
		}
	}
	// Each of the first four may do what the one before it may.
	for i, name := range roleNames[1:4] {
		for _, rule := range roles[roleNames[i]].Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !allows(roles[name], resource, verb) {
						t.Errorf("%s may not %s %s, which %s may", name, verb, resource, roleNames[i])
					}
				}
			}
		}
	}
}
