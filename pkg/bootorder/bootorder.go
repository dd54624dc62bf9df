// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootorder computes the boot orders of a machine's template for an
// override, and back. It is pure.
package bootorder

import (
	"cmp"
	"maps"
	"slices"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Orders returns the order of each device, 0 for those without.
func Orders(devices []hypervisor.BootDevice) map[string]int {
	orders := make(map[string]int, len(devices))
	for _, d := range devices {
		orders[d.Name] = d.Order
	}
	return orders
}

// Sort returns the devices in the order that orders say, those without one last
// and otherwise as they were.
func Sort(devices []hypervisor.BootDevice, orders map[string]int) []hypervisor.BootDevice {
	sorted := slices.Clone(devices)
	for n := range sorted {
		sorted[n].Order = orders[sorted[n].Name]
	}
	slices.SortStableFunc(sorted, func(a, b hypervisor.BootDevice) int {
		switch {
		case a.Order == b.Order:
			return 0
		case a.Order == 0:
			return 1
		case b.Order == 0:
			return -1
		default:
			return cmp.Compare(a.Order, b.Order)
		}
	})
	return sorted
}

// Number returns the orders of devices when those of some names come in that order,
// and the first name that none of them has.
func Number(devices []hypervisor.BootDevice, names []string) (orders map[string]int, missing string) {
	orders = make(map[string]int, len(devices))
	for _, d := range devices {
		orders[d.Name] = 0
	}
	for n, name := range names {
		if _, ok := orders[name]; !ok {
			return nil, name
		}
		orders[name] = n + 1
	}
	return orders, ""
}

// Plan numbers all devices so that those of one kind come first; nil when there
// is none of that kind. Within the kind and behind it the devices keep the
// order that own says. Drives without an order follow the rest, so that
// firmware falls through to them. A network interface without an order stays
// without, for an order costs it a boot ROM that it did not have: only the
// first interface gets one where interfaces are what to boot from.
func Plan(devices []hypervisor.BootDevice, own map[string]int, first hypervisor.DeviceKind) map[string]int {
	sorted := Sort(devices, own)
	if !slices.ContainsFunc(sorted, func(d hypervisor.BootDevice) bool { return d.Kind == first }) {
		return nil
	}
	planned := make(map[string]int, len(sorted))
	order := 0
	number := func(d hypervisor.BootDevice) {
		order++
		planned[d.Name] = order
	}
	for _, d := range sorted {
		if d.Kind == first && (d.Kind != hypervisor.DeviceInterface || d.Order > 0 || order == 0) {
			number(d)
		}
	}
	for _, d := range sorted {
		if _, ok := planned[d.Name]; ok {
			continue
		}
		if d.Kind == hypervisor.DeviceInterface && d.Order == 0 {
			planned[d.Name] = 0
			continue
		}
		number(d)
	}
	return planned
}

// Restore returns the orders of the template without an override: devices whose
// order still is one that was set for the override (one of the maps written) get
// their own back, devices that somebody has changed in the meantime keep the
// change. Where the two collide, the restored device moves behind.
func Restore(devices []hypervisor.BootDevice, own map[string]int, written ...map[string]int) map[string]int {
	restored := make(map[string]int, len(devices))
	taken := map[int]bool{}
	var ours []hypervisor.BootDevice
	for _, d := range devices {
		if slices.ContainsFunc(written, func(orders map[string]int) bool {
			order, ok := orders[d.Name]
			return ok && order == d.Order
		}) {
			d.Order = max(own[d.Name], 0)
			ours = append(ours, d)
			continue
		}
		restored[d.Name] = d.Order
		taken[d.Order] = true
	}
	for _, d := range Sort(ours, Orders(ours)) {
		for d.Order > 0 && taken[d.Order] {
			d.Order++
		}
		restored[d.Name] = d.Order
		taken[d.Order] = true
	}
	return restored
}

// SameFirst tells whether an instance boots first from the device that is first
// in the plan: of the planned devices, the first that the instance has. What
// comes behind it may have been changed meanwhile.
func SameFirst(instance, planned map[string]int) bool {
	known := maps.Clone(planned)
	maps.DeleteFunc(known, func(name string, _ int) bool { return instance[name] == 0 })
	name := first(known)
	return name != "" && name == first(instance)
}

// Equal tells whether the devices have the orders.
func Equal(devices []hypervisor.BootDevice, orders map[string]int) bool {
	return !slices.ContainsFunc(devices, func(d hypervisor.BootDevice) bool {
		order, ok := orders[d.Name]
		return ok && d.Order != order
	})
}

// first returns the device with the lowest order; empty when none has one.
func first(orders map[string]int) string {
	var name string
	for n, order := range orders {
		if order > 0 && (name == "" || order < orders[name]) {
			name = n
		}
	}
	return name
}
