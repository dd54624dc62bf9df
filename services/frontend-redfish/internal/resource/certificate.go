// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"strings"
	"time"
)

// URIs of certificates.
const (
	CertificateServiceURI   = "/redfish/v1/CertificateService"
	CertificateLocationsURI = CertificateServiceURI + "/CertificateLocations"
	HTTPSCertificatesURI    = NetworkProtocolURI + "/HTTPS/Certificates"
	HTTPSCertificateURI     = HTTPSCertificatesURI + "/1"
)

// CertificateService tells of certificates. They come from the registry, which
// replaces them in time, so there is nothing that clients could ask for.
type CertificateService struct {
	Header
	CertificateLocations Link `json:"CertificateLocations"`
}

// Stable returns the resource itself.
func (r *CertificateService) Stable() any { return r }

// NewCertificateService returns the certificate service.
func NewCertificateService() *CertificateService {
	return &CertificateService{
		Header: Header{
			ODataID: CertificateServiceURI, ODataType: "#CertificateService.v1_2_1.CertificateService",
			ID: "CertificateService", Name: "Certificate Service",
		},
		CertificateLocations: Link{CertificateLocationsURI},
	}
}

// CertificateLocations is where certificates are.
type CertificateLocations struct {
	Header
	Links CertificateLinks `json:"Links"`
}

// CertificateLinks is the links of certificate locations.
type CertificateLinks struct {
	Count        int    `json:"Certificates@odata.count"`
	Certificates []Link `json:"Certificates"`
}

// Stable returns the resource itself.
func (r *CertificateLocations) Stable() any { return r }

// NewCertificateLocations returns where the certificate of a BMC with these ports is.
func NewCertificateLocations(ports Ports) *CertificateLocations {
	r := &CertificateLocations{
		Header: Header{
			ODataID: CertificateLocationsURI, ODataType: "#CertificateLocations.v1_0_4.CertificateLocations",
			ID: "CertificateLocations", Name: "Certificate Locations",
		},
		Links: CertificateLinks{Certificates: []Link{}},
	}
	if ports.HTTPS != 0 {
		r.Links = CertificateLinks{Count: 1, Certificates: []Link{{HTTPSCertificateURI}}}
	}
	return r
}

// NewHTTPSCertificates returns the collection of the certificates of HTTPS.
func NewHTTPSCertificates(ports Ports) *Collection {
	var members []string
	if ports.HTTPS != 0 {
		members = []string{HTTPSCertificateURI}
	}
	return NewCollection(HTTPSCertificatesURI, "#CertificateCollection.CertificateCollection", "HTTPS Certificate Collection", members...)
}

// Certificate is the certificate that clients are shown.
type Certificate struct {
	Header
	CertificateString        string      `json:"CertificateString"`
	CertificateType          string      `json:"CertificateType"`
	CertificateUsageTypes    []string    `json:"CertificateUsageTypes"`
	Subject                  *Identifier `json:"Subject,omitempty"`
	Issuer                   *Identifier `json:"Issuer,omitempty"`
	ValidNotBefore           string      `json:"ValidNotBefore"`
	ValidNotAfter            string      `json:"ValidNotAfter"`
	KeyUsage                 []string    `json:"KeyUsage,omitempty"`
	SerialNumber             string      `json:"SerialNumber"`
	SignatureAlgorithm       string      `json:"SignatureAlgorithm,omitempty"`
	Fingerprint              string      `json:"Fingerprint"`
	FingerprintHashAlgorithm string      `json:"FingerprintHashAlgorithm"`
}

// Identifier is whom a certificate is of, or who has issued it.
type Identifier struct {
	CommonName         string   `json:"CommonName,omitempty"`
	Organization       string   `json:"Organization,omitempty"`
	OrganizationalUnit string   `json:"OrganizationalUnit,omitempty"`
	City               string   `json:"City,omitempty"`
	State              string   `json:"State,omitempty"`
	Country            string   `json:"Country,omitempty"`
	AlternativeNames   []string `json:"AlternativeNames,omitempty"`
}

// Stable returns the resource itself.
func (r *Certificate) Stable() any { return r }

// NewCertificate returns the certificate of HTTPS, of its chain as DER, leaf first.
func NewCertificate(chain [][]byte) (*Certificate, error) {
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("read the certificate of HTTPS: %w", err)
	}
	var text strings.Builder
	for _, der := range chain {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	sum := sha256.Sum256(leaf.Raw)
	r := &Certificate{
		Header:            Header{ODataID: HTTPSCertificateURI, ODataType: "#Certificate.v1_11_0.Certificate", ID: "1", Name: "HTTPS Certificate"},
		CertificateString: text.String(), CertificateType: "PEM", CertificateUsageTypes: []string{"Web"},
		Subject: identifier(leaf.Subject, alternativeNames(leaf)), Issuer: identifier(leaf.Issuer, nil),
		ValidNotBefore: leaf.NotBefore.UTC().Format(time.RFC3339), ValidNotAfter: leaf.NotAfter.UTC().Format(time.RFC3339),
		KeyUsage: keyUsages(leaf), SerialNumber: colons(leaf.SerialNumber.Bytes()), SignatureAlgorithm: signatureAlgorithm(leaf),
		Fingerprint: colons(sum[:]), FingerprintHashAlgorithm: "TPM_ALG_SHA256",
	}
	if len(chain) > 1 {
		r.CertificateType = "PEMchain"
	}
	return r, nil
}

// identifier returns the first of each part of a name; nil where it has none.
func identifier(name pkix.Name, alternatives []string) *Identifier {
	first := func(values []string) string {
		if len(values) == 0 {
			return ""
		}
		return values[0]
	}
	i := Identifier{
		CommonName: name.CommonName, Organization: first(name.Organization), OrganizationalUnit: first(name.OrganizationalUnit),
		City: first(name.Locality), State: first(name.Province), Country: first(name.Country), AlternativeNames: alternatives,
	}
	if i.AlternativeNames == nil && i.CommonName+i.Organization+i.OrganizationalUnit+i.City+i.State+i.Country == "" {
		return nil
	}
	return &i
}

func alternativeNames(c *x509.Certificate) []string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// Usages as RFC 5280 has them, sections 4.2.1.3 and 4.2.1.12, by Redfish's names.
var (
	usages = names[x509.KeyUsage]{
		{"DigitalSignature", x509.KeyUsageDigitalSignature},
		{"NonRepudiation", x509.KeyUsageContentCommitment},
		{"KeyEncipherment", x509.KeyUsageKeyEncipherment},
		{"DataEncipherment", x509.KeyUsageDataEncipherment},
		{"KeyAgreement", x509.KeyUsageKeyAgreement},
		{"KeyCertSign", x509.KeyUsageCertSign},
		{"CRLSigning", x509.KeyUsageCRLSign},
		{"EncipherOnly", x509.KeyUsageEncipherOnly},
		{"DecipherOnly", x509.KeyUsageDecipherOnly},
	}
	extendedUsages = names[x509.ExtKeyUsage]{
		{"ServerAuthentication", x509.ExtKeyUsageServerAuth},
		{"ClientAuthentication", x509.ExtKeyUsageClientAuth},
		{"CodeSigning", x509.ExtKeyUsageCodeSigning},
		{"EmailProtection", x509.ExtKeyUsageEmailProtection},
		{"Timestamping", x509.ExtKeyUsageTimeStamping},
		{"OCSPSigning", x509.ExtKeyUsageOCSPSigning},
	}
)

func keyUsages(c *x509.Certificate) []string {
	var list []string
	for _, u := range usages {
		if c.KeyUsage&u.value != 0 {
			list = append(list, u.name)
		}
	}
	for _, u := range c.ExtKeyUsage {
		if name := extendedUsages.name(u); name != "" {
			list = append(list, name)
		}
	}
	return list
}

// signatureAlgorithm returns the object identifier of how a certificate is signed
// (RFC 5280, section 4.1.1.2); empty where it can't be read.
func signatureAlgorithm(c *x509.Certificate) string {
	var parts struct {
		Content   asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(c.Raw, &parts); err != nil {
		return ""
	}
	return parts.Algorithm.Algorithm.String()
}

// colons writes bytes as pairs of hexadecimal digits.
func colons(raw []byte) string {
	pairs := make([]string, len(raw))
	for i, b := range raw {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(pairs, ":")
}
