// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPKI(t *testing.T) {
	dir := t.TempDir()
	admin := filepath.Join(dir, "kubeconfig")
	const server = "https://10.99.0.2:6443"
	ca, err := pki(dir, admin, server, net.IPv4(10, 96, 0, 1), net.IPv4(10, 99, 0, 2), net.IPv4(10, 99, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodePKI(ca, dir, server, nodeName(1), net.IPv4(10, 99, 0, 130)); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	b, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(b) {
		t.Fatalf("CA certificate: %v", err)
	}
	load := func(name string) *x509.Certificate {
		c, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf
	}
	for _, host := range []string{"10.99.0.2", "10.99.0.1", "10.96.0.1", "127.0.0.1", "kubernetes.default.svc"} {
		if _, err := load("apiserver").Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("apiserver as %s: %v", host, err)
		}
	}
	client := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if c := load("kubelet-node-2"); c.Subject.CommonName != "system:node:node-2" || c.Subject.Organization[0] != "system:nodes" {
		t.Errorf("kubelet is %s", c.Subject)
	} else if _, err := c.Verify(client); err != nil {
		t.Errorf("kubelet: %v", err)
	}
	if _, err := load("kubelet-serving-node-2").Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.99.0.130"}); err != nil {
		t.Errorf("kubelet as a server: %v", err)
	}
	if _, err := load("front-proxy-client").Verify(client); err == nil {
		t.Error("the front proxy's certificate is valid as a user's")
	}
	k, err := os.ReadFile(admin)
	if err != nil || !strings.Contains(string(k), "server: https://10.99.0.2:6443\n") || strings.Contains(string(k), "%!") {
		t.Errorf("kubeconfig is %q, %v", k, err)
	}
	if s, err := os.Stat(admin); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig has mode %v, %v, want 0600", s.Mode(), err)
	}
}
