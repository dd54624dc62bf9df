// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the media program into its parts.
package app

import (
	"flag"

	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/kubeaccess"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/media/mediaservice"
)

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run {
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig `file` of the cluster; empty: the pod's service account")
	access := kubeaccess.AddFlags(flags, kubeconfig)
	images := addImageFlags(flags)
	return backend.Configure(flags, access, map[string]backend.Source[mediaservice.Hypervisor]{
		"kubevirt":  kubeVirt(kubeconfig, images),
		"simulator": backend.Simulator(func(c *remote.Client) mediaservice.Hypervisor { return c }),
	}, func(parts backend.Parts[mediaservice.Hypervisor]) (backend.Service, error) {
		return mediaservice.New(mediaservice.Config{
			Hypervisor: parts.Hypervisor,
			Resolver:   parts.Resolver,
			Log:        parts.Log,
			Metrics:    parts.Metrics,
		})
	})
}
