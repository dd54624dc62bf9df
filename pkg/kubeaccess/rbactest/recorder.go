// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"kubevirtbmc.dev/pkg/access"
)

// resolver reads requests as the API server does.
var resolver = &request.RequestInfoFactory{
	APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
}

// recorder passes an account's requests on and takes note of what they need.
type recorder struct {
	next    http.RoundTripper
	account *Account
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	p, err := r.next.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	r.account.note(q, p)
	return p, nil
}

// need is what a request needs to be allowed.
type need struct {
	verb, group, resource string // resource/subresource
	namespace, name       string
}

// needOf returns what a request needs; false: it is not about a resource.
func needOf(q *http.Request, prefix string) (need, bool) {
	bare := q.Clone(q.Context())
	bare.URL.Path = strings.TrimPrefix(q.URL.Path, prefix)
	info, err := resolver.NewRequestInfo(bare)
	if err != nil || !info.IsResourceRequest {
		return need{}, false
	}
	n := need{verb: info.Verb, group: info.APIGroup, resource: info.Resource, namespace: info.Namespace, name: info.Name}
	if info.Subresource != "" {
		n.resource += "/" + info.Subresource
	}
	return n, true
}

// note takes note of a request and of its answer.
func (a *Account) note(q *http.Request, p *http.Response) {
	n, ok := needOf(q, a.prefix)
	switch {
	case p.StatusCode == http.StatusUnauthorized:
		a.report("%s: %s %s: %s", a.manifest.Service, q.Method, q.URL.Path, p.Status)
	case p.StatusCode == http.StatusForbidden:
		// Others refuse too: quotas, webhooks, namespaces that end.
		switch message := peek(p); {
		case !strings.Contains(message, fmt.Sprintf("User %q cannot", a.user())) && n.group != "subresources.kubevirt.io":
		case ok:
			a.denied(n, message)
		default:
			a.report("%s may not %s %s: %s", a.manifest.Service, q.Method, q.URL.Path, message)
		}
	case ok:
		used.add(a, n)
		if n.group == rbacv1.GroupName && p.StatusCode < http.StatusMultipleChoices {
			for _, granted := range grants(q) {
				granted.namespace = n.namespace
				used.add(a, granted)
			}
		}
		if n.verb == "patch" && p.StatusCode == http.StatusCreated {
			n.verb = "create" // What server-side apply makes needs both.
			used.add(a, n)
		}
	}
	if n.group == "" && n.resource == "secrets" && (n.verb == "list" || n.verb == "watch") &&
		!strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadata") {
		a.report("%s: %s of Secrets with what is in them (%s): metadata alone may be listed and watched", a.manifest.Service, n.verb, q.URL)
	}
}

// grants returns what a role grants that a request makes or changes. The API server
// wants who grants something to have it, so that is what rights are used for too.
func grants(q *http.Request) []need {
	if q.GetBody == nil {
		return nil
	}
	body, err := q.GetBody()
	if err != nil {
		return nil
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil
	}
	var rules []rbacv1.PolicyRule
	switch role := object.(type) {
	case *rbacv1.Role:
		rules = role.Rules
	case *rbacv1.ClusterRole:
		rules = role.Rules
	}
	var all []need
	for _, r := range rightsOf(&Role{Rules: rulesOf(rules)}) {
		all = append(all, need{verb: r.Verb, group: r.Group, resource: r.Resource, name: r.Name})
	}
	return all
}

func rulesOf(policy []rbacv1.PolicyRule) []Rule {
	rules := make([]Rule, len(policy))
	for i, rule := range policy {
		rules[i].PolicyRule = rule
	}
	return rules
}

// peek returns the message of an answer, and leaves it for the next to read.
func peek(p *http.Response) string {
	body, _ := io.ReadAll(p.Body)
	_ = p.Body.Close()
	p.Body = io.NopCloser(bytes.NewReader(body))
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if status, ok := object.(*metav1.Status); ok && err == nil {
		return status.Message
	}
	return string(body)
}

// denied reports what an account was refused, and the rule that it lacks.
func (a *Account) denied(n need, message string) {
	m := a.manifest
	scope := Served
	where := "in namespace " + n.namespace
	switch {
	case n.namespace == "" && len(a.where.Serves) == 0 && (n.verb == "list" || n.verb == "watch"):
		where = "in all namespaces"
	case n.namespace == "":
		scope, where = Cluster, "in the cluster"
	case n.namespace == a.where.Own && !slices.Contains(a.where.Serves, n.namespace):
		scope = Own
	}
	role := fmt.Sprintf("ClusterRole %s:%s%s, which is to be made,", access.Group, m.Service, clusterSuffix)
	if r := m.with(scope); r != nil {
		role = r.Kind + " " + r.Name
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s may not %s %s %s: %s\n", m.Service, n.verb, n.qualified(), where, message)
	fmt.Fprintf(&b, "Either it has no business there, or %s in %s lacks, below a comment that says why:\n", role, Path(m.Service))
	fmt.Fprintf(&b, "  - apiGroups: [%s]\n    resources:\n      - %s\n    verbs: [%s]\n", groupName(n.group), n.resource, n.verb)
	b.WriteString("Then write the table of docs/security.md: go -C pkg/kubeaccess test ./rbactest -update")
	a.report("%s", b.String())
}

// qualified is the resource with its group, as kubectl writes it.
func (n need) qualified() string {
	resource, subresource, ok := strings.Cut(n.resource, "/")
	if n.group != "" {
		resource += "." + n.group
	}
	if ok {
		resource += "/" + subresource
	}
	return resource
}

// groupName is an API group as a manifest has it.
func groupName(group string) string {
	if group == "" {
		return `""`
	}
	return group
}

// right is one verb of one resource of a role's rule.
type right struct {
	Role, Group, Resource, Name, Verb string
}

// rightsOf returns all that a role's rules grant.
func rightsOf(role *Role) []right {
	var all []right
	for _, rule := range role.Rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						all = append(all, right{Role: role.Kind + " " + role.Name, Group: group, Resource: resource, Name: name, Verb: verb})
					}
				}
			}
		}
	}
	return all
}

// String returns the right in words.
func (r right) String() string {
	text := fmt.Sprintf("%s: %s %s", r.Role, r.Verb, need{group: r.Group, resource: r.Resource}.qualified())
	if r.Name != "" {
		text += " " + r.Name
	}
	return text
}

// uses are the rights that were used in this process.
type uses struct {
	mu     sync.Mutex
	rights map[right]bool
}

var used = uses{rights: map[right]bool{}}

// add takes note of a request that was allowed, for each role that allows it.
func (u *uses) add(a *Account, n need) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range a.manifest.Roles {
		role := &a.manifest.Roles[i]
		if !a.counts(role, n.namespace) {
			continue
		}
		for _, r := range rightsOf(role) {
			if r.Verb == n.verb && r.Group == n.group && r.Resource == n.resource && (r.Name == "" || a.where.named(r.Name) == n.name) {
				u.rights[r] = true
			}
		}
	}
}

func (u *uses) list() []right {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]right, 0, len(u.rights))
	for r := range u.rights {
		list = append(list, r)
	}
	return list
}

// isReviewed tells whether a right is one that our services ask the API server about
// before they serve its holder, who never uses it on the API server itself: there is
// no request that would show it.
func (r right) isReviewed() bool {
	return r.Group == access.Group && strings.HasPrefix(r.Resource, "virtualmachinebmcs/") && r.Resource != "virtualmachinebmcs/status"
}

// unused returns the rights of a service that are not among those, in words.
func (m *Manifest) unused(those []right) []string {
	var unused []string
	for i := range m.Roles {
		for _, r := range rightsOf(&m.Roles[i]) {
			if !r.isReviewed() && !slices.Contains(those, r) {
				unused = append(unused, r.String())
			}
		}
	}
	return unused
}
