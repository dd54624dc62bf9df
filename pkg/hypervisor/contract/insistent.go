// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"errors"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Insistent returns a hypervisor that sends its power verbs again where another
// writer was quicker (hypervisor.ErrStale), as the hypervisor's own controllers
// may be at any time.
func Insistent(h hypervisor.Hypervisor) hypervisor.Hypervisor { return insistent{h} }

type insistent struct{ hypervisor.Hypervisor }

func again(request func() error) error {
	for attempt := range 10 {
		if err := request(); !errors.Is(err, hypervisor.ErrStale) {
			return err
		}
		time.Sleep(time.Duration(attempt) * 10 * time.Millisecond)
	}
	return request()
}

func (i insistent) Start(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.Start(ctx, ref) })
}

func (i insistent) Stop(ctx context.Context, ref hypervisor.Ref, grace *time.Duration) error {
	return again(func() error { return i.Hypervisor.Stop(ctx, ref, grace) })
}

func (i insistent) Restart(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.Restart(ctx, ref) })
}

func (i insistent) Reset(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.Reset(ctx, ref) })
}

func (i insistent) SoftReboot(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.SoftReboot(ctx, ref) })
}

func (i insistent) Pause(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.Pause(ctx, ref) })
}

func (i insistent) Unpause(ctx context.Context, ref hypervisor.Ref) error {
	return again(func() error { return i.Hypervisor.Unpause(ctx, ref) })
}
