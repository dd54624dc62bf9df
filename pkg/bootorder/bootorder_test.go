// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootorder_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func device(kind hypervisor.DeviceKind, name string, order int) hypervisor.BootDevice {
	return hypervisor.BootDevice{Name: name, Kind: kind, Order: order}
}

const (
	disk  = hypervisor.DeviceDisk
	cdrom = hypervisor.DeviceCDROM
	nic   = hypervisor.DeviceInterface
)

func TestPlan(t *testing.T) {
	t.Parallel()
	typical := []hypervisor.BootDevice{device(disk, "d1", 1), device(disk, "d2", 0), device(cdrom, "c1", 0), device(nic, "n1", 2), device(nic, "n2", 0)}
	bare := []hypervisor.BootDevice{device(disk, "d1", 0), device(cdrom, "c1", 0), device(nic, "n1", 0), device(nic, "n2", 0)}
	for name, test := range map[string]struct {
		devices []hypervisor.BootDevice
		first   hypervisor.DeviceKind
		want    map[string]int
	}{
		"network, that has an order":               {typical, nic, map[string]int{"n1": 1, "d1": 2, "d2": 3, "c1": 4, "n2": 0}},
		"CD, then the machine's own order":         {typical, cdrom, map[string]int{"c1": 1, "d1": 2, "n1": 3, "d2": 4, "n2": 0}},
		"disks, then the machine's own order":      {typical, disk, map[string]int{"d1": 1, "d2": 2, "n1": 3, "c1": 4, "n2": 0}},
		"network of a machine without any order":   {bare, nic, map[string]int{"n1": 1, "d1": 2, "c1": 3, "n2": 0}},
		"CD of a machine without any order":        {bare, cdrom, map[string]int{"c1": 1, "d1": 2, "n1": 0, "n2": 0}},
		"gaps are closed":                          {[]hypervisor.BootDevice{device(disk, "d1", 20), device(nic, "n1", 30)}, nic, map[string]int{"n1": 1, "d1": 2}},
		"the kind's own order is kept":             {[]hypervisor.BootDevice{device(nic, "n1", 3), device(nic, "n2", 2), device(disk, "d1", 1)}, nic, map[string]int{"n2": 1, "n1": 2, "d1": 3}},
		"no device of the kind":                    {[]hypervisor.BootDevice{device(disk, "d1", 1)}, cdrom, nil},
		"the first interface where none has one":   {[]hypervisor.BootDevice{device(nic, "n1", 0), device(nic, "n2", 0)}, nic, map[string]int{"n1": 1, "n2": 0}},
		"interfaces with an order keep their boot": {[]hypervisor.BootDevice{device(disk, "d1", 0), device(nic, "n1", 1)}, disk, map[string]int{"d1": 1, "n1": 2}},
	} {
		got := bootorder.Plan(test.devices, bootorder.Orders(test.devices), test.first)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: orders mismatch (-want +got)\n%s", name, diff)
		}
	}
}

func with(devices []hypervisor.BootDevice, orders map[string]int) []hypervisor.BootDevice {
	out := make([]hypervisor.BootDevice, len(devices))
	for n, d := range devices {
		if order, ok := orders[d.Name]; ok {
			d.Order = order
		}
		out[n] = d
	}
	return out
}

// TestRestore_anyMachine: without edits restoring gives exactly the own orders
// back; with edits they stay, and orders are always unique.
func TestRestore_anyMachine(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	kinds := []hypervisor.DeviceKind{disk, cdrom, nic}
	for range 5000 {
		var devices []hypervisor.BootDevice
		orders := random.Perm(12)
		for n := range 1 + random.IntN(6) {
			devices = append(devices, device(kinds[random.IntN(3)], string(rune('a'+n)), max(orders[n]-4, 0)))
		}
		own := bootorder.Orders(devices)
		planned := bootorder.Plan(devices, own, kinds[random.IntN(3)])
		if planned == nil {
			continue
		}
		unique(t, planned)
		armed := with(devices, planned)
		if diff := cmp.Diff(own, bootorder.Restore(armed, own, planned)); diff != "" {
			t.Fatalf("restoring %v changed the machine (-want +got)\n%s", devices, diff)
		}
		if diff := cmp.Diff(own, bootorder.Restore(devices, own, planned)); diff != "" {
			t.Fatalf("restoring what was never armed changed %v (-want +got)\n%s", devices, diff)
		}
		edited := random.IntN(len(armed))
		armed[edited].Order = 20
		restored := bootorder.Restore(armed, own, planned)
		unique(t, restored)
		if got := restored[armed[edited].Name]; got != 20 {
			t.Fatalf("the edit was lost: %d", got)
		}
		again := bootorder.Restore(with(armed, restored), own, planned)
		if diff := cmp.Diff(restored, again); diff != "" {
			t.Fatalf("restoring twice is not restoring once (-once +twice)\n%s", diff)
		}
	}
}

func unique(t *testing.T, orders map[string]int) {
	t.Helper()
	seen := map[int]bool{}
	for _, order := range orders {
		if order > 0 && seen[order] {
			t.Fatalf("order %d is there twice: %v", order, orders)
		}
		seen[order] = true
	}
}

func TestRestore_collisionMovesTheRestoredDevice(t *testing.T) {
	t.Parallel()
	own := map[string]int{"d1": 1, "n1": 2}
	planned := map[string]int{"n1": 1, "d1": 2}
	// Somebody has added a disk and given it the first place.
	devices := []hypervisor.BootDevice{device(disk, "new", 1), device(disk, "d1", 2), device(nic, "n1", 3)}
	want := map[string]int{"new": 1, "d1": 2, "n1": 3}
	if diff := cmp.Diff(want, bootorder.Restore(devices, own, planned)); diff != "" {
		t.Errorf("orders mismatch (-want +got)\n%s", diff)
	}
}

func TestSameFirst(t *testing.T) {
	t.Parallel()
	planned := map[string]int{"cdrom": 1, "rootdisk": 2, "default": 3}
	for name, test := range map[string]struct {
		instance map[string]int
		want     bool
	}{
		"as planned":                    {map[string]int{"cdrom": 1, "rootdisk": 2, "default": 3}, true},
		"another order behind it":       {map[string]int{"cdrom": 1, "rootdisk": 9, "default": 2}, true},
		"a device has come since":       {map[string]int{"cdrom": 1, "rootdisk": 2, "default": 3, "second": 4}, true},
		"a device behind it has gone":   {map[string]int{"cdrom": 1, "default": 3}, true},
		"the machine's own order":       {map[string]int{"rootdisk": 1, "cdrom": 2}, false},
		"the planned device comes last": {map[string]int{"rootdisk": 1, "default": 2, "cdrom": 3}, false},
		"no orders":                     {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := bootorder.SameFirst(test.instance, planned); got != test.want {
				t.Errorf("SameFirst(%v, %v) = %v, want %v", test.instance, planned, got, test.want)
			}
		})
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	devices := []hypervisor.BootDevice{{Name: "disk", Order: 1}, {Name: "cd"}, {Name: "nic", Order: 7}}
	got, missing := bootorder.Number(devices, []string{"nic", "cd"})
	if d := cmp.Diff(map[string]int{"nic": 1, "cd": 2, "disk": 0}, got); d != "" || missing != "" {
		t.Errorf("missing %q, orders (-want +got):\n%s", missing, d)
	}
	if got, missing := bootorder.Number(devices, []string{"nic", "floppy"}); got != nil || missing != "floppy" {
		t.Errorf("with a device that is not there: %v, missing %q", got, missing)
	}
}
