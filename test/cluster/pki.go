// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"
)

// authority is a certificate authority that lives in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// leaf describes a certificate to issue.
type leaf struct {
	// name is the base name of the files.
	name string
	// user and groups become the subject.
	user   string
	groups []string
	// dns and ips make it a server's certificate; without them it is a client's.
	dns []string
	ips []net.IP
}

// certificateLife is how long certificates are valid; a cluster lives for
// hours.
const certificateLife = 30 * 24 * time.Hour

// newAuthority makes an authority and writes name.crt and name.key.
func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(certificateLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if err := writeFile(filepath.Join(dir, name+".crt"), a.pem, 0o644); err != nil {
		return nil, err
	}
	_, err = writeKey(filepath.Join(dir, name+".key"), key)
	return a, err
}

// issue makes a certificate, writes its two files and returns their contents.
func (a *authority) issue(l leaf) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	usage := x509.ExtKeyUsageClientAuth
	if len(l.dns)+len(l.ips) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: l.user, Organization: l.groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
		DNSNames:     l.dns,
		IPAddresses:  l.ips,
	}, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := writeFile(filepath.Join(a.dir, l.name+".crt"), cert, 0o644); err != nil {
		return nil, nil, err
	}
	key, err = writeKey(filepath.Join(a.dir, l.name+".key"), k)
	return cert, key, err
}

// kubeconfig issues a client's certificate and writes a kubeconfig that holds
// it to path.
func (a *authority) kubeconfig(path, server string, l leaf) error {
	cert, key, err := a.issue(l)
	if err != nil {
		return err
	}
	b64 := base64.StdEncoding.EncodeToString
	return writeFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %[3]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- name: testbed
  context: {cluster: testbed, user: "%[3]s"}
current-context: testbed
`, server, b64(a.pem), l.name, b64(cert), b64(key)), 0o600)
}

// writeKey writes a private key and returns what it wrote.
func writeKey(path string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return b, writeFile(path, b, 0o600)
}

// pki writes all certificates and kubeconfigs of a cluster to dir, and the
// administrator's kubeconfig to admin. The apiserver's certificate is valid
// for ips. Nodes have certificates of their own, see nodePKI.
func pki(dir, admin, server string, serviceIP net.IP, ips ...net.IP) (*authority, error) {
	ca, err := newAuthority(dir, "ca")
	if err != nil {
		return nil, err
	}
	frontProxy, err := newAuthority(dir, "front-proxy-ca")
	if err != nil {
		return nil, err
	}
	serviceAccounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if _, err := writeKey(filepath.Join(dir, "sa.key"), serviceAccounts); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(serviceAccounts.Public())
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(dir, "sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return nil, err
	}
	loopback := net.IPv4(127, 0, 0, 1)
	masters := []string{"system:masters"}
	for _, l := range []leaf{
		{name: "apiserver", user: "kube-apiserver", dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}, ips: append([]net.IP{loopback, serviceIP}, ips...)},
		{name: "apiserver-kubelet", user: "apiserver-kubelet-client", groups: masters},
		{name: "dns", user: "system:kube-dns"},
	} {
		if _, _, err := ca.issue(l); err != nil {
			return nil, err
		}
	}
	if _, _, err := frontProxy.issue(leaf{name: "front-proxy-client", user: "front-proxy-client"}); err != nil {
		return nil, err
	}
	for path, l := range map[string]leaf{
		admin: {name: "admin", user: "admin", groups: masters},
		filepath.Join(dir, "controller-manager.kubeconfig"): {name: "controller-manager", user: "system:kube-controller-manager"},
		filepath.Join(dir, "scheduler.kubeconfig"):          {name: "scheduler", user: "system:kube-scheduler"},
		filepath.Join(dir, "proxy.kubeconfig"):              {name: "proxy", user: "system:kube-proxy"},
	} {
		if err := ca.kubeconfig(path, server, l); err != nil {
			return nil, err
		}
	}
	return ca, nil
}

// nodePKI writes the certificates of a node's kubelet, and its kubeconfig, to dir.
func nodePKI(ca *authority, dir, server, name string, ip net.IP) error {
	user, groups := "system:node:"+name, []string{"system:nodes"}
	loopback := net.IPv4(127, 0, 0, 1)
	if _, _, err := ca.issue(leaf{name: "kubelet-serving-" + name, user: user, groups: groups, dns: []string{name}, ips: []net.IP{loopback, ip}}); err != nil {
		return err
	}
	return ca.kubeconfig(filepath.Join(dir, "kubelet-"+name+".kubeconfig"), server, leaf{name: "kubelet-" + name, user: user, groups: groups})
}
