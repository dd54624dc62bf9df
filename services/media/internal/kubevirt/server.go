// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// LoadREST reads a kubeconfig file, or the pod's service account where there is
// none, and sets limits of requests.
func LoadREST(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("load configuration of the cluster: %w", err)
	}
	config.QPS, config.Burst = defaultQPS, defaultBurst
	return config, nil
}

// bundleKey is where a ConfigMap has certificates, in PEM.
const bundleKey = "ca.pem"

// NewRoots returns a function that reads the certificates that a Trust names, from
// the key ca.pem of its ConfigMap; nil where it names none.
func NewRoots(config *rest.Config) (func(context.Context, Trust) (*x509.CertPool, error), error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of ConfigMaps: %w", err)
	}
	return func(ctx context.Context, trust Trust) (*x509.CertPool, error) {
		if trust.ConfigMap == "" {
			return nil, nil
		}
		within, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		bundle, err := client.ConfigMaps(trust.Namespace).Get(within, trust.ConfigMap, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, hypervisor.Invalidf("there is no ConfigMap %s with certificates of image servers", trust.ConfigMap)
		}
		if err != nil {
			return nil, translate(ctx, err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(bundle.Data[bundleKey])) {
			return nil, hypervisor.Invalidf("ConfigMap %s has no certificate under %s", trust.ConfigMap, bundleKey)
		}
		return roots, nil
	}, nil
}

// APIServers returns the addresses and ports at which this process knows the
// Kubernetes API: what its configuration names, and the Service that a pod is told
// of. Names are resolved now.
func APIServers(ctx context.Context, config *rest.Config) []netip.AddrPort {
	var servers []netip.AddrPort
	add := func(host, port string) {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" {
			return
		}
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return
		}
		for _, address := range addresses {
			servers = append(servers, netip.AddrPortFrom(address.Unmap(), uint16(number)))
		}
	}
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		add(u.Hostname(), port)
	}
	add(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return servers
}
