// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"context"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// grantTime is how long the API server may take to know a role.
const grantTime = 30 * time.Second

// Where says where a service runs and what it serves. The namespaces are there.
type Where struct {
	// Own is the service's own namespace.
	Own string
	// Serves are the namespaces that it serves; empty: all. Those get Roles, as a
	// chart makes them, in place of the ClusterRole.
	Serves []string
	// Names are what objects that rules name are called in the test, by what they
	// are called in the manifest; others keep their names.
	Names map[string]string
	// Without are the roles that the account does not get, by what follows the
	// service's name in theirs, as an installation may leave them out. Give gives
	// them later.
	Without []string
}

// named is what an object is called in the test that a rule names.
func (w *Where) named(name string) string {
	if other, ok := w.Names[name]; ok {
		return other
	}
	return name
}

// Account is a ServiceAccount of a service, for as long as a test.
type Account struct {
	t        testing.TB
	manifest *Manifest
	where    Where
	admin    *rest.Config
	client   kubernetes.Interface
	suffix   string
	name     string
	token    string
	// prefix is what the API server's URL has before its paths.
	prefix string

	mu       sync.Mutex
	without  map[string]bool
	over     bool
	reported map[string]bool
}

// New makes a ServiceAccount with what the service's manifest says. config is an
// administrator's. Whatever the account is refused fails the test, at its end at
// the latest.
func New(t testing.TB, config *rest.Config, service string, where Where) *Account {
	t.Helper()
	manifest, err := Read(service)
	if err != nil {
		t.Fatal(err)
	}
	admin := rest.CopyConfig(config)
	admin.QPS, admin.Burst = 200, 400
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		t.Fatal(err)
	}
	suffix := "-" + strings.ToLower(rand.Text()[:8])
	a := &Account{
		t: t, manifest: manifest, where: where, admin: admin, client: client, suffix: suffix,
		name: manifest.Account.Name + suffix, prefix: strings.TrimRight(host.Path, "/"), reported: map[string]bool{},
		without: map[string]bool{},
	}
	for _, role := range where.Without {
		if !slices.ContainsFunc(manifest.Roles, func(r Role) bool { return manifest.short(&r) == role }) {
			t.Fatalf("%s has no role %q", Path(service), role)
		}
		a.without[role] = true
	}
	a.create()
	// What is under way when the test ends has nobody to report to.
	t.Cleanup(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.over = true
	})
	return a
}

// create makes the account, its roles and bindings, and waits until they count.
func (a *Account) create() {
	a.t.Helper()
	account := a.manifest.Account.DeepCopy()
	account.Name, account.Namespace = a.name, a.where.Own
	accounts := a.client.CoreV1().ServiceAccounts(a.where.Own)
	a.must(accounts.Create(a.t.Context(), account, metav1.CreateOptions{}))
	a.later(func(ctx context.Context) error { return accounts.Delete(ctx, a.name, metav1.DeleteOptions{}) })
	for _, b := range a.manifest.Bindings {
		role := a.manifest.role(b.Ref)
		switch {
		case role == nil:
			a.bindCluster(b.Name, b.Ref)
			a.await("", rbacv1.PolicyRule{APIGroups: []string{authenticationv1.GroupName}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}})
		case !a.without[a.manifest.short(role)]:
			a.give(role)
		}
	}
	answer, err := accounts.CreateToken(a.t.Context(), a.name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	a.token = answer.Status.Token
}

// Give gives the account a role that it is without, by what follows the service's
// name in its own.
func (a *Account) Give(short string) {
	a.t.Helper()
	for i := range a.manifest.Roles {
		if role := &a.manifest.Roles[i]; a.manifest.short(role) == short {
			a.mu.Lock()
			delete(a.without, short)
			a.mu.Unlock()
			a.give(role)
		}
	}
}

func (a *Account) give(role *Role) {
	a.t.Helper()
	switch {
	case role.Scope == Own:
		a.inNamespace(role, a.where.Own)
	case role.Scope == Served && len(a.where.Serves) > 0:
		for _, namespace := range a.where.Serves {
			a.inNamespace(role, namespace)
		}
	default:
		a.inCluster(role)
	}
}

func (a *Account) must(_ any, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// later removes an object when the test ends.
func (a *Account) later(remove func(context.Context) error) {
	a.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := remove(ctx); err != nil && !apierrors.IsNotFound(err) {
			a.t.Errorf("clean up after %s: %v", a.name, err)
		}
	})
}

func (a *Account) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: a.where.Own, Name: a.name}}
}

// inNamespace gives the account a role's rules in a namespace.
func (a *Account) inNamespace(role *Role, namespace string) {
	a.t.Helper()
	meta := metav1.ObjectMeta{Name: role.Name + a.suffix, Namespace: namespace}
	roles, bindings := a.client.RbacV1().Roles(namespace), a.client.RbacV1().RoleBindings(namespace)
	a.must(roles.Create(a.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: role.policy(&a.where)}, metav1.CreateOptions{}))
	a.later(func(ctx context.Context) error { return roles.Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
	a.must(bindings.Create(a.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: a.subjects(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kindRole, Name: meta.Name},
	}, metav1.CreateOptions{}))
	a.later(func(ctx context.Context) error { return bindings.Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
	a.await(namespace, role.policy(&a.where)[0])
}

// inCluster gives the account a role's rules in the cluster.
func (a *Account) inCluster(role *Role) {
	a.t.Helper()
	meta := metav1.ObjectMeta{Name: role.Name + a.suffix}
	roles := a.client.RbacV1().ClusterRoles()
	a.must(roles.Create(a.t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: role.policy(&a.where)}, metav1.CreateOptions{}))
	a.later(func(ctx context.Context) error { return roles.Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
	a.bindCluster(role.Name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kindClusterRole, Name: meta.Name})
	a.await("", role.policy(&a.where)[0])
}

func (a *Account) bindCluster(name string, ref rbacv1.RoleRef) {
	a.t.Helper()
	meta := metav1.ObjectMeta{Name: name + a.suffix}
	bindings := a.client.RbacV1().ClusterRoleBindings()
	a.must(bindings.Create(a.t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: a.subjects(), RoleRef: ref}, metav1.CreateOptions{}))
	a.later(func(ctx context.Context) error { return bindings.Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
}

// await waits until the API server knows that the account may do what a rule says
// in a namespace; empty: in all.
func (a *Account) await(namespace string, rule rbacv1.PolicyRule) {
	a.t.Helper()
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	name := ""
	if len(rule.ResourceNames) > 0 {
		name = rule.ResourceNames[0]
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: a.user(),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource, Name: name,
		},
	}}
	for end := time.Now().Add(grantTime); ; time.Sleep(5 * time.Millisecond) {
		answer, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(a.t.Context(), review, metav1.CreateOptions{})
		switch {
		case err != nil:
			a.t.Fatal(err)
		case answer.Status.Allowed:
			return
		case time.Now().After(end):
			a.t.Fatalf("%s has not got %v within %s: %s", a.name, rule, grantTime, answer.Status.Reason)
		}
	}
}

// user is the account's name as a user.
func (a *Account) user() string { return "system:serviceaccount:" + a.where.Own + ":" + a.name }

// REST returns the administrator's configuration with the account's credentials.
func (a *Account) REST() *rest.Config {
	config := rest.AnonymousClientConfig(a.admin)
	config.BearerToken = a.token
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &recorder{next: next, account: a} })
	return config
}

// Kubeconfig returns a file with the account's credentials, for programs. Their
// requests come through a proxy, which ends with the test.
func (a *Account) Kubeconfig() string {
	a.t.Helper()
	host, _, err := rest.DefaultServerUrlFor(a.admin)
	if err != nil {
		a.t.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(a.admin))
	if err != nil {
		a.t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: host.Scheme, Host: host.Host, Path: a.prefix})
		},
		Transport: &recorder{next: transport, account: a},
		// Watches come line by line.
		FlushInterval: -1,
		// Programs hang up when they like.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	proxy := httptest.NewTLSServer(forward)
	a.t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	config := clientcmdapi.NewConfig()
	const one = "test"
	config.CurrentContext = one
	config.Contexts[one] = &clientcmdapi.Context{Cluster: one, AuthInfo: one}
	config.Clusters[one] = &clientcmdapi.Cluster{
		Server:                   proxy.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw}),
	}
	config.AuthInfos[one] = &clientcmdapi.AuthInfo{Token: a.token}
	path := filepath.Join(a.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// report fails the test, once for the same thing.
func (a *Account) report(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over && !a.reported[text] {
		a.reported[text] = true
		a.t.Error(text)
	}
}

// counts tells whether a role's rules count for a request in a namespace; empty:
// in all, or outside of any.
func (a *Account) counts(role *Role, namespace string) bool {
	a.mu.Lock()
	without := a.without[a.manifest.short(role)]
	a.mu.Unlock()
	if without {
		return false
	}
	switch role.Scope {
	case Own:
		return namespace == a.where.Own
	case Served:
		return len(a.where.Serves) == 0 || slices.Contains(a.where.Serves, namespace)
	default:
		return true
	}
}
