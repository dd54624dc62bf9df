// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the power program into its parts.
package app

import (
	"flag"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/power/powerservice"
)

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run {
	return backend.Configure(flags, map[string]backend.Source[powerservice.Hypervisor]{
		"kubevirt":  kubeVirt(),
		"simulator": backend.Simulator(func(c *remote.Client) powerservice.Hypervisor { return c }),
	}, func(parts backend.Parts[powerservice.Hypervisor]) (backend.Service, error) {
		return powerservice.New(powerservice.Config{
			Hypervisor: parts.Hypervisor,
			Resolver:   hypervisor.SameName(parts.Hypervisor),
			Log:        parts.Log,
			Metrics:    parts.Metrics,
			Holder:     parts.Holder,
		})
	})
}
