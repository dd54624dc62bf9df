// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package dns

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// Services finds addresses by asking the API server at each query.
type Services struct {
	server string
	client *http.Client
}

// NewServices returns Services that speak to a server with a client's
// certificate, given as files.
func NewServices(server, ca, cert, key string) (*Services, error) {
	b, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &Services{server: server, client: &http.Client{
		Timeout:   3 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}}, nil
}

// Addresses implements Resolver.
func (s *Services) Addresses(ctx context.Context, namespace, service string) ([]net.IP, error) {
	var services struct {
		Items []struct {
			Spec struct {
				ClusterIP string `json:"clusterIP"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := s.list(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/services?fieldSelector="+url.QueryEscape("metadata.name="+service), &services); err != nil {
		return nil, err
	}
	if len(services.Items) == 0 {
		return nil, ErrNotFound
	}
	if ip := net.ParseIP(services.Items[0].Spec.ClusterIP); ip != nil {
		return []net.IP{ip}, nil
	}
	var slices struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []string `json:"addresses"`
				Conditions struct {
					Ready *bool `json:"ready"`
				} `json:"conditions"`
			} `json:"endpoints"`
		} `json:"items"`
	}
	if err := s.list(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+url.PathEscape(namespace)+"/endpointslices?labelSelector="+url.QueryEscape("kubernetes.io/service-name="+service), &slices); err != nil {
		return nil, err
	}
	var addresses []net.IP
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				if ip := net.ParseIP(a); ip != nil {
					addresses = append(addresses, ip)
				}
			}
		}
	}
	return addresses, nil
}

// list fetches a list into v.
func (s *Services) list(ctx context.Context, path string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server+path, nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("list %s: %s: %s", path, resp.Status, b)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}
