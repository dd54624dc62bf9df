// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"slices"

	"google.golang.org/protobuf/proto"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// Ref names a BMC.
type Ref struct{ Namespace, Name string }

// RefOf returns the name that a message has.
func RefOf(ref *referencev1.BMCReference) Ref { return Ref{ref.GetNamespace(), ref.GetName()} }

// String returns namespace/name, by which BMCs are hashed.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Message returns the name as messages have it.
func (r Ref) Message() *referencev1.BMCReference {
	return &referencev1.BMCReference{Namespace: r.Namespace, Name: r.Name}
}

// Entry is a BMC of the registry.
type Entry struct {
	// BMC is how it is to be served. It belongs to the registry from then on.
	BMC *registryv1.BMC
	// Agent is the identity of the frontends that serve this BMC alone, which no
	// others do; empty: the shared frontends serve it.
	Agent string
}

// protocols are those that frontends speak.
var protocols = [...]registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH}

// contentFor returns what a frontend of a protocol gets of a BMC: nil when it is
// not served by it, and no secret that the protocol has no use for.
func contentFor(bmc *registryv1.BMC, protocol registryv1.Protocol) *registryv1.BMC {
	content := &registryv1.BMC{Bmc: bmc.GetBmc(), Uuid: bmc.GetUuid()}
	switch protocol {
	case registryv1.Protocol_PROTOCOL_IPMI:
		if bmc.GetIpmi() == nil {
			return nil
		}
		content.Ipmi = bmc.GetIpmi()
	case registryv1.Protocol_PROTOCOL_REDFISH:
		if bmc.GetRedfish() == nil {
			return nil
		}
		content.Redfish = bmc.GetRedfish()
		if ipmi := bmc.GetIpmi(); ipmi != nil {
			// Redfish clients may ask for the port of IPMI.
			content.Ipmi = &registryv1.IPMIEndpoint{Udp: ipmi.GetUdp(), CipherSuites: ipmi.GetCipherSuites()}
		}
	default:
		return nil
	}
	for _, account := range bmc.GetAccounts() {
		if slices.Contains(account.GetProtocols(), protocol) {
			content.Accounts = append(content.Accounts, account)
		}
	}
	return content
}

// same tells whether a frontend that has one content need not be told the other.
func same(a, b *registryv1.BMC) bool { return a != nil && b != nil && proto.Equal(a, b) }
