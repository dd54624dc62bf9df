// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// bootloaderAnnotation keeps a template's own boot loader settings while SetBoot
// has put those of another mode in their place.
const bootloaderAnnotation = "bmc.kubevirt.io/bootloader"

// SetBoot patches boot orders and boot loader in the template.
func (h *Hypervisor) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	vm, err := h.vm(ref)
	if err != nil {
		return err
	}
	if vm.ResourceVersion != resourceVersion {
		return hypervisor.ErrStale
	}
	h.mu.RLock()
	seen := h.sightings[ref].of(vm)
	h.mu.RUnlock()
	p, err := ordersPatch(template(vm), orders)
	if err != nil {
		return err
	}
	if mode != "" && mode != templateMode(vm, seen) {
		more, err := modePatch(vm, mode)
		if err != nil {
			return err
		}
		p = append(p, more...)
	}
	if len(p) == 0 {
		return nil
	}
	return h.patch(ctx, ref, append(patch{test("/metadata/resourceVersion", resourceVersion)}, p...))
}

// ordersPatch changes the orders that are named and differ.
func ordersPatch(spec *kvv1.VirtualMachineInstanceSpec, orders map[string]int) (patch, error) {
	const path = "/spec/template/spec/domain/devices/"
	var p patch
	left := maps.Clone(orders)
	set := func(name, path string, now *uint) error {
		wanted, ok := left[name]
		if !ok {
			return nil
		}
		delete(left, name)
		switch {
		case wanted < 0:
			return hypervisor.Invalidf("boot order of %s must be greater than 0", name)
		case wanted == 0 && now != nil:
			p = append(p, remove(path))
		case wanted > 0 && order(now) != wanted:
			p = append(p, add(path, wanted))
		}
		return nil
	}
	devices := &spec.Domain.Devices
	for i := range devices.Disks {
		if err := set(devices.Disks[i].Name, fmt.Sprintf("%sdisks/%d/bootOrder", path, i), devices.Disks[i].BootOrder); err != nil {
			return nil, err
		}
	}
	for i := range devices.Interfaces {
		name := interfaceDevice(devices, devices.Interfaces[i].Name)
		if err := set(name, fmt.Sprintf("%sinterfaces/%d/bootOrder", path, i), devices.Interfaces[i].BootOrder); err != nil {
			return nil, err
		}
	}
	if len(left) > 0 {
		return nil, hypervisor.Invalidf("machine has no device %q", slices.Min(slices.Collect(maps.Keys(left))))
	}
	return p, nil
}

// modePatch changes the template's firmware mode. The template's own settings
// (Secure Boot, persistent variables) are kept in an annotation and come back
// with its mode.
func modePatch(vm *kvv1.VirtualMachine, mode hypervisor.FirmwareMode) (patch, error) {
	const path = "/spec/template/spec/domain/firmware"
	kept, isKept := vm.Annotations[bootloaderAnnotation]
	var own *kvv1.Bootloader
	if isKept {
		if err := json.Unmarshal([]byte(kept), &own); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", bootloaderAnnotation, err)
		}
	}
	fw := template(vm).Domain.Firmware
	ownMode := bootloaderMode(own)
	if isKept && ownMode == "" && vm.Spec.Preference == nil {
		ownMode = defaultMode(template(vm).Architecture)
	}
	if isKept && ownMode == mode {
		back := remove(path + "/bootloader")
		if own != nil {
			back = add(path+"/bootloader", own)
		}
		return patch{back, remove(annotationPath(bootloaderAnnotation))}, nil
	}

	wanted := &kvv1.Bootloader{BIOS: &kvv1.BIOS{}}
	if mode == hypervisor.FirmwareUEFI {
		// Secure Boot is KubeVirt's default, needs SMM, and refuses most of what
		// provisioners boot.
		off := false
		wanted = &kvv1.Bootloader{EFI: &kvv1.EFI{SecureBoot: &off}}
	}
	var p patch
	if fw == nil {
		p = append(p, add(path, &kvv1.Firmware{Bootloader: wanted}))
	} else {
		p = append(p, add(path+"/bootloader", wanted))
	}
	if isKept {
		return p, nil
	}
	var present *kvv1.Bootloader
	if fw != nil {
		present = fw.Bootloader
	}
	document, err := json.Marshal(present)
	if err != nil {
		return nil, fmt.Errorf("keep boot loader: %w", err)
	}
	return append(p, addAnnotation(vm, bootloaderAnnotation, string(document))), nil
}
