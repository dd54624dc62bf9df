// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"strings"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/services/power/internal/kubevirt"
	"kubevirtbmc.dev/services/power/powerservice"
)

// What --bmcs can be.
const (
	bmcResources = "resources"
	bmcMachines  = "machines"
)

// kubeVirt is the source of the machines of a cluster with KubeVirt.
func kubeVirt(kubeconfig *string, boot *bootOptions) backend.Source[powerservice.Hypervisor] {
	var namespaces, bmcs string
	return backend.Source[powerservice.Hypervisor]{
		AddFlags: func(flags *flag.FlagSet) {
			flags.StringVar(&namespaces, "namespaces", "", "`names` of the namespaces to serve, separated by commas; empty: all")
			flags.StringVar(&bmcs, "bmcs", bmcResources, "which `kind` of BMCs there are: "+bmcResources+" (VirtualMachineBMCs, which also keep the services' state) or "+bmcMachines+" (each machine has one of its own name)")
		},
		Open: func(log *slog.Logger) (*backend.Machines[powerservice.Hypervisor], error) {
			if err := boot.validate(); err != nil {
				return nil, err
			}
			config := kubevirt.Config{Kubeconfig: *kubeconfig, Log: log}
			if namespaces != "" {
				config.Namespaces = strings.Split(namespaces, ",")
			}
			switch bmcs {
			case bmcMachines:
				machines, err := kubevirt.New(config)
				if err != nil {
					return nil, err
				}
				return known(machines, hypervisor.SameName(machines)), nil
			case bmcResources:
				machines, err := kubevirt.NewWithBMCs(config)
				if err != nil {
					return nil, err
				}
				return known(machines, machines.BMCs), nil
			default:
				return nil, fmt.Errorf("--bmcs %q is neither %s nor %s", bmcs, bmcResources, bmcMachines)
			}
		},
	}
}

// known is a hypervisor whose caches Run fills.
func known(machines interface {
	powerservice.Hypervisor
	Run(ctx context.Context) error
	Ready() bool
}, resolver hypervisor.Resolver,
) *backend.Machines[powerservice.Hypervisor] {
	return &backend.Machines[powerservice.Hypervisor]{
		Hypervisor: machines, Resolver: resolver, Run: machines.Run,
		WaitSynced: func(ctx context.Context) error { return backend.WaitReady(ctx, machines.Ready) },
	}
}
