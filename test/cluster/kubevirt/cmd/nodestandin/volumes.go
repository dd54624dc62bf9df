// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"cmp"
	"slices"

	kvv1 "kubevirt.io/api/core/v1"
)

// describeVolumes names the guest's devices in the status of volumes, which
// virt-controller has filled with all that it knows, claims' sizes among it.
// virt-handler adds sizes only of the images that it makes itself, such as
// cloud-init's; there are none here.
func describeVolumes(vmi *kvv1.VirtualMachineInstance) {
	targets := map[string]string{}
	counts := map[string]int{}
	for i := range vmi.Spec.Domain.Devices.Disks {
		d := &vmi.Spec.Domain.Devices.Disks[i]
		prefix := "sd"
		if diskBus(d) == kvv1.DiskBusVirtio {
			prefix = "vd"
		}
		target := deviceName(prefix, counts[prefix])
		counts[prefix]++
		// A drive without a medium has no volume.
		if slices.ContainsFunc(vmi.Spec.Volumes, func(v kvv1.Volume) bool { return v.Name == d.Name }) {
			targets[d.Name] = target
		}
	}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		s.Target = targets[s.Name]
	}
	slices.SortStableFunc(vmi.Status.VolumeStatus, func(a, b kvv1.VolumeStatus) int { return cmp.Compare(a.Name, b.Name) })
}

// diskBus is the bus of a disk, which virt-api has filled in where the user
// did not.
func diskBus(d *kvv1.Disk) kvv1.DiskBus {
	switch {
	case d.Disk != nil:
		return d.Disk.Bus
	case d.LUN != nil:
		return d.LUN.Bus
	case d.CDRom != nil:
		return d.CDRom.Bus
	}
	return ""
}

// deviceName is the name of device i of a bus: vda to vdz, vdaa and so on.
func deviceName(prefix string, i int) string {
	name := ""
	for ; i >= 0; i = i/26 - 1 {
		name = string(rune('a'+i%26)) + name
	}
	return prefix + name
}
