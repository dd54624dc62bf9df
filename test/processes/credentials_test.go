// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/certs"
)

// credentials are the files that services need to serve and to trust each other.
type credentials struct {
	dir string
	// Paths of the CA's certificate, a server's certificate and key, and a token.
	ca, cert, key, token string
}

func newCredentials(t *testing.T) *credentials {
	t.Helper()
	authority, err := certs.NewAuthority("test CA", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	c := &credentials{dir: t.TempDir()}
	c.ca = c.write(t, "ca.pem", authority.PEM())
	c.cert = c.write(t, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	c.key = c.write(t, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	c.token = c.write(t, "token", []byte(token+"\n"))
	return c
}

// write makes a file and returns its path.
func (c *credentials) write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve is the flags of a service that serves on an address.
func (c *credentials) serve(address string) []string {
	return []string{"--listen", address, "--tls-cert-file", c.cert, "--tls-key-file", c.key, "--token-file", c.token}
}
