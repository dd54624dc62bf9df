// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
	"kubevirtbmc.dev/services/media/mediaservice"
)

// resolveTimeout is how long the name of the Kubernetes API may take to resolve.
const resolveTimeout = 10 * time.Second

// What --bmcs can be.
const (
	bmcResources = "resources"
	bmcMachines  = "machines"
)

// kubeVirt is the source of the machines of a cluster with KubeVirt.
func kubeVirt(kubeconfig *string, images *imageOptions) backend.Source[mediaservice.Hypervisor] {
	var namespaces, bmcs string
	return backend.Source[mediaservice.Hypervisor]{
		AddFlags: func(flags *flag.FlagSet) {
			flags.StringVar(&namespaces, "namespaces", "", "`names` of the namespaces to serve, separated by commas; empty: all")
			flags.StringVar(&bmcs, "bmcs", bmcResources, "which `kind` of BMCs there are: "+bmcResources+" (VirtualMachineBMCs) or "+bmcMachines+" (each machine has one of its own name)")
		},
		Open: func(log *slog.Logger) (*backend.Machines[mediaservice.Hypervisor], error) {
			config, err := kubevirt.LoadREST(*kubeconfig)
			if err != nil {
				return nil, err
			}
			storage, err := images.storage()
			if err != nil {
				return nil, err
			}
			resolving, cancel := context.WithTimeout(context.Background(), resolveTimeout)
			defer cancel()
			roots, err := kubevirt.NewRoots(config)
			if err != nil {
				return nil, err
			}
			source, serve, err := images.source(log, kubevirt.APIServers(resolving, config), roots)
			if err != nil {
				return nil, err
			}
			served := split(namespaces)
			settings := kubevirt.Config{REST: config, Namespaces: served, Source: source, Storage: storage, Log: log}
			opened := &backend.Machines[mediaservice.Hypervisor]{}
			runs, ready := []func(context.Context) error{serve}, []func() bool{}
			if bmcs == bmcResources {
				store, err := bmcresource.New(bmcresource.Config{REST: config, Namespaces: served, Log: log})
				if err != nil {
					return nil, err
				}
				settings.Preferences = func(ref hypervisor.Ref) kubevirt.Preferences { return preferences(store.Of(ref)) }
				opened.Resolver = store
				runs, ready = append(runs, store.Run), append(ready, store.Ready)
			}
			machines, err := kubevirt.New(settings)
			if err != nil {
				return nil, err
			}
			opened.Hypervisor = machines
			runs, ready = append(runs, machines.Run), append(ready, machines.Ready)
			switch bmcs {
			case bmcResources:
			case bmcMachines:
				opened.Resolver = hypervisor.ResolverFunc(machines.Resolve)
			default:
				return nil, fmt.Errorf("--bmcs %q is neither %s nor %s", bmcs, bmcResources, bmcMachines)
			}
			opened.Run = func(ctx context.Context) error {
				group, ctx := errgroup.WithContext(ctx)
				for _, run := range runs {
					group.Go(func() error { return run(ctx) })
				}
				return group.Wait()
			}
			opened.WaitSynced = func(ctx context.Context) error { return backend.WaitReady(ctx, ready...) }
			return opened, nil
		},
	}
}

// preferences are what a BMC says about its media; nil: nothing.
func preferences(bmc *v1beta1.VirtualMachineBMC) kubevirt.Preferences {
	var p kubevirt.Preferences
	if bmc == nil {
		return p
	}
	if class := bmc.Spec.StorageClassName; class != nil {
		p.Class = *class
	}
	if bmc.Spec.Redfish == nil || bmc.Spec.Redfish.VirtualMedia == nil {
		return p
	}
	if storage := bmc.Spec.Redfish.VirtualMedia.Storage; storage != nil {
		if storage.StorageClassName != nil {
			p.Class = *storage.StorageClassName
		}
		if storage.VolumeMode != nil {
			p.VolumeMode = string(*storage.VolumeMode)
		}
	}
	if tls := bmc.Spec.Redfish.VirtualMedia.TLS; tls != nil {
		p.Trust.InsecureSkipVerify = tls.InsecureSkipVerify != nil && *tls.InsecureSkipVerify
		if bundle := tls.CABundleConfigMapRef; bundle != nil && bundle.Name != "" {
			p.Trust.Namespace, p.Trust.ConfigMap = bmc.Namespace, bundle.Name
		}
	}
	return p
}
