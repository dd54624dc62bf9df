// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
)

// dyingHypervisor sends each request through dying.
type dyingHypervisor struct{ *dying }

func (d *dyingHypervisor) Start(ctx context.Context, ref hypervisor.Ref) error {
	return d.die(simulator.VerbStart, func() error { return d.Simulator.Start(ctx, ref) })
}

func (d *dyingHypervisor) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	return d.die(simulator.VerbStop, func() error { return d.Simulator.Stop(ctx, ref, grace) })
}

func (d *dyingHypervisor) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return d.die(simulator.VerbReset, func() error { return d.Simulator.Reset(ctx, ref) })
}

func (d *dyingHypervisor) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return d.die(simulator.VerbSoftReboot, func() error { return d.Simulator.SoftReboot(ctx, ref) })
}

func (d *dyingHypervisor) SetRunStrategy(ctx context.Context, ref hypervisor.Ref, from, to hypervisor.RunStrategy) error {
	return d.die(simulator.VerbSetRunStrategy, func() error { return d.Simulator.SetRunStrategy(ctx, ref, from, to) })
}

func (d *dyingHypervisor) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	return d.die(simulator.VerbSetBoot, func() error { return d.Simulator.SetBoot(ctx, ref, resourceVersion, orders, mode) })
}

func (d *dyingHypervisor) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	return d.die(simulator.VerbSetState, func() error { return d.Simulator.SetState(ctx, ref, old, state) })
}
