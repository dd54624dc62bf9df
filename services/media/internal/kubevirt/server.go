// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
