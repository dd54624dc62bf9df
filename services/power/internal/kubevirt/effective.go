// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"slices"

	kvv1 "kubevirt.io/api/core/v1"
)

// podInterface is the name of the interface, and of its network, that KubeVirt
// gives to a machine which names none.
const podInterface = "default"

// effective is a machine's template as the next instance will have it: with a
// disk for each volume that has none, with the pod's network where no other is
// named, and with what instance type and preference add, as far as that is
// known.
func effective(vm *kvv1.VirtualMachine, seen *sighting) *kvv1.VirtualMachineInstanceSpec {
	spec := *template(vm)
	domain := &spec.Domain
	for _, name := range implicitDisks(&spec) {
		domain.Devices.Disks = append(slices.Clip(domain.Devices.Disks), kvv1.Disk{Name: name})
	}
	if nic := implicitInterface(&spec, seen); nic != nil {
		domain.Devices.Interfaces = []kvv1.Interface{*nic}
	}
	if seen.expansion == nil {
		return &spec
	}
	whole := seen.expansion.spec
	domain.Devices.Disks = slices.Clone(domain.Devices.Disks)
	for i := range domain.Devices.Disks {
		disk := &domain.Devices.Disks[i]
		for j := range whole.Domain.Devices.Disks {
			if preferred := &whole.Domain.Devices.Disks[j]; preferred.Name == disk.Name {
				disk.DiskDevice = preferred.DiskDevice
			}
		}
	}
	domain.Devices.Interfaces = slices.Clone(domain.Devices.Interfaces)
	for i := range domain.Devices.Interfaces {
		nic := &domain.Devices.Interfaces[i]
		for j := range whole.Domain.Devices.Interfaces {
			if preferred := &whole.Domain.Devices.Interfaces[j]; preferred.Name == nic.Name {
				nic.Model = preferred.Model
			}
		}
	}
	domain.CPU = whole.Domain.CPU
	domain.Memory = whole.Domain.Memory
	domain.Resources = whole.Domain.Resources
	domain.Machine = whole.Domain.Machine
	domain.Devices.AutoattachSerialConsole = whole.Domain.Devices.AutoattachSerialConsole
	spec.Architecture = cmp.Or(spec.Architecture, whole.Architecture)
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = whole.TerminationGracePeriodSeconds
	}
	var fw kvv1.Firmware
	if domain.Firmware != nil {
		fw = *domain.Firmware
	}
	if bootloaderMode(fw.Bootloader) == "" && whole.Domain.Firmware != nil {
		fw.Bootloader = whole.Domain.Firmware.Bootloader
	}
	domain.Firmware = &fw
	return &spec
}

// implicitDisks names the volumes that KubeVirt makes disks of by itself.
func implicitDisks(spec *kvv1.VirtualMachineInstanceSpec) []string {
	var names []string
	for i := range spec.Volumes {
		name := spec.Volumes[i].Name
		if slices.ContainsFunc(spec.Domain.Devices.Disks, func(d kvv1.Disk) bool { return d.Name == name }) ||
			slices.ContainsFunc(spec.Domain.Devices.Filesystems, func(f kvv1.Filesystem) bool { return f.Name == name }) {
			continue
		}
		names = append(names, name)
	}
	return names
}

// implicitInterface is the interface to the pod's network that KubeVirt adds by
// itself; nil when it adds none. How it is bound is the cluster's choice, which
// is known once an instance was seen or an instance type was read; nil before.
func implicitInterface(spec *kvv1.VirtualMachineInstanceSpec, seen *sighting) *kvv1.Interface {
	auto := spec.Domain.Devices.AutoattachPodInterface
	if auto != nil && !*auto || len(spec.Networks) > 0 || len(spec.Domain.Devices.Interfaces) > 0 {
		return nil
	}
	if e := seen.expansion; e != nil {
		for i := range e.spec.Domain.Devices.Interfaces {
			if e.spec.Domain.Devices.Interfaces[i].Name == podInterface {
				return &e.spec.Domain.Devices.Interfaces[i]
			}
		}
	}
	return seen.podInterface
}
