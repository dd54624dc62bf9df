// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
)

var update = flag.Bool("update", false, "rewrite the table of docs/security.md")

// services that have a manifest.
var services = []string{"controller", "power", "media", "frontend-ipmi", "frontend-redfish"}

// frontend tells whether a service is one that holds no Kubernetes rights.
func frontend(service string) bool { return strings.HasPrefix(service, "frontend-") }

const (
	security    = "docs/security.md"
	beginMarker = "<!-- permissions: go test ./rbactest -update, in pkg/kubeaccess -->\n"
	endMarker   = "<!-- end of permissions -->\n"
)

func readAll(t *testing.T) (root string, all []*Manifest) {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(services) {
		t.Errorf("%s has %d files, want one for each of %v", folder, len(files), services)
	}
	for _, service := range services {
		m, err := Read(service)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return root, all
}

// table is the table of docs/security.md.
func rows(manifests []*Manifest) string {
	var b strings.Builder
	b.WriteString("| service | where | what | verbs | why |\n|---|---|---|---|---|\n")
	for _, m := range manifests {
		for _, role := range m.Roles {
			for _, rule := range role.Rules {
				var what []string
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						one := "`" + need{group: group, resource: resource}.qualified() + "`"
						if len(rule.ResourceNames) > 0 {
							one += " named `" + strings.Join(rule.ResourceNames, "`, `") + "`"
						}
						what = append(what, one)
					}
				}
				where := role.Scope.String()
				if short := m.short(&role); role.Scope == Served && short != "" || strings.Contains(short, ":") {
					where += " (`:" + short + "`)"
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Service, where, strings.Join(what, ", "), strings.Join(rule.Verbs, ", "), rule.Reason)
			}
		}
		for _, binding := range m.Bindings {
			if m.role(binding.Ref) == nil {
				fmt.Fprintf(&b, "| `%s` | cluster | what ClusterRole `%s` says | | %s |\n", m.Service, binding.Ref.Name, binding.Reason)
			}
		}
	}
	return b.String()
}

// The table of docs/security.md says what the manifests say.
func TestTable(t *testing.T) {
	t.Parallel()
	root, manifests := readAll(t)
	table.CheckPart(t, filepath.Join(root, security), beginMarker, endMarker, *update, rows(manifests))
}

// raising are verbs that let a service take more than it was given, or give others
// more than it has. bind can be for named roles.
var raising = []string{"bind", "escalate", "impersonate", "approve", "sign", "attest"}

func TestManifests(t *testing.T) {
	t.Parallel()
	_, manifests := readAll(t)
	for _, m := range manifests {
		for i := range m.Roles {
			role := &m.Roles[i]
			if !strings.HasPrefix(role.Name, access.Group+":"+m.Service) {
				t.Errorf("%s: role %s is not named after the service", m.Service, role.Name)
			}
			if len(role.Rules) == 0 {
				t.Errorf("%s: %s has no rules", m.Service, role.Name)
			}
			for _, rule := range role.Rules {
				checkRule(t, m.Service+": "+role.Name, rule)
			}
			seen := map[right]bool{}
			for _, r := range rightsOf(role) {
				if seen[r] {
					t.Errorf("%s: it is there twice: %s", m.Service, r)
				}
				seen[r] = true
			}
		}
		// Backends know their callers from Kubernetes; frontends call them.
		other := "system:auth-delegator"
		if frontend(m.Service) {
			other = access.Group + ":frontend"
			if len(m.Roles) > 0 {
				t.Errorf("%s, which is what attackers reach, has a role in Kubernetes", m.Service)
			}
			if mount := m.Account.AutomountServiceAccountToken; mount == nil || *mount {
				t.Errorf("%s gets a token for the API server", m.Service)
			}
		}
		var others []string
		for _, binding := range m.Bindings {
			if m.role(binding.Ref) != nil {
				continue
			}
			others = append(others, binding.Ref.Name)
			if binding.Reason == "" {
				t.Errorf("%s: %s has no comment that says why", m.Service, binding.Name)
			}
		}
		if !slices.Equal(others, []string{other}) {
			t.Errorf("%s has roles of others: %v, want %s", m.Service, others, other)
		}
	}
}

func checkRule(t *testing.T, where string, rule Rule) {
	t.Helper()
	if rule.Reason == "" {
		t.Errorf("%s: no comment above %v says why", where, rule.PolicyRule)
	}
	if len(rule.NonResourceURLs) > 0 {
		t.Errorf("%s has paths: %v", where, rule.NonResourceURLs)
	}
	for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames) {
		named := word == "bind" && len(rule.ResourceNames) > 0
		if strings.Contains(word, "*") || slices.Contains(raising, word) && !named {
			t.Errorf("%s has %q: %v", where, word, rule.PolicyRule)
		}
	}
	// What the API server can't limit to metadata, the harness does.
	if slices.Contains(rule.Resources, "secrets") && (slices.Contains(rule.Verbs, "list") || slices.Contains(rule.Verbs, "watch")) &&
		len(rule.ResourceNames) == 0 && !strings.Contains(rule.Reason, "metadata") {
		t.Errorf("%s lists or watches Secrets, and does not say that it reads their metadata alone: %q", where, rule.Reason)
	}
}

const manifest = `# SPDX-License-Identifier: Apache-2.0
#
# What a service needs.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: virtbmc-test
  namespace: kubevirtbmc-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: bmc.kubevirt.io:test
rules:
  # First, in
  # two lines.
  - apiGroups: [""]
    resources:
      - pods
    verbs: [get, create]
  # Second.
  - apiGroups: [apps]
    resources:
      - deployments/scale
    resourceNames: [one]
    verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: bmc.kubevirt.io:test
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: bmc.kubevirt.io:test
subjects:
  - kind: ServiceAccount
    namespace: kubevirtbmc-system
    name: virtbmc-test
`

func TestParse(t *testing.T) {
	t.Parallel()
	m, err := parse("test", []byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	want := []Role{{Kind: kindClusterRole, Name: "bmc.kubevirt.io:test", Scope: Served, Rules: []Rule{
		{rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "create"}}, "First, in two lines."},
		{rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale"}, ResourceNames: []string{"one"}, Verbs: []string{"patch"}}, "Second."},
	}}}
	if d := cmp.Diff(want, m.Roles); d != "" {
		t.Errorf("roles mismatch (-want +got):\n%s", d)
	}
	for name, tc := range map[string]struct{ old, new, want string }{
		"a field that is not there":   {"resourceNames", "resourcesNames", "unknown field"},
		"no account":                  {"kind: ServiceAccount\nmetadata", "kind: Secret\nmetadata", `it holds a "Secret"`},
		"a binding of another":        {"    name: virtbmc-test", "    name: other", "want the ServiceAccount alone"},
		"a role that is not bound":    {"  name: bmc.kubevirt.io:test\nsubjects", "  name: other\nsubjects", "is not bound"},
		"a Role bound in the cluster": {"kind: ClusterRole\nmetadata", "kind: Role\nmetadata", "is not bound"},
	} {
		_, err := parse("test", []byte(strings.Replace(manifest, tc.old, tc.new, 1)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestNeedOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, url string
		want        need
		other       bool
	}{
		"get":     {"GET", "/api/v1/namespaces/lab/secrets/one", need{"get", "", "secrets", "lab", "one"}, false},
		"list":    {"GET", "/apis/kubevirt.io/v1/virtualmachines", need{"list", "kubevirt.io", "virtualmachines", "", ""}, false},
		"watch":   {"GET", "/apis/kubevirt.io/v1/namespaces/lab/virtualmachines?watch=true", need{"watch", "kubevirt.io", "virtualmachines", "lab", ""}, false},
		"by name": {"GET", "/api/v1/secrets?fieldSelector=metadata.name%3Done", need{"list", "", "secrets", "", "one"}, false},
		"subresource": {
			"PUT", "/apis/subresources.kubevirt.io/v1/namespaces/lab/virtualmachines/vm/start",
			need{"update", "subresources.kubevirt.io", "virtualmachines/start", "lab", "vm"},
			false,
		},
		"collection": {"DELETE", "/api/v1/namespaces/lab/events", need{"deletecollection", "", "events", "lab", ""}, false},
		"discovery":  {"GET", "/apis", need{}, true},
	} {
		request, err := http.NewRequestWithContext(t.Context(), tc.method, "https://server/prefix"+tc.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := needOf(request, "/prefix")
		if got != tc.want || ok == tc.other {
			t.Errorf("%s: got %+v, %t, want %+v", name, got, ok, tc.want)
		}
	}
}

// A right that nobody uses is named, and one that is used in another namespace
// than where it counts is not taken for used.
func TestUnused(t *testing.T) {
	t.Parallel()
	m, err := parse("test", []byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	u := &uses{rights: map[right]bool{}}
	a := &Account{manifest: m, where: Where{Own: "system", Serves: []string{"lab"}}}
	u.add(a, need{"get", "", "pods", "lab", "any"})
	u.add(a, need{"create", "", "pods", "elsewhere", ""})
	u.add(a, need{"patch", "apps", "deployments/scale", "lab", "two"})
	want := []string{"ClusterRole bmc.kubevirt.io:test: create pods", "ClusterRole bmc.kubevirt.io:test: patch deployments.apps/scale one"}
	if d := cmp.Diff(want, m.unused(u.list())); d != "" {
		t.Errorf("unused mismatch (-want +got):\n%s", d)
	}
	u.add(a, need{"create", "", "pods", "lab", ""})
	u.add(a, need{"patch", "apps", "deployments/scale", "lab", "one"})
	if unused := m.unused(u.list()); len(unused) > 0 {
		t.Errorf("unused: %v", unused)
	}
}

func TestRight_isReviewed(t *testing.T) {
	t.Parallel()
	for resource, want := range map[string]bool{
		"virtualmachinebmcs": false, "virtualmachinebmcs/status": false, "virtualmachinebmcs/state": true, "virtualmachinebmcs/power": true,
	} {
		if got := (right{Group: access.Group, Resource: resource}).isReviewed(); got != want {
			t.Errorf("%s: %v, want %v", resource, got, want)
		}
	}
	if (right{Group: "kubevirt.io", Resource: "virtualmachinebmcs/state"}).isReviewed() {
		t.Error("another group's is no right of ours")
	}
}

// What is granted to others is used, in whichever form the request is.
func TestGrants(t *testing.T) {
	t.Parallel()
	role := &rbacv1.Role{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{access.Group}, Resources: []string{"virtualmachinebmcs/power"}, ResourceNames: []string{"one"}, Verbs: []string{"get", "update"},
		}},
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	binary, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, rbacv1.SchemeGroupVersion), role)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	want := []need{
		{verb: "get", group: access.Group, resource: "virtualmachinebmcs/power", name: "one"},
		{verb: "update", group: access.Group, resource: "virtualmachinebmcs/power", name: "one"},
	}
	for name, body := range map[string][]byte{"JSON": text, "protobuf": binary} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://server", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := grants(request); !slices.Equal(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}
