//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/services/controller/internal/webhook"
	"kubevirtbmc.dev/services/controller/internal/webhook/bmc"
	"kubevirtbmc.dev/services/controller/internal/webhook/instance"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) { os.Exit(rbactest.RunPart(m, "controller")) }

// identity is a certificate whose issuer can be replaced.
type identity struct {
	mu          sync.Mutex
	certificate *tls.Certificate
	bundle      []byte
	changed     []func()
}

func (i *identity) Certificate() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.certificate, nil
}

func (i *identity) Bundle() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.bundle
}

func (i *identity) OnChange(changed func()) { i.changed = append(i.changed, changed) }

// renew has another CA issue the certificate.
func (i *identity) renew(t *testing.T, host string) {
	t.Helper()
	authority, err := certs.NewAuthority("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{host}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	i.certificate, i.bundle = leaf, authority.PEM()
	i.mu.Unlock()
	for _, changed := range i.changed {
		changed()
	}
}

// site is KUBECONFIG's cluster with a namespace whose objects are sent to webhooks
// of its own.
type site struct {
	*testing.T
	client.Client
	// power is the configuration of the power service, which arms overrides; config
	// and controller are the controller's, which may do what its manifest says.
	power, config *rest.Config
	controller    client.Client
	namespace     string
	host          string
	identity      *identity
	target        webhook.Target
	metrics       *prometheus.Registry
	store         *bmcresource.Store // the power service's

	mu       sync.Mutex
	warnings []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (s *site) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// warned returns the API server's warnings since the last call.
func (s *site) warned() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := strings.Join(s.warnings, "; ")
	s.warnings = nil
	return list
}

func newSite(t *testing.T) *site {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	id := strings.ToLower(rand.Text()[:8])
	s := &site{T: t, power: config, namespace: "hooks-" + id, identity: &identity{}, metrics: prometheus.NewRegistry()}
	config.QPS, config.Burst = 1000, 2000
	config.WarningHandlerWithContext = s
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, corev1.AddToScheme, kvv1.AddToScheme, admissionv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	bmcresourcetest.Install(t, config)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	t.Cleanup(func() {
		_ = s.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	})
	s.host = testport.HostFor(t, config.Host)
	s.identity.renew(t, s.host)
	s.target = webhook.Target{Name: "virtbmc-test-" + id, Namespace: s.namespace, Namespaces: []string{s.namespace}}
	s.config = rbactest.New(t, config, "controller", rbactest.Where{
		Own: s.namespace, Serves: s.target.Namespaces,
		Names: map[string]string{webhook.DefaultName("kubevirtbmc-system"): s.target.Name, "bmc.kubevirt.io:controller:cluster": s.target.Name},
	}).REST()
	s.config.WarningHandlerWithContext = rest.NoWarnings{}
	if s.controller, err = client.New(s.config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) eventually(what string, check func() error) {
	s.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	s.Fatalf("%s: %v", what, err)
}

func (s *site) create(object client.Object) {
	s.Helper()
	if err := s.Create(s.Context(), object); err != nil {
		s.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func (s *site) remove(object client.Object) {
	s.Helper()
	if err := s.Delete(s.Context(), object); err != nil {
		s.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
	s.eventually("gone", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("still there, %w", err)
		}
		return nil
	})
}

// serve serves the webhooks and registers them, until the test ends. What it
// returns ends the server and leaves them registered.
func (s *site) serve() (stop func()) {
	s.Helper()
	var err error
	if s.store, err = bmcresource.New(bmcresource.Config{REST: s.power, Namespaces: []string{s.namespace}, Log: s.log()}); err != nil {
		s.Fatal(err)
	}
	known, err := bmcresource.New(bmcresource.Config{REST: s.config, Namespaces: []string{s.namespace}, Log: s.log()})
	if err != nil {
		s.Fatal(err)
	}
	policies := s.policies(s.controller)
	instances, err := instance.New(instance.Config{
		BMCs: known, Live: s.controller, RebootPolicy: policies.Have, Log: s.log(), Metrics: s.metrics,
	})
	if err != nil {
		s.Fatal(err)
	}
	stop = s.answer(&s.target, instances, s.store.Run, known.Run, policies.Run)
	s.eventually("the API server asks, and BMCs are known", func() error {
		if !s.store.Ready() || !known.Ready() {
			return errors.New("BMCs are not known yet")
		}
		return s.asked()
	})
	s.warned()
	return stop
}

func (s *site) log() *slog.Logger { return slog.New(slog.NewTextHandler(output{s.T}, nil)) }

// answer serves webhooks, with what works beside them, and registers them.
func (s *site) answer(target *webhook.Target, instances admission.Handler, beside ...func(context.Context) error) (stop func()) {
	s.Helper()
	address := net.JoinHostPort(s.host, fmt.Sprint(testport.Free(s.T)))
	target.URL = "https://" + address
	server, err := webhook.NewServer(webhook.ServerConfig{
		Listen: address, Certificate: s.identity.Certificate, Scheme: s.Scheme(), Log: s.log(),
		Instance: instances, BMC: &bmc.Validator{Live: s.controller, IPMI: true},
	})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, run := range append(beside, server.Run) {
		group.Go(func() {
			if err := run(ctx); err != nil {
				s.Errorf("webhooks: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	s.Cleanup(stop)
	s.eventually("served", func() error {
		if !server.Serving() {
			return errors.New("not yet")
		}
		return nil
	})
	s.register(func(config *webhook.RegistrationConfig) {
		config.Target = *target
		if target != &s.target { // It is somebody else's.
			config.Client = s.Client
		}
	})
	return stop
}

// asked is an error unless the API server asks the webhooks.
func (s *site) asked() error {
	err := s.Create(s.Context(), &v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: s.namespace}}, client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "names the VirtualMachine that the BMC is for") {
		return errors.Join(errors.New("a BMC of no machine was taken"), err)
	}
	return nil
}

// register keeps the webhooks registered until the test ends, or stop is called.
func (s *site) register(edit ...func(*webhook.RegistrationConfig)) (stop func()) {
	s.Helper()
	config := webhook.RegistrationConfig{
		Client: s.controller, Target: s.target, Identity: s.identity, Log: s.log(), Metrics: prometheus.NewRegistry(),
	}
	for _, e := range edit {
		e(&config)
	}
	registration, err := webhook.NewRegistration(config)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- registration.Run(ctx, func() {}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("registration: %v", err)
		}
	})
	s.Cleanup(func() {
		stop()
		if err := webhook.Deregister(context.Background(), config.Client, config.Target); err != nil {
			s.Error(err)
		}
	})
	return stop
}

// output is a test's log, until its end.
type output struct{ t *testing.T }

func (o output) Write(line []byte) (int, error) { return o.t.Output().Write(line) }

// machine makes a VirtualMachine that is off.
func (s *site) machine(name string) *kvv1.VirtualMachine {
	s.Helper()
	strategy := kvv1.RunStrategyHalted
	vm := &kvv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec:       kvv1.VirtualMachineSpec{RunStrategy: &strategy, Template: &kvv1.VirtualMachineInstanceTemplateSpec{}},
	}
	s.create(vm)
	return vm
}

func (s *site) secret(name string, data map[string]string) *corev1.Secret {
	s.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}, StringData: data}
	s.create(secret)
	return secret
}

// bmc is a VirtualMachineBMC that is not made yet.
func (s *site) bmc(name, machine, secret string) *v1beta1.VirtualMachineBMC {
	return &v1beta1.VirtualMachineBMC{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec: v1beta1.VirtualMachineBMCSpec{
			VirtualMachineRef: &v1beta1.LocalObjectReference{Name: machine},
			AuthSecretRef:     &v1beta1.LocalObjectReference{Name: secret},
		},
	}
}

// change changes an object that others change too.
func change[T client.Object](s *site, object T, edit func(T)) error {
	s.Helper()
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		s.Fatal(err)
	}
	edit(object)
	return s.Update(s.Context(), object)
}
