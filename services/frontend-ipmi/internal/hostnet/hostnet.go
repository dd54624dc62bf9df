// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostnet looks at the host's network interfaces.
package hostnet

import (
	"net"
	"net/netip"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
)

// InterfaceOf returns the interface that has an address; false when none has, or
// the host does not tell.
func InterfaceOf(address netip.Addr) (command.Interface, bool) {
	interfaces, err := net.Interfaces()
	if err != nil || !address.IsValid() {
		return command.Interface{}, false
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && prefix.Addr().Unmap() == address.Unmap() {
				return command.Interface{MAC: i.HardwareAddr, Bits: prefix.Bits()}, true
			}
		}
	}
	return command.Interface{}, false
}
