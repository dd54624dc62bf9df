// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/access"
)

// folder has the manifests, one for each service.
const folder = "deploy/rbac/services"

const (
	kindRole               = "Role"
	kindClusterRole        = "ClusterRole"
	kindRoleBinding        = "RoleBinding"
	kindClusterRoleBinding = "ClusterRoleBinding"
)

// Scope is where a role's rules count.
type Scope int

// Scopes.
const (
	// Served: in the namespaces that the service serves. Where those are not all,
	// a Role in each takes the place of the ClusterRole.
	Served Scope = iota
	// Own: in the service's own namespace.
	Own
	// Cluster: in the whole cluster, whatever is served.
	Cluster
)

// clusterSuffix ends the names of a service's ClusterRoles of scope Cluster.
const clusterSuffix = ":cluster"

// String returns the scope in words.
func (s Scope) String() string {
	switch s {
	case Served:
		return "served namespaces"
	case Own:
		return "own namespace"
	case Cluster:
		return "cluster"
	default:
		return fmt.Sprintf("scope %d", int(s))
	}
}

// Rule is a rule of a role.
type Rule struct {
	rbacv1.PolicyRule
	// Reason is the comment above it.
	Reason string
}

// Role is a Role or ClusterRole of a manifest.
type Role struct {
	Kind, Name string
	Scope      Scope
	Rules      []Rule
}

// short is the role's name after the service's; empty: it is the service's main
// role.
func (m *Manifest) short(role *Role) string {
	return strings.TrimPrefix(strings.TrimPrefix(role.Name, access.Group+":"+m.Service), ":")
}

// policy is the role's rules for the API, with the test's names for objects.
func (r *Role) policy(where *Where) []rbacv1.PolicyRule {
	rules := make([]rbacv1.PolicyRule, len(r.Rules))
	for i := range r.Rules {
		r.Rules[i].DeepCopyInto(&rules[i])
		for n, name := range rules[i].ResourceNames {
			rules[i].ResourceNames[n] = where.named(name)
		}
	}
	return rules
}

// Binding is a RoleBinding, in the service's own namespace, or a
// ClusterRoleBinding.
type Binding struct {
	Kind, Name string
	Ref        rbacv1.RoleRef
	// Reason is the comment above it.
	Reason string
}

// Manifest is what a service is given.
type Manifest struct {
	Service  string
	Account  *corev1.ServiceAccount
	Roles    []Role
	Bindings []Binding
}

// Read reads the manifest of a service. The working directory is inside the
// repository.
func Read(service string) (*Manifest, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, Path(service)))
	if err != nil {
		return nil, err
	}
	m, err := parse(service, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Path(service), err)
	}
	return m, nil
}

// Path is the manifest of a service, from the repository's root.
func Path(service string) string { return filepath.Join(folder, service+".yaml") }

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the repository")
		}
		dir = parent
	}
}

func parse(service string, text []byte) (*Manifest, error) {
	m := &Manifest{Service: service}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var header struct {
			Kind string `json:"kind"`
		}
		if err := sigsyaml.Unmarshal(document, &header); err != nil {
			return nil, err
		}
		var err error
		switch header.Kind {
		case "ServiceAccount":
			if m.Account != nil {
				return nil, errors.New("there are two ServiceAccounts")
			}
			m.Account = &corev1.ServiceAccount{}
			err = sigsyaml.UnmarshalStrict(document, m.Account)
		case kindRole, kindClusterRole:
			err = m.addRole(header.Kind, document)
		case kindRoleBinding, kindClusterRoleBinding:
			err = m.addBinding(header.Kind, document)
		default:
			err = fmt.Errorf("it holds a %q", header.Kind)
		}
		if err != nil {
			return nil, err
		}
	}
	return m, m.check()
}

func (m *Manifest) addRole(kind string, document []byte) error {
	// Both kinds have these fields.
	var role rbacv1.Role
	if err := sigsyaml.UnmarshalStrict(document, &role); err != nil {
		return err
	}
	reasons, err := reasonsOf(document)
	if err != nil {
		return err
	}
	if len(reasons) != len(role.Rules) {
		return fmt.Errorf("%s %s: %d rules with %d reasons", kind, role.Name, len(role.Rules), len(reasons))
	}
	r := Role{Kind: kind, Name: role.Name, Scope: Served}
	switch {
	case kind == kindRole:
		r.Scope = Own
	case strings.HasSuffix(role.Name, clusterSuffix):
		r.Scope = Cluster
	}
	for i, rule := range role.Rules {
		r.Rules = append(r.Rules, Rule{PolicyRule: rule, Reason: reasons[i]})
	}
	m.Roles = append(m.Roles, r)
	return nil
}

// reasonsOf returns the comment above each rule of a role.
func reasonsOf(document []byte) ([]string, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return nil, err
	}
	fields := root.Content[0].Content
	var reasons []string
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value != "rules" {
			continue
		}
		for _, rule := range fields[i+1].Content {
			comment := rule.HeadComment
			if comment == "" && len(rule.Content) > 0 {
				comment = rule.Content[0].HeadComment
			}
			reasons = append(reasons, plain(comment))
		}
	}
	return reasons, nil
}

func (m *Manifest) addBinding(kind string, document []byte) error {
	var binding rbacv1.RoleBinding
	if err := sigsyaml.UnmarshalStrict(document, &binding); err != nil {
		return err
	}
	if m.Account == nil {
		return fmt.Errorf("%s %s comes before the ServiceAccount", kind, binding.Name)
	}
	want := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: m.Account.Namespace, Name: m.Account.Name}
	if len(binding.Subjects) != 1 || binding.Subjects[0] != want {
		return fmt.Errorf("%s %s is of %v, want the ServiceAccount alone", kind, binding.Name, binding.Subjects)
	}
	if kind == kindRoleBinding && binding.Namespace != m.Account.Namespace {
		return fmt.Errorf("%s %s is in namespace %q, want %q", kind, binding.Name, binding.Namespace, m.Account.Namespace)
	}
	var reason strings.Builder
	for line := range strings.Lines(string(document)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		reason.WriteString(line)
	}
	m.Bindings = append(m.Bindings, Binding{Kind: kind, Name: binding.Name, Ref: binding.RoleRef, Reason: plain(reason.String())})
	return nil
}

// plain is a comment as one line of text.
func plain(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		words = append(words, strings.Fields(strings.TrimLeft(line, "# "))...)
	}
	return strings.Join(words, " ")
}

// check tells whether each role is bound, and where it counts.
func (m *Manifest) check() error {
	if m.Account == nil {
		return errors.New("there is no ServiceAccount")
	}
	bound := map[string]bool{}
	for _, b := range m.Bindings {
		role := m.role(b.Ref)
		switch {
		case role == nil && (b.Kind != kindClusterRoleBinding || b.Ref.Kind != kindClusterRole):
			return fmt.Errorf("%s %s refers to %s %s, which is not there", b.Kind, b.Name, b.Ref.Kind, b.Ref.Name)
		case role == nil:
		case (role.Scope == Own) != (b.Kind == kindRoleBinding):
			return fmt.Errorf("%s %s binds %s %s", b.Kind, b.Name, role.Kind, role.Name)
		default:
			bound[role.Kind+" "+role.Name] = true
		}
	}
	for _, role := range m.Roles {
		if !bound[role.Kind+" "+role.Name] {
			return fmt.Errorf("%s %s is not bound", role.Kind, role.Name)
		}
	}
	return nil
}

// role returns the role that a binding refers to; nil: it is not the service's.
func (m *Manifest) role(ref rbacv1.RoleRef) *Role {
	for i := range m.Roles {
		if m.Roles[i].Kind == ref.Kind && m.Roles[i].Name == ref.Name {
			return &m.Roles[i]
		}
	}
	return nil
}

// with returns the service's role of a scope; nil: it has none.
func (m *Manifest) with(scope Scope) *Role {
	for i := range m.Roles {
		if m.Roles[i].Scope == scope {
			return &m.Roles[i]
		}
	}
	return nil
}
