// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

// Ports are those at which clients reach a BMC; 0: the protocol is off.
type Ports struct {
	HTTPS, HTTP, IPMI uint32
}

// NetworkProtocol is which protocols the BMC serves, and where. HTTPS has no link to
// its certificates: where there is one, clients look for a way to replace them over
// Redfish. CertificateLocations leads to the certificate.
type NetworkProtocol struct {
	Header
	HTTPS  Protocol `json:"HTTPS"`
	HTTP   Protocol `json:"HTTP"`
	IPMI   Protocol `json:"IPMI"`
	Status *Status  `json:"Status"`
}

// Protocol is a protocol of the BMC. Its port is null while it is off.
type Protocol struct {
	ProtocolEnabled bool    `json:"ProtocolEnabled"`
	Port            *uint32 `json:"Port"`
}

// Stable returns the resource itself.
func (r *NetworkProtocol) Stable() any { return r }

// NewNetworkProtocol returns what a BMC with these ports serves.
func NewNetworkProtocol(ports Ports) *NetworkProtocol {
	return &NetworkProtocol{
		Header: Header{
			ODataID: NetworkProtocolURI, ODataType: "#ManagerNetworkProtocol.v1_12_0.ManagerNetworkProtocol",
			ID: "NetworkProtocol", Name: "Manager Network Protocol",
		},
		HTTPS: protocolAt(ports.HTTPS), HTTP: protocolAt(ports.HTTP), IPMI: protocolAt(ports.IPMI), Status: enabled,
	}
}

func protocolAt(port uint32) Protocol {
	if port == 0 {
		return Protocol{}
	}
	return Protocol{ProtocolEnabled: true, Port: &port}
}

// consoleSessions is how many clients the serial console has: one that types and
// those that watch (frontend-ipmi, Serial over LAN).
const consoleSessions = 8

// SystemConsole is how the machine's serial console is reached.
type SystemConsole struct {
	MaxConcurrentSessions int             `json:"MaxConcurrentSessions"`
	IPMI                  ConsoleProtocol `json:"IPMI"`
}

// ConsoleProtocol is a protocol of the serial console.
type ConsoleProtocol struct {
	ServiceEnabled bool   `json:"ServiceEnabled"`
	Port           uint32 `json:"Port"`
}

// newSystemConsole returns the console of a machine that has one or not; nil where
// nothing leads to it.
func newSystemConsole(has bool, ports Ports) *SystemConsole {
	if !has || ports.IPMI == 0 {
		return nil
	}
	return &SystemConsole{MaxConcurrentSessions: consoleSessions, IPMI: ConsoleProtocol{true, ports.IPMI}}
}

// ManagerConsole is the serial console service of the BMC.
type ManagerConsole struct {
	ServiceEnabled        bool     `json:"ServiceEnabled"`
	MaxConcurrentSessions int      `json:"MaxConcurrentSessions"`
	ConnectTypesSupported []string `json:"ConnectTypesSupported"`
}

func newManagerConsole(ports Ports) *ManagerConsole {
	if ports.IPMI == 0 {
		return nil
	}
	return &ManagerConsole{ServiceEnabled: true, MaxConcurrentSessions: consoleSessions, ConnectTypesSupported: []string{"IPMI"}}
}
