// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"slices"
	"testing"

	kvv1 "kubevirt.io/api/core/v1"
)

func TestDescribeVolumes(t *testing.T) {
	t.Parallel()
	vmi := instance(nil)
	virtio := func(name string) kvv1.Disk {
		return kvv1.Disk{Name: name, DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{Bus: kvv1.DiskBusVirtio}}}
	}
	cd := func(name string) kvv1.Disk {
		return kvv1.Disk{Name: name, DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{Bus: kvv1.DiskBusSATA}}}
	}
	vmi.Spec.Domain.Devices.Disks = []kvv1.Disk{virtio("root"), cd("empty"), cd("full"), virtio("data")}
	vmi.Spec.Volumes = []kvv1.Volume{{Name: "root"}, {Name: "full"}, {Name: "data"}}
	vmi.Status.VolumeStatus = []kvv1.VolumeStatus{{Name: "root", Size: 7}, {Name: "full"}, {Name: "data"}}
	describeVolumes(vmi)
	want := []kvv1.VolumeStatus{{Name: "data", Target: "vdb"}, {Name: "full", Target: "sdb"}, {Name: "root", Target: "vda", Size: 7}}
	if !slices.EqualFunc(vmi.Status.VolumeStatus, want, func(a, b kvv1.VolumeStatus) bool {
		return a.Name == b.Name && a.Target == b.Target && a.Size == b.Size
	}) {
		t.Errorf("volumes are %+v, want %+v", vmi.Status.VolumeStatus, want)
	}
}

func TestDeviceName(t *testing.T) {
	t.Parallel()
	for i, want := range map[int]string{0: "vda", 25: "vdz", 26: "vdaa", 701: "vdzz", 702: "vdaaa"} {
		if got := deviceName("vd", i); got != want {
			t.Errorf("deviceName(%d) = %q, want %q", i, got, want)
		}
	}
}
