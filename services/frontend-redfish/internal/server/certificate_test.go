// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// The certificate that is told of is the one that clients are shown, also after it
// was replaced.
func TestCertificate_isTheOneInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	locations := b.get("/redfish/v1/CertificateService/CertificateLocations")
	uri := b.get("/redfish/v1/Managers/BMC/NetworkProtocol/HTTPS/Certificates").memberIDs()[0]
	if d := cmp.Diff([]any{map[string]any{"@odata.id": uri}}, locations.at("Links", "Certificates")); d != "" {
		t.Errorf("locations (-want +got):\n%s", d)
	}
	for _, name := range []string{"bmc-1", "bmc-2"} {
		conn := b.dialTLS()
		shown := conn.ConnectionState().PeerCertificates[0]
		conn.Close()
		a := b.get(uri)
		text, _ := a.at("CertificateString").(string)
		block, rest := pem.Decode([]byte(text))
		if block == nil || len(rest) > 0 || !bytes.Equal(block.Bytes, shown.Raw) {
			t.Errorf("%s: the certificate told of is not the one shown", name)
		}
		sum := sha256.Sum256(shown.Raw)
		for property, want := range map[string]any{
			"CertificateType": "PEM", "Fingerprint": strings.ReplaceAll(fmt.Sprintf("% X", sum[:]), " ", ":"),
			"SerialNumber":       strings.ReplaceAll(fmt.Sprintf("% X", shown.SerialNumber.Bytes()), " ", ":"),
			"SignatureAlgorithm": "1.2.840.10045.4.3.2", // ecdsa-with-SHA256, RFC 5758, section 3.2.
			"Subject":            map[string]any{"CommonName": name, "AlternativeNames": []any{name, "127.0.0.1"}},
			"Issuer":             map[string]any{"CommonName": name},
		} {
			if d := cmp.Diff(want, a.at(property)); d != "" {
				t.Errorf("%s of %s (-want +got):\n%s", property, name, d)
			}
		}
		chain, key := selfSigned(t, "bmc-2")
		b.entry.Redfish.Certificate = &registryv1.Certificate{ChainPem: chain, PrivateKeyPem: key}
		b.apply()
		b.client.CloseIdleConnections()
	}
	if a := b.do(request{path: uri, user: "operator", pass: "operator password"}); a.status != http.StatusForbidden {
		t.Errorf("as an operator = %d", a.status)
	}
}

func TestCertificate_withoutHTTPS(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.entry.Redfish.Http = &registryv1.Listener{Port: freePort(t)}
	b.entry.Redfish.Https = nil
	b.apply()
	b.base = fmt.Sprint("http://127.0.0.1:", b.entry.GetRedfish().GetHttp().GetPort())
	walk(t, b) // No dangling link.
	if a := b.get("/redfish/v1/Managers/BMC/NetworkProtocol/HTTPS/Certificates"); len(a.memberIDs()) > 0 {
		t.Errorf("HTTPS that is off has certificates: %s", a.raw)
	}
	if a := b.get("/redfish/v1/Managers/BMC/NetworkProtocol/HTTPS/Certificates/1"); a.status != http.StatusNotFound {
		t.Errorf("the certificate = %d", a.status)
	}
}

// Each schema file names a file that the DMTF has published, and each type that is
// served has one.
func TestJSONSchemas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const path = "/redfish/v1/JsonSchemas"
	known := map[string]bool{}
	for _, uri := range b.get(path).memberIDs() {
		a := b.get(uri)
		id, _ := a.at("Id").(string)
		known["#"+id] = true
		location, _ := a.at("Location").([]any)
		if len(location) != 1 {
			t.Errorf("%s has locations %v", uri, location)
			continue
		}
		published, _ := location[0].(map[string]any)["PublicationUri"].(string)
		if schemas() == nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(schemaDir, filepath.Base(published))); err != nil {
			t.Errorf("%s: %v", published, err)
		}
	}
	for uri, a := range walk(t, b) {
		odataType, _ := a.at("@odata.type").(string)
		if !known[odataType[:strings.LastIndexByte(odataType, '.')]] {
			t.Errorf("no schema file of %s, the type of %s", odataType, uri)
		}
	}
	if a := b.get(path + "/Nothing"); a.status != http.StatusNotFound {
		t.Errorf("a schema that is not there = %d", a.status)
	}
}
