// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package dns

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

// fixed resolves from a map of namespace/service.
type fixed map[string][]net.IP

func (f fixed) Addresses(_ context.Context, namespace, service string) ([]net.IP, error) {
	a, ok := f[namespace+"/"+service]
	if !ok {
		return nil, ErrNotFound
	}
	return a, nil
}

// Go's own resolver is the client.
func TestServe(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go Serve(conn, fixed{"bmc/power": {net.IPv4(10, 96, 0, 7)}, "bmc/headless": {net.IPv4(10, 244, 0, 3), net.IPv4(10, 244, 0, 4)}})
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	for name, want := range map[string][]string{
		"power.bmc.svc.cluster.local.":    {"10.96.0.7"},
		"POWER.bmc.svc.cluster.local.":    {"10.96.0.7"},
		"headless.bmc.svc.cluster.local.": {"10.244.0.3", "10.244.0.4"},
		"other.bmc.svc.cluster.local.":    nil,
		"a.b.c.svc.cluster.local.":        nil,
		"example.test.":                   nil,
	} {
		got, err := resolver.LookupHost(t.Context(), name)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
		var no *net.DNSError
		if want == nil && (!errors.As(err, &no) || !no.IsNotFound) {
			t.Errorf("%s: error %v, want that it is not found", name, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05power\x03bmc\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01"))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x3fx"))
	f.Fuzz(func(t *testing.T, query []byte) {
		a := answer(t.Context(), query, fixed{"bmc/power": slices.Repeat([]net.IP{net.IPv4(1, 2, 3, 4)}, 100)})
		if len(a) > max(maxSize, len(query)) {
			t.Errorf("answer of %d bytes", len(a))
		}
		if a != nil && (a[0] != query[0] || a[1] != query[1] || a[2]&0x80 == 0) {
			t.Errorf("answer % x to % x", a, query)
		}
	})
}

func TestServices(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{
			"/api/v1/namespaces/bmc/services?metadata.name=power":    `{"items": [{"spec": {"clusterIP": "10.96.0.7"}}]}`,
			"/api/v1/namespaces/bmc/services?metadata.name=headless": `{"items": [{"spec": {"clusterIP": "None"}}]}`,
			"/api/v1/namespaces/bmc/services?metadata.name=other":    `{"items": []}`,
			"/apis/discovery.k8s.io/v1/namespaces/bmc/endpointslices?kubernetes.io/service-name=headless": `{"items": [{"endpoints": [
				{"addresses": ["10.244.0.3"], "conditions": {"ready": true}}, {"addresses": ["10.244.0.4"], "conditions": {"ready": false}}, {"addresses": ["10.244.0.5"]}]}]}`,
		}[r.URL.Path+"?"+r.URL.Query().Get("fieldSelector")+r.URL.Query().Get("labelSelector")]
		if body == "" {
			http.NotFound(w, r)
			return
		}
		w.Write([]byte(body))
	}))
	defer s.Close()
	services := &Services{server: s.URL, client: s.Client()}
	for name, want := range map[string][]string{"power": {"10.96.0.7"}, "headless": {"10.244.0.3", "10.244.0.5"}} {
		ips, err := services.Addresses(t.Context(), "bmc", name)
		var got []string
		for _, ip := range ips {
			got = append(got, ip.String())
		}
		if !slices.Equal(got, want) || err != nil {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := services.Addresses(t.Context(), "bmc", "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("other: error %v, want ErrNotFound", err)
	}
	if _, err := services.Addresses(t.Context(), "denied", "x"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a request that fails: error %v, want another than ErrNotFound", err)
	}
}
