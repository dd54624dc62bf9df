// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/controller/internal/certificate"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/state"
)

// Requests to the API server: a second, and at once.
const (
	requestsPerSecond = 100
	requestsAtOnce    = 200
)

// ownNamespace is the file in which a pod finds its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// limited returns a configuration with the limits of requests, since client-go's
// own, 5 a second, make certificates and state wait when many change at once.
func limited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	return config
}

// newStore makes the store of the BMCs' state.
func (o *Options) newStore(log *slog.Logger, config *rest.Config, source Source) (*state.Store, error) {
	config = limited(config)
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	bmcs, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return state.New(state.Config{
		Core: core, Metadata: objects, Objects: bmcs, Namespaces: split(o.Namespaces), Log: log,
		AccountsChanged: source.AccountsChanged,
	})
}

// ownNamespace is the controller's own.
func (o *Options) ownNamespace() (string, error) {
	if o.Namespace != "" {
		return o.Namespace, nil
	}
	own, err := os.ReadFile(ownNamespace)
	if err != nil {
		return "", fmt.Errorf("--namespace is needed outside of a pod: %w", err)
	}
	return strings.TrimSpace(string(own)), nil
}

// newSource makes the reconcilers of a controller, and has something run while it
// leads.
func (o *Options) newSource(p *process.Process, config *rest.Config, namespace string, keeper *certificate.Keeper, webhooks *webhooks) (*reconciler.Source, error) {
	p.Health.Set(definitionComponent, false)
	return reconciler.New(reconciler.Config{
		REST: config, Log: p.Log, Metrics: p.Registry, Namespace: namespace, Namespaces: split(o.Namespaces),
		Ports: o.Ports, Defaults: o.Defaults, Provision: o.Provision, DiscoveryInterval: o.DiscoveryInterval,
		Agents: o.Agents, Webhooks: webhooks, Certificates: keeper, ClusterDomain: o.certificates.domain,
		OnDefinition: func(problem string) { p.Health.SetReason(definitionComponent, problem) },
	})
}

// loadConfig reads a kubeconfig file or the pod's service account.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	what := "in-cluster configuration"
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
		what = "kubeconfig"
	}
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", what, err)
	}
	config.UserAgent = "kubevirtbmc-controller"
	return config, nil
}
