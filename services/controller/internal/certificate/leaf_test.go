// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenAuthority is a CA that is always the same.
func goldenAuthority(t *testing.T) *Authority {
	t.Helper()
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "golden"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), deterministic{key})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a, err := authorityOf(certificate, nil, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leafIn(t *testing.T, l *Leaf) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(l.ChainPEM, l.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// describe writes what matters of a certificate.
func describe(c *x509.Certificate) string {
	var text strings.Builder
	fmt.Fprintf(&text, "subject: %s\nissuer: %s\nserial: %x\n", c.Subject, c.Issuer, c.SerialNumber)
	fmt.Fprintf(&text, "not before: %s\nnot after: %s\n", c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339))
	fmt.Fprintf(&text, "key: %s\nsignature: %s\n", c.PublicKeyAlgorithm, c.SignatureAlgorithm)
	fmt.Fprintf(&text, "CA: %v\nkey usage: %b (digital signature: %b, certificate sign: %b, CRL sign: %b)\nextended key usage: %v (server: %d)\n",
		c.IsCA, c.KeyUsage, x509.KeyUsageDigitalSignature, x509.KeyUsageCertSign, x509.KeyUsageCRLSign, c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	for _, name := range c.DNSNames {
		fmt.Fprintf(&text, "DNS: %s\n", name)
	}
	for _, ip := range c.IPAddresses {
		fmt.Fprintf(&text, "IP: %s\n", ip)
	}
	return text.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s mismatch (-want +got):\n%s", path, diff)
	}
}

// What is in a BMC's leaf, byte for byte: it must not change with a new version
// of the controller, or thousands of BMCs get new certificates at once.
func TestDerive_golden(t *testing.T) {
	t.Parallel()
	leaf, err := goldenAuthority(t).Derive(bmcUID, []string{bmcName, "vm-virtbmc.lab.svc.cluster.local", "10.96.7.8", "fd00::7"},
		90*day, time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "bmc.txt", describe(leafIn(t, leaf))+"renew: "+leaf.Renew.UTC().Format(time.RFC3339)+"\n"+string(leaf.ChainPEM))
}

func TestAuthority_golden(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	a, err := newAuthority(now, DefaultLifetimes.CA)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.issue([]string{"virtbmc-power.kubevirtbmc.svc", "virtbmc-power-headless.kubevirtbmc.svc"}, DefaultLifetimes.Leaf, now)
	if err != nil {
		t.Fatal(err)
	}
	got := describe(a.certificate) + "\n" + describe(leafIn(t, leaf)) + "renew: " + leaf.Renew.UTC().Format(time.RFC3339) + "\n"
	// What is random.
	for _, c := range []*x509.Certificate{a.certificate, leafIn(t, leaf)} {
		if c.SerialNumber.BitLen() != serialBits {
			t.Errorf("serial number of %d bits", c.SerialNumber.BitLen())
		}
		got = strings.ReplaceAll(got, fmt.Sprintf("%x", c.SerialNumber), "(random)")
	}
	name := strings.TrimPrefix(a.certificate.Subject.CommonName, "KubeVirtBMC CA ")
	golden(t, "service.txt", strings.ReplaceAll(got, name, "(serial)"))
}

func TestDerive(t *testing.T) {
	t.Parallel()
	a := goldenAuthority(t)
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	derive := func(a *Authority, who string, names []string, at time.Time) *Leaf {
		t.Helper()
		l, err := a.Derive(who, names, 90*day, at)
		if err != nil {
			t.Fatal(err)
		}
		if !at.Before(l.Renew) || l.Renew.Sub(at) > 60*day || at.Before(l.NotBefore) || l.NotAfter.Sub(at) < 30*day {
			t.Errorf("%s at %v: from %v to %v, renewed at %v", who, at, l.NotBefore, l.NotAfter, l.Renew)
		}
		return l
	}
	names := []string{"a.lab.svc", "10.0.0.1"}
	first := derive(a, bmcUID, names, now)
	restarted, err := parseAuthority(encode(a.certificate), a.keyPEM())
	if err != nil {
		t.Fatal(err)
	}
	for what, one := range map[string]struct {
		leaf              *Leaf
		sameLeaf, sameKey bool
	}{
		"again":                   {derive(a, bmcUID, names, now), true, true},
		"after a restart":         {derive(restarted, bmcUID, names, now), true, true},
		"just before its renewal": {derive(a, bmcUID, names, first.Renew.Add(-time.Second)), true, true},
		"at its renewal":          {derive(a, bmcUID, names, first.Renew), false, false},
		"with another address":    {derive(a, bmcUID, []string{"a.lab.svc", "10.0.0.2"}, now), false, true},
		"of another BMC":          {derive(a, "another", names, now), false, false},
	} {
		if got := bytes.Equal(one.leaf.ChainPEM, first.ChainPEM); got != one.sameLeaf {
			t.Errorf("%s: the same certificate: %v, want %v", what, got, one.sameLeaf)
		}
		if got := bytes.Equal(one.leaf.KeyPEM, first.KeyPEM); got != one.sameKey {
			t.Errorf("%s: the same key: %v, want %v", what, got, one.sameKey)
		}
	}
	other, err := newAuthority(now, DefaultLifetimes.CA)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(derive(other, bmcUID, names, now).KeyPEM, first.KeyPEM) {
		t.Error("two CAs derive the same key")
	}
	if _, err := a.Derive(bmcUID, nil, 90*day, now); err == nil {
		t.Error("a certificate without names was derived")
	}
	// Renewals do not fall on the same time, and serial numbers are not used twice.
	renewals, serials := map[time.Time]bool{}, map[string]bool{}
	for i := range 100 {
		l := derive(a, fmt.Sprint("bmc-", i), names, now)
		renewals[l.Renew.Truncate(day)] = true
		serials[leafIn(t, l).SerialNumber.String()] = true
	}
	if len(renewals) < 30 || len(serials) != 100 {
		t.Errorf("100 BMCs are renewed on %d days and have %d serial numbers", len(renewals), len(serials))
	}
	// A leaf does not outlive its CA.
	if last := derive(a, bmcUID, names, a.certificate.NotAfter.Add(-31*day)); last.NotAfter.After(a.certificate.NotAfter) {
		t.Errorf("a leaf is valid until %v, its CA until %v", last.NotAfter, a.certificate.NotAfter)
	}
}

// Leaves of an intermediate CA, of RSA, as cert-manager may make it: the chain has
// the intermediate and not the root.
func TestDerive_intermediate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	root := goldenRSA(t, "root", nil, nil)
	rootKey := root.key.(*rsa.PrivateKey)
	intermediate := goldenRSA(t, "intermediate", root.certificate, rootKey)
	a, err := parseAuthority(append(encode(intermediate.certificate), encode(root.certificate)...), intermediate.keyPEM())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Derive(bmcUID, []string{bmcName}, 90*day, now)
	if err != nil {
		t.Fatal(err)
	}
	again, err := a.Derive(bmcUID, []string{bmcName}, 90*day, now)
	if err != nil || !bytes.Equal(leaf.ChainPEM, again.ChainPEM) {
		t.Errorf("another leaf at the same time: %v", err)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root.certificate)
	block, rest := pem.Decode(leaf.ChainPEM)
	intermediates.AppendCertsFromPEM(rest)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: bmcName}); err != nil {
		t.Error(err)
	}
	if n := bytes.Count(leaf.ChainPEM, []byte("BEGIN")); n != 2 {
		t.Errorf("the chain has %d certificates, want 2", n)
	}
}

func goldenRSA(t *testing.T, name string, parent *x509.Certificate, parentKey *rsa.PrivateKey) *Authority {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * day), KeyUsage: x509.KeyUsageCertSign,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a, err := authorityOf(certificate, nil, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A leader that has just started derives those of all its BMCs.
func BenchmarkDerive(b *testing.B) {
	a, err := newAuthority(time.Now(), DefaultLifetimes.CA)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	for i := 0; b.Loop(); i++ {
		if _, err := a.Derive(fmt.Sprint("bmc-", i), []string{bmcName, "10.0.0.1"}, 90*day, now); err != nil {
			b.Fatal(err)
		}
	}
}
