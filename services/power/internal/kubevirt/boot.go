// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// bootloaderAnnotation keeps a template's own boot loader settings while SetBoot
// has put those of another mode in their place.
const bootloaderAnnotation = "bmc.kubevirt.io/bootloader"

// SetBoot patches boot orders and boot loader in the template.
func (h *Hypervisor) SetBoot(ctx context.Context, ref hypervisor.Ref, resourceVersion string, orders map[string]int, mode hypervisor.FirmwareMode) error {
	if err := h.checkReady(); err != nil {
		return err
	}
	vm, vmi := h.objects(ref)
	if vm == nil {
		return hypervisor.ErrNotFound
	}
	if vm.ResourceVersion != resourceVersion {
		return hypervisor.ErrStale
	}
	seen := known(vm, vmi, h.sighting(ref))
	p, kept, err := ordersPatch(vm, seen, orders)
	if err != nil {
		return err
	}
	if mode != "" && mode != templateMode(vm, seen) {
		more, bootloader, err := modePatch(vm, mode)
		if err != nil {
			return err
		}
		p = append(p, more...)
		maps.Copy(kept, bootloader)
	}
	p = append(p, annotationsPatch(vm, kept)...)
	if len(p) == 0 {
		return nil
	}
	err = h.patch(ctx, ref, append(patch{test("/metadata/resourceVersion", resourceVersion)}, p...))
	if !errors.Is(err, hypervisor.ErrStale) {
		return err
	}
	// The caller reads the caches again: not before they have what overtook it.
	now, err := h.read(ctx, ref)
	if err != nil {
		return err
	}
	return h.overtaken(ctx, now)
}

// devicesAnnotation names the devices that a template did not name and that
// SetBoot has added, to give them an order: taken out again with it.
const devicesAnnotation = "bmc.kubevirt.io/added-devices"

const (
	disksPath      = "/spec/template/spec/domain/devices/disks"
	interfacesPath = "/spec/template/spec/domain/devices/interfaces"
	networksPath   = "/spec/template/spec/networks"
)

// ordersPatch changes the orders that are named and differ, and the annotations
// that go with that. Devices that KubeVirt adds by itself are named in the
// template as long as they have an order.
func ordersPatch(vm *kvv1.VirtualMachine, seen *sighting, orders map[string]int) (patch, map[string]*string, error) {
	spec := template(vm)
	added, err := addedDevices(vm)
	if err != nil {
		return nil, nil, err
	}
	left := maps.Clone(orders)
	for name, wanted := range left {
		if wanted < 0 {
			return nil, nil, hypervisor.Invalidf("boot order of %s must be greater than 0", name)
		}
	}
	// What is added stands behind what is there, what is removed is taken from
	// the end: so the places of the others stay as they were read.
	var p, adds, removals patch
	var disks, interfaces placed
	devices, whole := &spec.Domain.Devices, &effective(vm, seen).Domain.Devices
	for i := range devices.Disks {
		d := &devices.Disks[i]
		if ours := (kvv1.Disk{Name: d.Name, BootOrder: d.BootOrder}); !apiequality.Semantic.DeepEqual(*d, ours) {
			delete(added, d.Name) // Its owner has made it theirs.
		}
		disks.set(&p, left, added, i, d.Name, fmt.Sprintf("%s/%d", disksPath, i), d.BootOrder)
	}
	for i := range devices.Interfaces {
		nic := &devices.Interfaces[i]
		name := interfaceDevice(whole, nic.Name)
		ours := kvv1.Interface{Name: nic.Name, InterfaceBindingMethod: nic.InterfaceBindingMethod, BootOrder: nic.BootOrder}
		if len(devices.Interfaces) > 1 || len(spec.Networks) > 1 || !apiequality.Semantic.DeepEqual(*nic, ours) {
			// Beside another interface KubeVirt would not add it again, and one that
			// its owner has edited is theirs.
			delete(added, name)
		}
		interfaces.set(&p, left, added, i, name, fmt.Sprintf("%s/%d", interfacesPath, i), nic.BootOrder)
	}

	for _, name := range implicitDisks(spec) {
		if order, ok := take(left, name); ok && order > 0 {
			at := disksPath + "/-"
			disk := kvv1.Disk{Name: name, BootOrder: &order}
			if devices.Disks == nil && len(adds) == 0 {
				adds = append(adds, add(disksPath, []kvv1.Disk{disk}))
			} else {
				adds = append(adds, add(at, disk))
			}
			added[name] = true
		}
	}
	if nic := implicitInterface(spec, seen); nic != nil {
		name := interfaceDevice(whole, nic.Name)
		if order, ok := take(left, name); ok && order > 0 {
			ordered := kvv1.Interface{Name: nic.Name, InterfaceBindingMethod: nic.InterfaceBindingMethod, BootOrder: &order}
			adds = append(adds, add(interfacesPath, []kvv1.Interface{ordered}), add(networksPath, []kvv1.Network{*kvv1.DefaultPodNetwork()}))
			added[name] = true
		}
	}
	if len(left) > 0 {
		return nil, nil, hypervisor.Invalidf("machine has no device %q", slices.Min(slices.Collect(maps.Keys(left))))
	}
	if interfaces.removed != nil {
		removals = append(removals, remove(interfacesPath), remove(networksPath))
	}
	if len(disks.removed) == len(devices.Disks) && len(adds) == 0 && disks.removed != nil {
		removals = append(removals, remove(disksPath))
	} else {
		for _, at := range slices.Backward(disks.removed) {
			removals = append(removals, remove(fmt.Sprintf("%s/%d", disksPath, at)))
		}
	}
	kept, err := addedAnnotation(vm, added)
	if err != nil {
		return nil, nil, err
	}
	return slices.Concat(p, adds, removals), kept, nil
}

// take takes the order that is wanted of a device out of those that are left.
func take(left map[string]int, name string) (order uint, ok bool) {
	wanted, ok := left[name]
	delete(left, name)
	return uint(max(wanted, 0)), ok
}

// placed are the places of devices that are to be removed from a list.
type placed struct{ removed []int }

// set gives a device of the template the order that is wanted of it, or notes
// that it goes as it came.
func (r *placed) set(p *patch, left map[string]int, added map[string]bool, at int, name, path string, now *uint) {
	wanted, ok := take(left, name)
	switch {
	case !ok:
	case wanted == 0 && added[name]:
		r.removed = append(r.removed, at)
		delete(added, name)
	case wanted == 0 && now != nil:
		*p = append(*p, remove(path+"/bootOrder"))
	case wanted > 0 && (now == nil || *now != wanted):
		*p = append(*p, add(path+"/bootOrder", wanted))
	}
}

// addedDevices are the devices that SetBoot has added to the template.
func addedDevices(vm *kvv1.VirtualMachine) (map[string]bool, error) {
	added := map[string]bool{}
	document, ok := vm.Annotations[devicesAnnotation]
	if !ok {
		return added, nil
	}
	var names []string
	if err := json.Unmarshal([]byte(document), &names); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", devicesAnnotation, err)
	}
	for _, name := range names {
		added[name] = true
	}
	return added, nil
}

// addedAnnotation is the change of the annotation that names them.
func addedAnnotation(vm *kvv1.VirtualMachine, added map[string]bool) (map[string]*string, error) {
	change := map[string]*string{}
	before, ok := vm.Annotations[devicesAnnotation]
	if len(added) == 0 {
		if ok {
			change[devicesAnnotation] = nil
		}
		return change, nil
	}
	document, err := json.Marshal(slices.Sorted(maps.Keys(added)))
	if err != nil {
		return nil, fmt.Errorf("keep added devices: %w", err)
	}
	if text := string(document); text != before {
		change[devicesAnnotation] = &text
	}
	return change, nil
}

// modePatch changes the template's firmware mode. The template's own settings
// (Secure Boot, persistent variables) are kept in an annotation and come back
// with its mode.
func modePatch(vm *kvv1.VirtualMachine, mode hypervisor.FirmwareMode) (patch, map[string]*string, error) {
	const path = "/spec/template/spec/domain/firmware"
	own, kept, err := keptBootloader(vm)
	if err != nil {
		return nil, nil, err
	}
	ownMode := cmp.Or(bootloaderMode(own), defaultMode(template(vm).Architecture))
	if kept && ownMode == mode {
		back := remove(path + "/bootloader")
		if own != nil {
			back = add(path+"/bootloader", own)
		}
		return patch{back}, map[string]*string{bootloaderAnnotation: nil}, nil
	}

	wanted := &kvv1.Bootloader{BIOS: &kvv1.BIOS{}}
	if mode == hypervisor.FirmwareUEFI {
		// Secure Boot is KubeVirt's default, needs SMM, and refuses most of what
		// provisioners boot.
		off := false
		wanted = &kvv1.Bootloader{EFI: &kvv1.EFI{SecureBoot: &off}}
	}
	fw := template(vm).Domain.Firmware
	var p patch
	if fw == nil {
		p = append(p, add(path, &kvv1.Firmware{Bootloader: wanted}))
	} else {
		p = append(p, add(path+"/bootloader", wanted))
	}
	if kept {
		return p, nil, nil
	}
	var present *kvv1.Bootloader
	if fw != nil {
		present = fw.Bootloader
	}
	document, err := json.Marshal(present)
	if err != nil {
		return nil, nil, fmt.Errorf("keep boot loader: %w", err)
	}
	text := string(document)
	return p, map[string]*string{bootloaderAnnotation: &text}, nil
}
