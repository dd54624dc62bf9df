// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"slices"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Trays returns a machine's trays.
func (h *Hypervisor) Trays(ref hypervisor.Ref) ([]hypervisor.Tray, error) {
	if err := h.checkReady(); err != nil {
		return nil, err
	}
	vm, vmi := h.objects(ref)
	if vm == nil {
		return nil, hypervisor.ErrNotFound
	}
	return trays(vm, vmi), nil
}

// Insert can't fill a tray: an image becomes a volume through CDI, which the
// media service does.
func (h *Hypervisor) Insert(_ context.Context, ref hypervisor.Ref, device string, _ hypervisor.Image) error {
	if err := h.checkTray(ref, device); err != nil {
		return err
	}
	return hypervisor.ErrUnsupported
}

// Eject has nothing to do: a tray is empty or holds a medium of somebody else.
func (h *Hypervisor) Eject(_ context.Context, ref hypervisor.Ref, device string) error {
	return h.checkTray(ref, device)
}

// checkTray tells whether Insert and Eject may touch a tray.
func (h *Hypervisor) checkTray(ref hypervisor.Ref, device string) error {
	list, err := h.Trays(ref)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(list, func(t hypervisor.Tray) bool { return t.Device == device })
	switch {
	case n < 0:
		return hypervisor.ErrNoTray
	case list[n].Medium != nil && list[n].Medium.Foreign:
		return hypervisor.ErrForeignMedium
	default:
		return nil
	}
}
