// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package powerservice

import (
	"log/slog"

	"kubevirtbmc.dev/services/power/internal/kubevirt"
)

// KubeVirtConfig says which cluster's machines to serve.
type KubeVirtConfig struct {
	// Kubeconfig is a file; empty: the pod's service account.
	Kubeconfig string
	// Namespaces to serve; empty: all.
	Namespaces []string
	Log        *slog.Logger
}

// KubeVirt is a hypervisor.Hypervisor that is KubeVirt. Run keeps its caches
// filled until its context ends; until Ready, all that it answers is
// hypervisor.ErrUnavailable. A cluster without KubeVirt is waited for.
type KubeVirt = kubevirt.Hypervisor

// NewKubeVirt makes a KubeVirt; an error says that its configuration can't be
// used.
func NewKubeVirt(cfg KubeVirtConfig) (*KubeVirt, error) {
	return kubevirt.New(kubevirt.Config{Kubeconfig: cfg.Kubeconfig, Namespaces: cfg.Namespaces, Log: cfg.Log})
}
