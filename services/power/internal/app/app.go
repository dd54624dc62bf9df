// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the power program into its parts.
package app

import (
	"flag"

	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/kubeaccess"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/power/powerservice"
)

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run {
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file` of the cluster; empty: the pod's service account")
	access := kubeaccess.AddFlags(flags, kubeconfig)
	boot := addBootFlags(flags)
	state := addStateFlags(flags)
	return backend.Configure(flags, access, map[string]backend.Source[powerservice.Hypervisor]{
		"kubevirt":  kubeVirt(kubeconfig, boot),
		"simulator": backend.Simulator(func(c *remote.Client) powerservice.Hypervisor { return c }),
	}, func(parts backend.Parts[powerservice.Hypervisor]) (backend.Service, error) {
		config := powerservice.Config{
			Hypervisor: parts.Hypervisor,
			Resolver:   parts.Resolver,
			Log:        parts.Log,
			Metrics:    parts.Metrics,
			Holder:     parts.Holder,
			Audit:      sink(parts.Hypervisor),
			Trouble:    trouble(parts.Hypervisor),
			Admits:     boot.admits(parts.Hypervisor),
		}
		conn, err := state.dial()
		if err != nil {
			return nil, err
		}
		if conn == nil {
			return powerservice.New(config)
		}
		config.State, config.BMCsOf = conn, bmcsOf(parts.Hypervisor)
		service, err := powerservice.New(config)
		return connected{service, conn}, err
	})
}
