// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the media program into its parts.
package app

import (
	"flag"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/media/mediaservice"
)

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run {
	return backend.Configure(flags, map[string]backend.Source[mediaservice.Hypervisor]{
		"simulator": backend.Simulator(func(c *remote.Client) mediaservice.Hypervisor { return c }),
	}, func(parts backend.Parts[mediaservice.Hypervisor]) (backend.Service, error) {
		return mediaservice.New(mediaservice.Config{
			Hypervisor: parts.Hypervisor,
			Resolver:   hypervisor.SameName(parts.Hypervisor),
			Log:        parts.Log,
			Metrics:    parts.Metrics,
		})
	})
}
