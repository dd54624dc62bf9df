// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"net"
	"net/netip"
	"strconv"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
)

// Processor is a CPU socket of the system.
type Processor struct {
	Header
	ProcessorType         string  `json:"ProcessorType"`
	ProcessorArchitecture string  `json:"ProcessorArchitecture,omitempty"`
	InstructionSet        string  `json:"InstructionSet,omitempty"`
	Model                 string  `json:"Model,omitempty"`
	Socket                string  `json:"Socket"`
	TotalCores            uint32  `json:"TotalCores,omitempty"`
	TotalThreads          uint32  `json:"TotalThreads,omitempty"`
	Status                *Status `json:"Status"`
}

// Stable returns the resource itself.
func (r *Processor) Stable() any { return r }

// maxProcessors bounds how many sockets are listed.
const maxProcessors = 1024

// Processors returns the system's CPU sockets.
func Processors(inventory *inventoryv1.Inventory) []*Processor {
	p := inventory.GetProcessors()
	cores, threads := processorTotals(p)
	var list []*Processor
	for i := range min(p.GetSockets(), maxProcessors) {
		id := strconv.Itoa(int(i) + 1)
		cpu := &Processor{
			Header:        Header{ODataID: MemberURI(ProcessorsURI, id), ODataType: "#Processor.v1_22_0.Processor", ID: id, Name: "Processor " + id},
			ProcessorType: "CPU", Model: p.GetModel(), Socket: "CPU " + id,
			TotalCores: cores, TotalThreads: threads, Status: enabled,
		}
		switch p.GetArchitecture() {
		case inventoryv1.Architecture_ARCHITECTURE_AMD64:
			cpu.ProcessorArchitecture, cpu.InstructionSet = "x86", "x86-64"
		case inventoryv1.Architecture_ARCHITECTURE_ARM64:
			cpu.ProcessorArchitecture, cpu.InstructionSet = "ARM", "ARM-A64"
		case inventoryv1.Architecture_ARCHITECTURE_S390X:
			cpu.ProcessorArchitecture = "OEM"
		case inventoryv1.Architecture_ARCHITECTURE_UNSPECIFIED, inventoryv1.Architecture_ARCHITECTURE_UNKNOWN:
		}
		list = append(list, cpu)
	}
	return list
}

// Memory is the memory of the system, as one module.
type Memory struct {
	Header
	CapacityMiB uint64  `json:"CapacityMiB"`
	Status      *Status `json:"Status"`
}

// Stable returns the resource itself.
func (r *Memory) Stable() any { return r }

// Memories returns the system's memory; nothing when its size is not known.
func Memories(inventory *inventoryv1.Inventory) []*Memory {
	mib := inventory.GetMemoryBytes() >> 20
	if mib == 0 {
		return nil
	}
	return []*Memory{{
		Header:      Header{ODataID: MemberURI(MemoryURI, "1"), ODataType: "#Memory.v1_23_0.Memory", ID: "1", Name: "Memory 1"},
		CapacityMiB: mib, Status: enabled,
	}}
}

// EthernetInterface is a network interface of the system.
type EthernetInterface struct {
	Header
	InterfaceEnabled    bool      `json:"InterfaceEnabled"`
	MACAddress          string    `json:"MACAddress,omitempty"`
	PermanentMACAddress string    `json:"PermanentMACAddress,omitempty"`
	IPv4Addresses       []Address `json:"IPv4Addresses,omitempty"`
	IPv6Addresses       []Address `json:"IPv6Addresses,omitempty"`
	Status              *Status   `json:"Status"`
}

// Address is an IP address.
type Address struct {
	Address string `json:"Address"`
}

// Stable returns the interface without its addresses, which the guest says.
func (r *EthernetInterface) Stable() any {
	c := *r
	c.IPv4Addresses, c.IPv6Addresses = nil, nil
	return &c
}

// EthernetInterfaces returns the system's network interfaces. They are enabled
// whether or not the machine runs: inspection leaves out others.
func EthernetInterfaces(inventory *inventoryv1.Inventory) []*EthernetInterface {
	var list []*EthernetInterface
	for _, nic := range inventory.GetInterfaces() {
		mac := macOf(nic.GetMacAddress())
		e := &EthernetInterface{
			Header: Header{
				ODataID: MemberURI(InterfacesURI, nic.GetName()), ODataType: "#EthernetInterface.v1_12_4.EthernetInterface",
				ID: nic.GetName(), Name: "Ethernet interface " + nic.GetName(),
			},
			InterfaceEnabled: true, MACAddress: mac, PermanentMACAddress: mac, Status: enabled,
		}
		for _, s := range nic.GetIpAddresses() {
			ip, err := netip.ParseAddr(s)
			if err != nil {
				continue
			}
			if ip = ip.Unmap(); ip.Is4() {
				e.IPv4Addresses = append(e.IPv4Addresses, Address{ip.String()})
			} else {
				e.IPv6Addresses = append(e.IPv6Addresses, Address{ip.WithZone("").String()})
			}
		}
		list = append(list, e)
	}
	return list
}

// macOf returns a MAC address with colons; empty when it is none.
func macOf(s string) string {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return ""
	}
	return mac.String()
}

// SimpleStorage is the disks of the system in the older, flat form.
type SimpleStorage struct {
	Header
	Devices []SimpleDevice `json:"Devices"`
	Status  *Status        `json:"Status"`
}

// SimpleDevice is a disk of a SimpleStorage.
type SimpleDevice struct {
	Name          string  `json:"Name"`
	CapacityBytes uint64  `json:"CapacityBytes,omitempty"`
	Status        *Status `json:"Status"`
}

// Stable returns the resource itself.
func (r *SimpleStorage) Stable() any { return r }

// NewSimpleStorage returns the system's disks.
func NewSimpleStorage(inventory *inventoryv1.Inventory) *SimpleStorage {
	s := &SimpleStorage{
		Header:  Header{ODataID: SimpleStorageURI, ODataType: "#SimpleStorage.v1_3_2.SimpleStorage", ID: "1", Name: "Simple Storage"},
		Devices: []SimpleDevice{}, Status: enabled,
	}
	for _, d := range inventory.GetDisks() {
		s.Devices = append(s.Devices, SimpleDevice{d.GetName(), d.GetCapacityBytes(), enabled})
	}
	return s
}
