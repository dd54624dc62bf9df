// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"

	"golang.org/x/sync/errgroup"

	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// component is where Events say that they come from.
const component = "virtbmc-power"

// WithBMCs is KubeVirt where VirtualMachineBMCs say which machines have a BMC,
// and keep the services' state. It implements hypervisor.Hypervisor.
type WithBMCs struct {
	*Hypervisor
	// BMCs finds the machines of BMCs.
	BMCs *bmcresource.Store
	// Events tell in the cluster what is done to BMCs.
	Events   *bmcresource.Events
	machines *bmcresource.Machines
}

var _ hypervisor.Hypervisor = (*WithBMCs)(nil)

// NewWithBMCs makes such a hypervisor. It knows nothing until Run has filled its
// caches.
func NewWithBMCs(config Config) (*WithBMCs, error) {
	h, err := New(config)
	if err != nil {
		return nil, err
	}
	bmcs, err := bmcresource.New(bmcresource.Config{REST: h.config, Namespaces: config.Namespaces, Log: config.Log})
	if err != nil {
		return nil, err
	}
	events, err := bmcresource.NewEvents(h.config, component, bmcs.UID)
	if err != nil {
		return nil, err
	}
	return &WithBMCs{Hypervisor: h, BMCs: bmcs, Events: events, machines: bmcresource.WithState(h, bmcs)}, nil
}

// Run keeps the caches filled until the context ends.
func (w *WithBMCs) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.Hypervisor.Run(ctx) })
	group.Go(func() error { return w.BMCs.Run(ctx) })
	group.Go(func() error { return w.Events.Run(ctx) })
	return group.Wait()
}

// Ready tells whether the caches are filled.
func (w *WithBMCs) Ready() bool { return w.Hypervisor.Ready() && w.BMCs.Ready() }

// Get implements hypervisor.Machines.
func (w *WithBMCs) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) { return w.machines.Get(ref) }

// List implements hypervisor.Machines.
func (w *WithBMCs) List() ([]*hypervisor.Machine, error) { return w.machines.List() }

// Subscribe implements hypervisor.Machines.
func (w *WithBMCs) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	return w.machines.Subscribe(changed)
}

// SetState implements hypervisor.State.
func (w *WithBMCs) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	return w.machines.SetState(ctx, ref, old, state)
}
