//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/certs"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/certificate"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

const caBundle = "virtbmc-ca-bundle"

// certified makes a controller issue certificates.
func (s *site) certified(issuer certificate.Issuer) func(*reconciler.Config) {
	s.Helper()
	core, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	objects, err := metadata.NewForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	keeper, err := certificate.New(certificate.Config{
		Core: core.CoreV1(), Metadata: objects, Namespace: s.system, Issuer: issuer, CASecret: "virtbmc-ca", Bundle: caBundle,
		Lifetimes: certificate.Lifetimes{CA: 300 * 24 * time.Hour, Lead: 2 * time.Second, Leaf: 90 * 24 * time.Hour},
		Log:       slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		s.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	return func(c *reconciler.Config) {
		c.Certificates, c.ClusterDomain = keeper, "cluster.local"
		// Run afterwards, for it tells the source of its changes.
		s.after = func() { go func() { ended <- keeper.Run(ctx) }() }
	}
}

// roots are the CA certificates that are published.
func (s *site) roots() *x509.CertPool {
	s.Helper()
	var published corev1.ConfigMap
	if err := s.Get(s.Context(), client.ObjectKey{Namespace: s.system, Name: caBundle}, &published); err != nil {
		s.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(published.Data[certificate.KeyBundle]))
	return pool
}

// wantCertificate waits until a frontend serves a certificate that a check says is
// right.
func (s *site) wantCertificate(f *frontend, bmc string, check func(*x509.Certificate) error) *registryv1.Certificate {
	s.Helper()
	var got *registryv1.Certificate
	s.eventually("certificate of "+bmc, func() error {
		got = f.get(redfish, bmc).GetRedfish().GetCertificate()
		if got == nil {
			return errors.New("there is none")
		}
		pair, err := tls.X509KeyPair(got.GetChainPem(), got.GetPrivateKeyPem())
		if err != nil {
			return err
		}
		return check(pair.Leaf)
	})
	return got
}

// A BMC's certificate is for what clients call it, the same after a restart, and
// another when its address or its CA changes.
func TestCertificates_issued(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	controllers := []*controller{s.controller(s.certified(certificate.Internal)), s.controller(s.certified(certificate.Internal))}
	f := s.frontend("frontend-0", "10.0.0.1")
	bmc := s.complete("vm-0")
	s.wantReady(bmc)
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionTrue, v1beta1.ReasonCertificateIssued)
	valid := func(names ...string) func(*x509.Certificate) error {
		return func(leaf *x509.Certificate) error {
			for _, name := range names {
				if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.roots(), DNSName: name}); err != nil {
					return fmt.Errorf("for %s: %w", name, err)
				}
			}
			return nil
		}
	}
	names := []string{"vm-0-virtbmc." + s.namespace + ".svc", "vm-0-virtbmc." + s.namespace, bmc.Status.ClusterIP}
	first := s.wantCertificate(f, bmc.Name, valid(names...))

	// The one that leads ends.
	told := f.told()
	for i, c := range controllers {
		if len(c.Replicas(redfish)) > 0 {
			c.stop()
			other := controllers[1-i]
			s.eventually("frontends of the other", func() error {
				if status, ok := other.Status(registry.Ref{Namespace: s.namespace, Name: bmc.Name}, redfish); !ok || status.State != registry.Serving {
					return fmt.Errorf("state %v", status)
				}
				return nil
			})
			break
		}
	}
	if again := s.wantCertificate(f, bmc.Name, valid(names...)); !bytes.Equal(again.GetChainPem(), first.GetChainPem()) {
		t.Error("another certificate after a restart")
	}
	if n := f.told() - told; n > 0 {
		t.Errorf("the frontends were told of %d changes by the next controller", n)
	}

	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Service = &v1beta1.ServiceSpec{Type: v1beta1.ServiceTypeLoadBalancer}
	})
	service := s.service("vm-0-virtbmc")
	s.eventually("LoadBalancer", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(service), service); err != nil {
			return err
		}
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
			return errors.New("not yet")
		}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}, {Hostname: "bmc.example.com"}}
		return s.Status().Update(s.Context(), service)
	})
	// The host name may be one that the Service's annotations ask for.
	s.wantCertificate(f, bmc.Name, func(leaf *x509.Certificate) error {
		if leaf.VerifyHostname("bmc.example.com") == nil {
			t.Error("the certificate is for the load balancer's host name")
		}
		return valid(append(names, "192.0.2.7")...)(leaf)
	})

	var before corev1.ConfigMap
	if err := s.Get(s.Context(), client.ObjectKey{Namespace: s.system, Name: caBundle}, &before); err != nil {
		t.Fatal(err)
	}
	old := s.roots()
	s.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.system, Name: "virtbmc-ca"}})
	s.wantCertificate(f, bmc.Name, func(leaf *x509.Certificate) error {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: old}); err == nil {
			return errors.New("it is still the lost CA's")
		}
		return valid(names...)(leaf)
	})
	s.wantReady(bmc)
}

// wantExpiry waits until the metric says when a certificate expires.
func (s *site) wantExpiry(c *controller, maker string, certificate *registryv1.Certificate) {
	s.Helper()
	pair, err := tls.X509KeyPair(certificate.GetChainPem(), certificate.GetPrivateKeyPem())
	if err != nil {
		s.Fatal(err)
	}
	s.eventually("metric of the expiry", func() error {
		got, err := c.gauge("vbmc_controller_bmc_certificate_expiry_timestamp_seconds", maker)
		if want := float64(pair.Leaf.NotAfter.Unix()); err == nil && got != want {
			err = fmt.Errorf("it is %v, want %v", got, want)
		}
		return err
	})
}

// A user's certificate is served, followed, and kept when its Secret goes bad.
func TestCertificates_provided(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller(s.certified(certificate.Internal))
	f := s.frontend("frontend-0", "10.0.0.1")
	secret := func(life time.Duration, name string) map[string][]byte {
		ca, err := certs.NewAuthority("user's", 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.Issue([]string{name}, life)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		}
	}
	named := func(name string) func(*x509.Certificate) error {
		return func(leaf *x509.Certificate) error {
			if len(leaf.DNSNames) == 0 || leaf.DNSNames[0] != name {
				return fmt.Errorf("it is for %q, want %s", leaf.DNSNames, name)
			}
			return nil
		}
	}
	s.create(s.machine("vm-0"))
	s.create(s.secret("vm-0-secret", map[string]string{"username": "admin", "password": "first"}))
	bmc := s.bmc("vm-0")
	bmc.Spec.Redfish = &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{CertificateSecretRef: &v1beta1.SecretReference{Name: "mine"}}}
	s.create(bmc)
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionFalse, v1beta1.ReasonCertificateSecretNotFound)
	s.wantEvent(bmc, corev1.EventTypeWarning, v1beta1.ReasonCertificateSecretNotFound)
	own := "vm-0-virtbmc." + s.namespace + ".svc"
	s.wantExpiry(c, "controller", s.wantCertificate(f, bmc.Name, named(own)))

	mine := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: s.namespace}, Type: corev1.SecretTypeOpaque, Data: secret(time.Hour, "first.example.com")}
	s.create(mine)
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionTrue, v1beta1.ReasonCertificateProvided)
	s.wantReady(bmc)
	s.wantExpiry(c, "user", s.wantCertificate(f, bmc.Name, named("first.example.com")))
	if _, err := c.gauge("vbmc_controller_bmc_certificate_expiry_timestamp_seconds", "controller"); err == nil {
		t.Error("the metric still has the certificate that the user's has replaced")
	}
	change(s, mine, func(mine *corev1.Secret) { mine.Data = secret(time.Hour, "second.example.com") })
	s.wantCertificate(f, bmc.Name, named("second.example.com"))

	change(s, mine, func(mine *corev1.Secret) { mine.Data["tls.key"] = []byte("no key") })
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionFalse, v1beta1.ReasonCertificateInvalid)
	s.wantCertificate(f, bmc.Name, named("second.example.com"))
	change(s, mine, func(mine *corev1.Secret) { mine.Data = secret(-time.Minute, "expired.example.com") })
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionFalse, v1beta1.ReasonCertificateExpired)
	s.wantCertificate(f, bmc.Name, named("second.example.com"))
	// It expires while it is served.
	change(s, mine, func(mine *corev1.Secret) { mine.Data = secret(4*time.Second, "short.example.com") })
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionTrue, v1beta1.ReasonCertificateProvided)
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionFalse, v1beta1.ReasonCertificateExpired)
	s.wantExpiry(c, "user", s.wantCertificate(f, bmc.Name, named("short.example.com")))
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.Redfish = nil })
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionTrue, v1beta1.ReasonCertificateIssued)
	s.wantExpiry(c, "controller", s.wantCertificate(f, bmc.Name, named(own)))
}

// Without cert-manager, where it is to make the certificates, the condition says
// so, and with what it makes, work starts.
func TestCertificates_certManagerAbsent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller(s.certified(certificate.CertManager))
	f := s.frontend("frontend-0", "10.0.0.1")
	bmc := s.complete("vm-0")
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionFalse, v1beta1.ReasonCertificatePending)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cert-manager's"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "virtbmc-ca", Namespace: s.system}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		"tls.crt": chain, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "ca.crt": chain,
	}})
	s.wantCondition(bmc, v1beta1.ConditionCertificateReady, metav1.ConditionTrue, v1beta1.ReasonCertificateIssued)
	s.wantReady(bmc)
	s.wantCertificate(f, bmc.Name, func(leaf *x509.Certificate) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: s.roots(), DNSName: "vm-0-virtbmc." + s.namespace + ".svc"})
		return err
	})
}
