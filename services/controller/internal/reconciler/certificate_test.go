// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

func TestWanted_names(t *testing.T) {
	t.Parallel()
	w := wanted{ref: registry.Ref{Namespace: "lab", Name: "bmc"}, machine: "vm"}
	dns := []string{"vm-virtbmc.lab.svc", "vm-virtbmc.lab.svc.cluster.local", "vm-virtbmc.lab"}
	balanced := func(kind corev1.ServiceType, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{
			Spec:   corev1.ServiceSpec{Type: kind, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00::7"}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
		}
	}
	for name, test := range map[string]struct {
		service *corev1.Service
		want    []string
	}{
		"no Service":         {nil, nil},
		"no address yet":     {&corev1.Service{}, nil},
		"headless":           {&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, nil},
		"of the cluster":     {balanced(corev1.ServiceTypeClusterIP), []string{"10.96.0.7", "fd00::7"}},
		"with a former type": {balanced(corev1.ServiceTypeClusterIP, corev1.LoadBalancerIngress{IP: "192.0.2.1"}), []string{"10.96.0.7", "fd00::7"}},
		"load balancer": {
			balanced(corev1.ServiceTypeLoadBalancer, corev1.LoadBalancerIngress{IP: "192.0.2.9"}, corev1.LoadBalancerIngress{IP: "192.0.2.1"}, corev1.LoadBalancerIngress{Hostname: "bmc.example.com"}),
			[]string{"10.96.0.7", "192.0.2.1", "192.0.2.9", "fd00::7"},
		},
		"with others' addresses": {
			&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ExternalIPs: []string{"10.96.200.200"}, LoadBalancerIP: "192.0.2.1", ExternalName: "x.example.com"}},
			[]string{"10.96.0.7"},
		},
	} {
		if diff := cmp.Diff(append(dns[:3:3], test.want...), w.names("cluster.local", test.service)); diff != "" {
			t.Errorf("%s: names mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestProvidedIn(t *testing.T) {
	t.Parallel()
	fine, other := userSecret(t, time.Hour), userSecret(t, time.Hour)
	for name, test := range map[string]struct {
		data map[string][]byte
		want string // why it is invalid; empty: it is not
	}{
		"fine":                {fine, ""},
		"empty":               {nil, "key tls.crt is missing or empty"},
		"no key":              {map[string][]byte{"tls.crt": fine["tls.crt"]}, "key tls.key is missing or empty"},
		"a text":              {map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")}, "failed to find any PEM data"},
		"another's key":       {map[string][]byte{"tls.crt": fine["tls.crt"], "tls.key": other["tls.key"]}, "private key does not match"},
		"the wrong way round": {map[string][]byte{"tls.crt": fine["tls.key"], "tls.key": fine["tls.crt"]}, "PEM"},
	} {
		got, trouble := providedIn("s", test.data)
		switch {
		case test.want == "" && (trouble != nil || !got.validAt(time.Now())):
			t.Errorf("%s: %+v", name, trouble)
		case test.want == "":
		case trouble == nil || trouble.reason != v1beta1.ReasonCertificateInvalid || !strings.Contains(trouble.message, test.want):
			t.Errorf("%s: %+v, want %q", name, trouble, test.want)
		case strings.Contains(trouble.message, "BEGIN"):
			t.Errorf("%s: the message has what the Secret has: %s", name, trouble.message)
		}
	}
}

// userSecret is a certificate of a user's CA.
func userSecret(t *testing.T, life time.Duration) map[string][]byte {
	t.Helper()
	ca, err := certs.NewAuthority("user's CA", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue([]string{"bmc.example.com"}, life)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyOf(t, leaf)}),
	}
}

func TestProvided_choose(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	at := func(from, to int) *served {
		return &served{notBefore: now.Add(time.Duration(from) * time.Hour), notAfter: now.Add(time.Duration(to) * time.Hour)}
	}
	valid, older, expired, future := at(-1, 2), at(-2, 1), at(-2, -1), at(1, 2)
	broken := &trouble{v1beta1.ReasonCertificateInvalid, "broken"}
	for name, test := range map[string]struct {
		provided provided
		want     *served
		reason   string
		due      time.Time
	}{
		"valid":                    {provided{has: valid}, valid, "", now.Add(2*time.Hour + time.Second)},
		"broken, none before":      {provided{trouble: broken}, nil, v1beta1.ReasonCertificateInvalid, time.Time{}},
		"broken, a good before":    {provided{trouble: broken, good: older}, older, v1beta1.ReasonCertificateInvalid, now.Add(time.Hour + time.Second)},
		"broken, expired before":   {provided{trouble: broken, good: expired}, nil, v1beta1.ReasonCertificateInvalid, time.Time{}},
		"expired, none before":     {provided{has: expired}, expired, v1beta1.ReasonCertificateExpired, time.Time{}},
		"expired, a good before":   {provided{has: expired, good: older}, older, v1beta1.ReasonCertificateExpired, now.Add(time.Hour + time.Second)},
		"not yet, a good before":   {provided{has: future, good: older}, older, v1beta1.ReasonCertificateExpired, now.Add(time.Hour)},
		"expired while it is used": {provided{has: expired, good: expired}, expired, v1beta1.ReasonCertificateExpired, time.Time{}},
	} {
		chosen := test.provided.choose(now)
		if chosen != test.want {
			t.Errorf("%s: serves %+v, want %+v", name, chosen, test.want)
		}
		var reason string
		if problem := test.provided.problem(now); problem != nil {
			reason = problem.reason
		}
		if reason != test.reason {
			t.Errorf("%s: reason %q, want %q", name, reason, test.reason)
		}
		if due := earlier(test.provided.has.due(now), chosen.due(now)); !due.Equal(test.due) {
			t.Errorf("%s: looks again at %v, want %v", name, due, test.due)
		}
	}
}

func keyOf(t *testing.T, leaf *tls.Certificate) []byte {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
