// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"
)

// maxCommonName is what a common name has room for (RFC 5280 appendix A.1).
const maxCommonName = 64

// Leaf is a server's certificate with its key.
type Leaf struct {
	// ChainPEM is the certificate and those between it and the root.
	ChainPEM []byte
	// KeyPEM is never logged.
	KeyPEM              []byte
	NotBefore, NotAfter time.Time
	// Renew is when another is to take its place.
	Renew time.Time
}

// renewal is when a certificate is to be renewed: after two thirds of its life.
func renewal(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) / 3 * 2)
}

// issue makes a leaf with a new key for names, which are DNS names and IP
// addresses, that lives from now on.
func (a *Authority) issue(names []string, life time.Duration, now time.Time) (*Leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := randomSerial()
	if err != nil {
		return nil, err
	}
	leaf, err := a.sign(names, key, serial, now.Add(-backdating(life)), now.Add(life))
	if err != nil {
		return nil, err
	}
	leaf.Renew = renewal(leaf.NotBefore, leaf.NotAfter)
	return leaf, nil
}

// Derive returns the leaf that somebody has at a time: the same whenever and
// wherever it is asked for, until the time of its renewal or with other names. Who
// it is is never used again; a UID. Renewals of many fall on different times.
func (a *Authority) Derive(who string, names []string, life time.Duration, now time.Time) (*Leaf, error) {
	period := int64(life/time.Second) * 2 / 3
	if period <= 0 {
		return nil, errors.New("derive certificate: it would live for less than 2 s")
	}
	seed, err := hkdf.Key(sha256.New, a.secret, nil, "kubevirtbmc renewal "+who, 8)
	if err != nil {
		return nil, fmt.Errorf("derive certificate: %w", err)
	}
	offset := int64(binary.BigEndian.Uint64(seed) % uint64(period)) //nolint:gosec // It is below period.
	second := now.Unix() - offset
	start := time.Unix(second-second%period+offset, 0)
	key, err := a.deriveKey(fmt.Sprintf("%s %d", who, start.Unix()))
	if err != nil {
		return nil, err
	}
	notBefore, notAfter := start.Add(-backdating(life)), start.Add(life)
	number, err := hkdf.Key(sha256.New, a.secret, nil, fmt.Sprintf("kubevirtbmc serial %s %d %d %q", who, notBefore.Unix(), notAfter.Unix(), names), serialBits/8+1)
	if err != nil {
		return nil, fmt.Errorf("derive certificate: %w", err)
	}
	serial := new(big.Int).SetBytes(number)
	serial.SetBit(serial, serialBits, 0).SetBit(serial, serialBits-1, 1)
	leaf, err := a.sign(names, key, serial, notBefore, notAfter)
	if err != nil {
		return nil, err
	}
	leaf.Renew = start.Add(time.Duration(period) * time.Second)
	return leaf, nil
}

// deriveKey makes a key of the CA's, by extra random bits (FIPS 186-5, A.2.1).
func (a *Authority) deriveKey(info string) (*ecdsa.PrivateKey, error) {
	curve := elliptic.P256()
	size := (curve.Params().BitSize + 7) / 8
	random, err := hkdf.Key(sha256.New, a.secret, nil, "kubevirtbmc key "+info, size+16)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	most := new(big.Int).Sub(curve.Params().N, big.NewInt(1))
	d := new(big.Int).SetBytes(random)
	d.Mod(d, most).Add(d, big.NewInt(1))
	key, err := ecdsa.ParseRawPrivateKey(curve, d.FillBytes(make([]byte, size)))
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return key, nil
}

// deterministic signs the same with the same signature (RFC 6979 for ECDSA).
type deterministic struct{ crypto.Signer }

// Sign implements crypto.Signer.
func (d deterministic) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if key, ok := d.Signer.(*ecdsa.PrivateKey); ok {
		return key.Sign(nil, digest, opts)
	}
	return d.Signer.Sign(rand.Reader, digest, opts)
}

// sign makes a certificate that does not outlive the CA's.
func (a *Authority) sign(names []string, key *ecdsa.PrivateKey, serial *big.Int, notBefore, notAfter time.Time) (*Leaf, error) {
	if len(names) == 0 {
		return nil, errors.New("issue certificate: no host named")
	}
	if notBefore.Before(a.certificate.NotBefore) {
		notBefore = a.certificate.NotBefore
	}
	if notAfter.After(a.certificate.NotAfter) {
		notAfter = a.certificate.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{organization}},
		NotBefore:             notBefore.UTC().Truncate(time.Second),
		NotAfter:              notAfter.UTC().Truncate(time.Second),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(names[0]) <= maxCommonName {
		template.Subject.CommonName = names[0]
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), deterministic{a.key})
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return &Leaf{
		ChainPEM:  slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), a.chain),
		KeyPEM:    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		NotBefore: template.NotBefore,
		NotAfter:  template.NotAfter,
	}, nil
}

// namesIn are the names that a certificate is for.
func namesIn(certificate *x509.Certificate) []string {
	names := slices.Clone(certificate.DNSNames)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// sameNames tells whether both are the same, in any order.
func sameNames(a, b []string) bool {
	order := func(names []string) []string {
		list := slices.Clone(names)
		for i, name := range list {
			list[i] = strings.ToLower(name)
			if ip := net.ParseIP(name); ip != nil {
				list[i] = ip.String()
			}
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	return slices.Equal(order(a), order(b))
}
