//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
)

const patience = 60 * time.Second

// What the tests use of the controller's rights counts with what others use.
func TestMain(m *testing.M) { os.Exit(rbactest.RunPart(m, "controller")) }

// bed is a namespace of KUBECONFIG's cluster, and the controller's ServiceAccount
// there, with what its manifest says.
type bed struct {
	*testing.T
	client    kubernetes.Interface
	admin     *rest.Config
	config    *rest.Config // the account's
	namespace string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := newNamespace(t)
	b.config = rbactest.New(t, b.admin, "controller", rbactest.Where{Own: b.namespace, Serves: []string{b.namespace}}).REST()
	return b
}

// newNamespace makes a bed without an account.
func newNamespace(t *testing.T) *bed {
	t.Helper()
	admin := bmcresourcetest.Cluster(t)
	admin.QPS, admin.Burst = 500, 1000
	b := &bed{T: t, admin: admin, namespace: "system-" + strings.ToLower(rand.Text()[:8])}
	var err error
	if b.client, err = kubernetes.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	b.must(b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		_ = b.client.CoreV1().Namespaces().Delete(context.Background(), b.namespace, metav1.DeleteOptions{})
	})
	return b
}

func (b *bed) must(_ any, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// services are all that the manifest names.
func services() []Service {
	return append(testConfig().Services,
		Service{Secret: "virtbmc-media-tls", Names: []string{"virtbmc-media.kubevirtbmc.svc"}},
		Service{Secret: "virtbmc-frontend-redfish-tls", Names: []string{"virtbmc-frontend-redfish.kubevirtbmc.svc"}})
}

// run runs a keeper until the returned function is called or the test ends.
func (b *bed) run(edit ...func(*Config)) (*Keeper, func()) {
	b.Helper()
	client, err := kubernetes.NewForConfig(b.config)
	if err != nil {
		b.Fatal(err)
	}
	config := testConfig()
	config.Services = services()
	if config.Metadata, err = metadata.NewForConfig(b.config); err != nil {
		b.Fatal(err)
	}
	config.Core, config.Namespace, config.Metrics = client.CoreV1(), b.namespace, prometheus.NewRegistry()
	config.Log = slog.New(slog.NewTextHandler(b.Output(), nil))
	for _, e := range edit {
		e(&config)
	}
	k, err := New(config)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(stop)
	return k, stop
}

func (b *bed) eventually(what string, check func() error) {
	b.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	b.Fatalf("%s: %v", what, err)
}

func (b *bed) cas() (*state, error) {
	secret, err := b.client.CoreV1().Secrets(b.namespace).Get(b.Context(), caSecret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var s state
	return &s, json.Unmarshal(secret.Data[keyState], &s)
}

// agree checks that all keepers have the same CA and certificates.
func agree(keepers ...*Keeper) error {
	var first *Leaf
	for _, k := range keepers {
		leaf, err := k.Leaf(bmcUID, []string{bmcName})
		if err != nil {
			return err
		}
		if first == nil {
			first = leaf
		}
		if string(leaf.ChainPEM) != string(first.ChainPEM) {
			return errors.New("they derive different leaves")
		}
		own, err := k.Certificate()
		if err != nil {
			return err
		}
		if other, _ := keepers[0].Certificate(); !samePair(own, other) {
			return errors.New("they have different certificates of their own")
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(k.Bundle())
		pair, err := tls.X509KeyPair(leaf.ChainPEM, leaf.KeyPEM)
		if err != nil {
			return err
		}
		for name, certificate := range map[string]*x509.Certificate{bmcName: pair.Leaf, "virtbmc-controller.kubevirtbmc.svc": own.Leaf} {
			if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Many controllers that start at once, with no more rights than those of named
// objects, agree on one CA and one certificate of each service; and again when
// something is deleted under them.
func TestKeeper_racingControllers(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	keepers := make([]*Keeper, 5)
	for i := range keepers {
		keepers[i], _ = b.run(func(c *Config) { c.Lifetimes.Lead = 2 * time.Second })
	}
	b.eventually("one CA", func() error { return agree(keepers...) })
	first, err := b.cas()
	if err != nil {
		t.Fatal(err)
	}
	if first.current == nil || first.next != nil || len(first.former) != 0 {
		t.Errorf("%d CAs were made", len(first.certificates()))
	}
	core := b.client.CoreV1()
	if err := core.Secrets(b.namespace).Delete(t.Context(), "virtbmc-power-tls", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("Secret made again", func() error {
		_, err := core.Secrets(b.namespace).Get(t.Context(), "virtbmc-power-tls", metav1.GetOptions{})
		return err
	})
	if err := core.ConfigMaps(b.namespace).Delete(t.Context(), "virtbmc-ca-bundle", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("ConfigMap made again", func() error {
		_, err := core.ConfigMaps(b.namespace).Get(t.Context(), "virtbmc-ca-bundle", metav1.GetOptions{})
		return err
	})
	if err := core.Secrets(b.namespace).Delete(t.Context(), caSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("another CA that signs", func() error {
		s, err := b.cas()
		switch {
		case err != nil:
			return err
		case s.current == nil:
			return errors.New("none signs yet")
		case len(s.former) != 1 || !contains(s.certificates(), first.current.certificate):
			return fmt.Errorf("%d former CAs are trusted, want the one whose key was lost", len(s.former))
		}
		return agree(keepers...)
	})
	b.eventually("the same view of all", func() error { return agree(keepers...) })
	restarted, _ := b.run()
	b.eventually("the same leaves after a restart", func() error { return agree(append(keepers, restarted)...) })
}

// CAs and leaves rotate within a minute, kept by two controllers of which one or
// the other is away: at each moment both can be verified with what is published.
func TestKeeper_rotation(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	short := func(c *Config) {
		// Leaves are renewed 4 s before they expire.
		c.Lifetimes = Lifetimes{CA: 48 * time.Second, Lead: 4 * time.Second, Leaf: 12 * time.Second}
	}
	first, stop := b.run(short)
	second, _ := b.run(short)
	b.eventually("a CA", func() error { return agree(first, second) })
	seen := map[string]bool{}
	const enough = 3 * time.Minute // They sign for 32 s each.
	for end := time.Now().Add(enough); len(seen) < 3; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d CAs have signed within %v, want 3", len(seen), enough)
		}
		s, err := b.cas()
		if err != nil {
			t.Fatal(err)
		}
		if s.current == nil {
			t.Fatal("no CA signs")
		}
		seen[string(s.current.certificate.Raw)] = true
		if len(seen) == 2 {
			stop()
		}
		published, err := b.client.CoreV1().ConfigMaps(b.namespace).Get(t.Context(), "virtbmc-ca-bundle", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(published.Data[KeyBundle]))
		for _, service := range services() {
			secret, err := b.client.CoreV1().Secrets(b.namespace).Get(t.Context(), service.Secret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pair := pairIn(secret)
			if pair == nil {
				t.Fatalf("Secret %s has no certificate", service.Secret)
			}
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: service.Names[0]}); err != nil {
				t.Errorf("%s: %v", service.Secret, err)
			}
		}
	}
}

// The same failure twice is one event that counts, with its end beside it.
func TestKeeper_events(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sink, err := typedeventsv1.NewForConfig(b.config)
	if err != nil {
		t.Fatal(err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: sink})
	t.Cleanup(broadcaster.Shutdown)
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, _ := b.run(func(c *Config) {
		c.Lifetimes.Lead = 2 * time.Second
		c.Events = broadcaster.NewRecorder(scheme.Scheme, "virtbmc-controller")
	})
	b.eventually("a CA", func() error { return agree(k) })
	secrets := b.client.CoreV1().Secrets(b.namespace)
	event := func(reason string, counted bool) {
		t.Helper()
		b.eventually("event "+reason, func() error {
			list, err := b.client.EventsV1().Events(b.namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.Reason == reason && e.Regarding.Name == "virtbmc-ca-bundle" && (e.Series != nil) == counted {
					return nil
				}
			}
			return fmt.Errorf("none of %d events", len(list.Items))
		})
	}
	for _, again := range []bool{false, true} {
		broken := []byte(`{"data":{"` + keyState + `":"YnJva2Vu"}}`)
		b.must(secrets.Patch(t.Context(), caSecret, types.MergePatchType, broken, metav1.PatchOptions{}))
		event("CertificatesFailed", again)
		if err := secrets.Delete(t.Context(), caSecret, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		event("CertificatesKept", again)
	}
}

// What a keeper may not do it says, and does when it may.
func TestKeeper_forbidden(t *testing.T) {
	t.Parallel()
	b := newNamespace(t)
	name := metav1.ObjectMeta{Name: "controller"}
	// An account of its own, since what the controller's is refused is a failure.
	b.must(b.client.CoreV1().ServiceAccounts(b.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: name}, metav1.CreateOptions{}))
	token, err := b.client.CoreV1().ServiceAccounts(b.namespace).CreateToken(t.Context(), name.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.config = rest.AnonymousClientConfig(b.admin)
	b.config.BearerToken = token.Status.Token
	k, _ := b.run()
	failures := func() float64 {
		return counted(t, k.config.Metrics.(*prometheus.Registry), "vbmc_controller_certificate_failures_total")
	}
	b.eventually("failures", func() error {
		if failures() == 0 {
			return errors.New("none is counted")
		}
		return nil
	})
	select {
	case <-k.Known():
	case <-t.Context().Done():
		t.Error("who waits for the CA waits for ever")
	}
	if _, err := k.Leaf("uid", []string{"bmc"}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("leaf without a right: %v", err)
	}
	b.must(b.client.RbacV1().Roles(b.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: []string{"get", "list", "watch", "create", "update"}},
	}}, metav1.CreateOptions{}))
	b.must(b.client.RbacV1().RoleBindings(b.namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: name,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: b.namespace, Name: name.Name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
	}, metav1.CreateOptions{}))
	b.eventually("a CA", func() error { return agree(k) })
	if counted(t, k.config.Metrics.(*prometheus.Registry), "vbmc_controller_certificate_expiry_timestamp_seconds") < float64(time.Now().Unix()) {
		t.Error("no metric tells when the certificates expire")
	}
}

// counted is the least value of a metric.
func counted(t *testing.T, metrics *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}
