// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// What guests read in their SMBIOS tables unless the cluster says otherwise.
	defaultManufacturer = "KubeVirt"
	defaultProduct      = "VirtualMachine"

	defaultBus   = "sata"
	defaultModel = "virtio"
)

// topology of a machine's processors; all 0 when unknown.
type topology struct{ sockets, cores, threads int }

// hardware lists what a machine is made of: what its instance has while it
// lives, else what the next one will have.
func hardware(vm *kvv1.VirtualMachine, spec *kvv1.VirtualMachineInstanceSpec, vmi *kvv1.VirtualMachineInstance, seen *sighting) hypervisor.Hardware {
	domain := &spec.Domain
	cpu, memory := cpuTopology(domain), memoryBytes(domain)
	live := vmi != nil && !vmi.IsFinal()
	unread := seen.expansion == nil && (vm.Spec.Instancetype != nil || vm.Spec.Preference != nil)
	if live || unread {
		cpu, memory = seen.cpu, seen.memory
	}
	h := hypervisor.Hardware{
		Sockets:        cpu.sockets,
		CoresPerSocket: cpu.cores,
		ThreadsPerCore: cpu.threads,
		CPUModel:       cmp.Or(cpuModel(domain), seen.cpuModel),
		Architecture:   hypervisor.Architecture(cmp.Or(spec.Architecture, seen.architecture)),
		MemoryBytes:    cmp.Or(memory, seen.memory),
		Manufacturer:   defaultManufacturer,
		Product:        defaultProduct,
		Interfaces:     interfaces(spec, vmi, seen),
		Disks:          disks(vm, spec, seen),
		GuestOS:        guestOS(vmi),
		SerialConsole:  spec.Domain.Devices.AutoattachSerialConsole == nil || *spec.Domain.Devices.AutoattachSerialConsole,
	}
	if domain.Machine != nil {
		h.MachineType = domain.Machine.Type
	}
	h.MachineType = cmp.Or(h.MachineType, seen.machineType)
	if domain.Chassis != nil {
		h.Manufacturer = cmp.Or(domain.Chassis.Manufacturer, h.Manufacturer)
	}
	return h
}

// cpuTopology reads the processors that a domain asks for.
func cpuTopology(domain *kvv1.DomainSpec) topology {
	if c := domain.CPU; c != nil && (c.Sockets > 0 || c.Cores > 0 || c.Threads > 0) {
		return topology{
			sockets: int(cmp.Or(c.Sockets, 1)),
			cores:   int(cmp.Or(c.Cores, 1)),
			threads: int(cmp.Or(c.Threads, 1)),
		}
	}
	// KubeVirt makes sockets of the resources.
	for _, list := range []corev1.ResourceList{domain.Resources.Limits, domain.Resources.Requests} {
		if q, ok := list[corev1.ResourceCPU]; ok {
			return topology{sockets: int(max(q.Value(), 1)), cores: 1, threads: 1}
		}
	}
	return topology{sockets: 1, cores: 1, threads: 1}
}

func cpuModel(domain *kvv1.DomainSpec) string {
	if domain.CPU == nil {
		return ""
	}
	return domain.CPU.Model
}

// memoryBytes is the memory that the guest sees.
func memoryBytes(domain *kvv1.DomainSpec) int64 {
	if m := domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.Value()
	}
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if q, ok := list[corev1.ResourceMemory]; ok {
			return q.Value()
		}
	}
	return 0
}

func interfaces(spec *kvv1.VirtualMachineInstanceSpec, vmi *kvv1.VirtualMachineInstance, seen *sighting) []hypervisor.Interface {
	declared := spec.Domain.Devices.Interfaces
	if len(declared) == 0 && vmi != nil {
		// The pod network that KubeVirt attaches by itself.
		declared = vmi.Spec.Domain.Devices.Interfaces
	}
	list := make([]hypervisor.Interface, 0, len(declared))
	for i := range declared {
		nic := hypervisor.Interface{
			Name:  declared[i].Name,
			MAC:   cmp.Or(normalMAC(declared[i].MacAddress), seen.macs[declared[i].Name]),
			Model: cmp.Or(declared[i].Model, defaultModel),
		}
		if vmi != nil && !vmi.IsFinal() {
			for _, status := range vmi.Status.Interfaces {
				if status.Name == nic.Name {
					nic.IPs = status.IPs
				}
			}
		}
		list = append(list, nic)
	}
	return list
}

// disks lists the disks, without the CD-ROM drives.
func disks(vm *kvv1.VirtualMachine, spec *kvv1.VirtualMachineInstanceSpec, seen *sighting) []hypervisor.Disk {
	list := make([]hypervisor.Disk, 0, len(spec.Domain.Devices.Disks))
	for i := range spec.Domain.Devices.Disks {
		d := &spec.Domain.Devices.Disks[i]
		if d.CDRom != nil {
			continue
		}
		disk := hypervisor.Disk{Name: d.Name, Serial: d.Serial, Bus: defaultBus, CapacityBytes: capacity(vm, seen, d.Name)}
		switch {
		case d.Disk != nil:
			disk.Bus, disk.ReadOnly = cmp.Or(string(d.Disk.Bus), disk.Bus), d.Disk.ReadOnly
		case d.LUN != nil:
			disk.Bus, disk.ReadOnly = cmp.Or(string(d.LUN.Bus), disk.Bus), d.LUN.ReadOnly
		}
		list = append(list, disk)
	}
	return list
}

// capacity is a disk's size as far as the objects at hand tell it.
func capacity(vm *kvv1.VirtualMachine, seen *sighting, name string) int64 {
	if size := seen.capacities[name]; size > 0 {
		return size
	}
	for _, v := range template(vm).Volumes {
		if v.Name != name {
			continue
		}
		switch {
		case v.DataVolume != nil:
			return templateCapacity(vm, v.DataVolume.Name)
		case v.EmptyDisk != nil:
			return v.EmptyDisk.Capacity.Value()
		case v.HostDisk != nil:
			return v.HostDisk.Capacity.Value()
		}
	}
	return 0
}

// volumeSize is the size that an instance tells of a volume; 0 when it tells
// none.
func volumeSize(s *kvv1.VolumeStatus) int64 {
	if s.Size > 0 || s.PersistentVolumeClaimInfo == nil {
		return s.Size
	}
	return storage(s.PersistentVolumeClaimInfo.Capacity)
}

// templateCapacity is what a VM's own DataVolume template asks for.
func templateCapacity(vm *kvv1.VirtualMachine, name string) int64 {
	for i := range vm.Spec.DataVolumeTemplates {
		t := &vm.Spec.DataVolumeTemplates[i]
		if t.Name != name {
			continue
		}
		if t.Spec.Storage != nil {
			if size := storage(t.Spec.Storage.Resources.Requests); size > 0 {
				return size
			}
		}
		if t.Spec.PVC != nil {
			return storage(t.Spec.PVC.Resources.Requests)
		}
	}
	return 0
}

func storage(list corev1.ResourceList) int64 {
	size := list[corev1.ResourceStorage]
	return size.Value()
}

// guestOS is what the guest agent last told of a running guest.
func guestOS(vmi *kvv1.VirtualMachineInstance) *hypervisor.GuestOS {
	if vmi == nil || vmi.Status.Phase != kvv1.Running {
		return nil
	}
	info := vmi.Status.GuestOSInfo
	if info.Name == "" && info.ID == "" {
		return nil
	}
	return &hypervisor.GuestOS{
		Name:          cmp.Or(info.Name, info.ID),
		Version:       cmp.Or(info.Version, info.VersionID),
		KernelRelease: info.KernelRelease,
	}
}
