// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// organization of all certificates.
const organization = "KubeVirtBMC"

// maxBackdating is for clients whose clocks are behind.
const maxBackdating = time.Hour

// backdating is how long before its issue a certificate is valid from: less for
// one that lives for a short time.
func backdating(life time.Duration) time.Duration { return min(maxBackdating, life/4) }

// Authority is a CA that signs.
type Authority struct {
	certificate *x509.Certificate
	// chain are the PEM certificates between its leaves and the root, that of a
	// root excluded.
	chain []byte
	key   crypto.Signer
	// secret is the key, from which those of BMCs are derived.
	secret []byte
}

// newAuthority makes a CA with a new key that lives from now on.
func newAuthority(now time.Time, life time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	serial, err := randomSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// A name of its own, for clients that choose issuers by name.
		Subject:               pkix.Name{CommonName: "KubeVirtBMC CA " + hex.EncodeToString(serial.Bytes()[:4]), Organization: []string{organization}},
		NotBefore:             now.Add(-backdating(life)),
		NotAfter:              now.Add(life),
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	return authorityOf(certificate, nil, key)
}

// parseAuthority reads a CA: its certificate, followed by those between it and
// the root, if there are any, and its key. Errors hold nothing of the key.
func parseAuthority(chainPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(chainPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	switch {
	case !ok:
		return nil, errors.New("read CA: its key can't sign")
	case !pair.Leaf.IsCA, pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("read CA: its certificate is not that of a CA")
	}
	var chain []byte
	for _, der := range pair.Certificate {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		if !selfSigned(certificate) {
			chain = append(chain, encode(certificate)...)
		}
	}
	return authorityOf(pair.Leaf, chain, key)
}

func authorityOf(certificate *x509.Certificate, chain []byte, key crypto.Signer) (*Authority, error) {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("read CA key: %w", err)
	}
	return &Authority{certificate, chain, key, secret}, nil
}

// keyPEM returns the key, for the Secret.
func (a *Authority) keyPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: a.secret})
}

// is tells whether both are the same CA.
func (a *Authority) is(other *Authority) bool {
	return a != nil && other != nil && bytes.Equal(a.certificate.Raw, other.certificate.Raw)
}

// validAt tells whether a certificate is valid at a time.
func validAt(certificate *x509.Certificate, now time.Time) bool {
	return !now.Before(certificate.NotBefore) && !now.After(certificate.NotAfter)
}

// expiredAt tells whether a certificate is valid neither at a time nor later.
func expiredAt(certificate *x509.Certificate, now time.Time) bool {
	return now.After(certificate.NotAfter)
}

func selfSigned(certificate *x509.Certificate) bool {
	return bytes.Equal(certificate.RawSubject, certificate.RawIssuer) && certificate.CheckSignatureFrom(certificate) == nil
}

func encode(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// serialBits keep serial numbers positive and below the 20 bytes of RFC 5280
// section 4.1.2.2.
const serialBits = 127

func randomSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return serial.SetBit(serial, serialBits-1, 1), nil
}
