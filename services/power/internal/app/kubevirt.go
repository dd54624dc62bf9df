// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"flag"
	"log/slog"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/services/power/powerservice"
)

// readyInterval is how often the caches are asked whether they are filled.
const readyInterval = 100 * time.Millisecond

// kubeVirt is the source of the machines of a cluster with KubeVirt.
func kubeVirt() backend.Source[powerservice.Hypervisor] {
	var kubeconfig, namespaces string
	return backend.Source[powerservice.Hypervisor]{
		AddFlags: func(flags *flag.FlagSet) {
			flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster; empty: the pod's service account")
			flags.StringVar(&namespaces, "namespaces", "", "`names` of the namespaces to serve, separated by commas; empty: all")
		},
		Open: func(log *slog.Logger) (*backend.Machines[powerservice.Hypervisor], error) {
			config := powerservice.KubeVirtConfig{Kubeconfig: kubeconfig, Log: log}
			if namespaces != "" {
				config.Namespaces = strings.Split(namespaces, ",")
			}
			machines, err := powerservice.NewKubeVirt(config)
			if err != nil {
				return nil, err
			}
			return &backend.Machines[powerservice.Hypervisor]{
				Hypervisor: machines, Run: machines.Run,
				WaitSynced: func(ctx context.Context) error { return waitReady(ctx, machines.Ready) },
			}, nil
		},
	}
}

func waitReady(ctx context.Context, ready func() bool) error {
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}
