// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"net"
	"net/netip"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// LAN configuration parameters (IPMI v2.0 table 23-4).
const (
	lanSetInProgress      = 0
	lanAuthTypeSupport    = 1
	lanAuthTypeEnables    = 2
	lanAddress            = 3
	lanAddressSource      = 4
	lanMAC                = 5
	lanSubnetMask         = 6
	lanGateway            = 12
	lanGatewayMAC         = 13
	lanBackupGateway      = 14
	lanBackupGatewayMAC   = 15
	lanCommunity          = 16
	lanVLANID             = 20
	lanVLANPriority       = 21
	lanSuiteSupport       = 22
	lanSuiteEntries       = 23
	lanSuitePrivileges    = 24
	lanParametersRevision = 0x11
)

// sourceOther: the address comes from neither a setting nor DHCP (IPMI v2.0
// table 23-4, parameter 4), but from Kubernetes.
const sourceOther = 0x04

// Interface is a network interface of the host.
type Interface struct {
	MAC net.HardwareAddr
	// Bits is the length of the network's prefix.
	Bits int
}

// lan has the LAN commands of IPMI v2.0 section 23.
type lan struct {
	interfaceOf func(netip.Addr) (Interface, bool)
}

// registerLAN adds the LAN configuration commands. Suspend BMC ARPs (03h) and
// Get IP/UDP/RMCP Statistics (04h) are not served: the host has the network.
func registerLAN(m *Mux, interfaceOf func(netip.Addr) (Interface, bool)) {
	c := lan{interfaceOf: interfaceOf}
	m.Handle(ipmi.NetFnTransport, 0x01, Command{
		Name: "set_lan_configuration", Privilege: ipmi.PrivilegeAdministrator,
		MinLength: 2, MaxLength: 64, Handle: c.set,
	})
	m.Handle(ipmi.NetFnTransport, 0x02, Command{
		Name: "get_lan_configuration", Privilege: ipmi.PrivilegeOperator,
		MinLength: 4, MaxLength: 4, Handle: c.get,
	})
}

// set answers Set LAN Configuration Parameters (IPMI v2.0 section 23.1): the
// network is Kubernetes' to configure, so all that can be read is read-only.
func (c lan) set(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	if c.parameter(r, r.Data[1]) == nil {
		return ipmi.ParameterNotSupported, nil
	}
	return ipmi.ParameterReadOnly, nil
}

// get answers Get LAN Configuration Parameters (IPMI v2.0 section 23.2).
func (c lan) get(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const revisionOnly = 0x80
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	data := c.parameter(r, r.Data[1])
	switch {
	case data == nil:
		return ipmi.ParameterNotSupported, nil
	case r.Data[0]&revisionOnly != 0:
		return ipmi.OK, []byte{lanParametersRevision}
	}
	return ipmi.OK, append([]byte{lanParametersRevision}, data...)
}

// parameter returns a parameter; nil when it is not supported.
func (c lan) parameter(r *Request, selector byte) []byte {
	suites := r.Target.Suites
	switch selector {
	case lanSetInProgress:
		return []byte{0}
	case lanAuthTypeSupport:
		return []byte{0} // Those of IPMI v1.5: none.
	case lanAuthTypeEnables:
		return make([]byte, 5)
	case lanAddress:
		return addressBytes(address(r))
	case lanAddressSource:
		return []byte{sourceOther}
	case lanMAC:
		mac := make([]byte, 6)
		if i, ok := c.interfaceOf(address(r)); ok {
			copy(mac, i.MAC)
		}
		return mac
	case lanSubnetMask:
		return c.subnetMask(address(r))
	case lanGateway, lanBackupGateway:
		return make([]byte, 4) // None that is the BMC's own.
	case lanGatewayMAC, lanBackupGatewayMAC:
		return make([]byte, 6)
	case lanCommunity:
		return make([]byte, 18) // No traps are sent.
	case lanVLANID:
		return make([]byte, 2) // Off.
	case lanVLANPriority:
		return []byte{0}
	case lanSuiteSupport:
		return []byte{byte(len(suites))} //nolint:gosec // 17 and 3 at most.
	case lanSuiteEntries:
		entries := []byte{0}
		for _, s := range suites {
			entries = append(entries, s.ID)
		}
		return entries
	case lanSuitePrivileges:
		// Four bits for each entry: the most that it is good for.
		levels := make([]byte, 9)
		for i := range suites {
			levels[1+i/2] |= byte(ipmi.PrivilegeAdministrator) << (4 * (i % 2))
		}
		return levels
	}
	return nil
}

// address is where clients reach the BMC.
func address(r *Request) netip.Addr {
	if r.Target.ClientAddress.IsValid() {
		return r.Target.ClientAddress
	}
	return r.Local.Unmap()
}

// addressBytes are zero for an address of IPv6: the parameter can't say it.
func addressBytes(a netip.Addr) []byte {
	if !a.Is4() {
		return make([]byte, 4)
	}
	return a.AsSlice()
}

// subnetMask of an address of the host is that of its network; another one, as
// of a Service, stands for itself alone.
func (c lan) subnetMask(a netip.Addr) []byte {
	bits := 32
	if i, ok := c.interfaceOf(a); ok {
		bits = i.Bits
	}
	if !a.Is4() {
		return make([]byte, 4)
	}
	return net.CIDRMask(bits, 32)
}
