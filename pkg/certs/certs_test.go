// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certs_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/certs"
)

func newAuthority(t *testing.T) *certs.Authority {
	t.Helper()
	ca, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *certs.Authority, hosts ...string) *tls.Certificate {
	t.Helper()
	certificate, err := ca.Issue(hosts, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func TestIssue_isTrustedForItsHostsOnly(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	leaf := issue(t, ca, "bmc.example", "127.0.0.1", "::1").Leaf
	for host, want := range map[string]bool{"bmc.example": true, "127.0.0.1": true, "::1": true, "other.example": false, "127.0.0.2": false} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), DNSName: host})
		if (err == nil) != want {
			t.Errorf("Verify for %s: %v, want trusted %v", host, err, want)
		}
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: newAuthority(t).Pool(), DNSName: "bmc.example"}); err == nil {
		t.Error("another authority of the same name is trusted")
	}
	if _, err := ca.Issue(nil, time.Hour); err == nil {
		t.Error("a certificate without hosts was issued")
	}
}

func TestFiles_rotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca := newAuthority(t)
	write := func(certificate *tls.Certificate, when time.Time) {
		t.Helper()
		key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey.(*ecdsa.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		for file, block := range map[string]*pem.Block{
			certFile: {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]},
			keyFile:  {Type: "PRIVATE KEY", Bytes: key},
		} {
			if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(file, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := certs.LoadFiles(certFile, keyFile); err == nil {
		t.Fatal("missing files were loaded")
	}
	first, second := issue(t, ca, "a.example"), issue(t, ca, "b.example")
	write(first, time.Unix(1000, 0))
	synctest.Test(t, func(t *testing.T) {
		files, err := certs.LoadFiles(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		check := func(when, want string) {
			t.Helper()
			got, err := files.Certificate()
			if err != nil {
				t.Fatal(err)
			}
			if name := got.Leaf.DNSNames[0]; name != want {
				t.Errorf("%s: certificate of %s, want %s", when, name, want)
			}
		}
		check("at first", "a.example")
		write(second, time.Unix(2000, 0))
		time.Sleep(10 * time.Second)
		check("after rotation", "b.example")
		if err := os.WriteFile(keyFile, []byte("half a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		check("in the middle of a rotation", "b.example")
		write(first, time.Unix(3000, 0))
		time.Sleep(10 * time.Second)
		check("after it", "a.example")
	})
}
