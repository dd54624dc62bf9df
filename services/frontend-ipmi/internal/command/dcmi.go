// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// DCMI is a group of commands (DCMI v1.1, section 6): the first byte of requests and
// answers says which group it is.
const (
	groupDCMI = 0xDC
	dcmiMajor = 1
	dcmiMinor = 1
	// dcmiRevision is that of the capabilities in which each capability that the
	// standard asks for has a bit of its own: that of temperatures is not set.
	dcmiRevision = 1
	// dcmiWindow is how much of a text one answer may have.
	dcmiWindow = 16
	// dcmiMaxText is how long asset tag and identifier string may be, the latter
	// with a zero at its end.
	dcmiMaxText = 63
)

// dcmi has the DCMI commands that tell something: capabilities, asset tag and the
// controller's identifier. Of power and temperature nothing is known, so those
// commands are not served, and names come from Kubernetes, so they can't be set.
type dcmi struct {
	log backend.Events
}

func registerDCMI(m *Mux, events backend.Events) {
	c := dcmi{log: events}
	for number, command := range map[byte]Command{
		0x01: {Name: "get_dcmi_capabilities", MinLength: 1, MaxLength: 2, Handle: c.capabilities},
		0x06: {Name: "get_asset_tag", MinLength: 1, MaxLength: 3, Handle: c.assetTag},
		0x09: {Name: "get_management_controller_id", MinLength: 1, MaxLength: 3, Handle: c.identifier},
	} {
		command.Privilege = ipmi.PrivilegeUser
		command.Handle = ofGroup(groupDCMI, command.MaxLength, command.Handle)
		m.Handle(ipmi.NetFnGroupExtension, number, command)
	}
}

// ofGroup has commands of other groups, as PICMG's, answered as what they are: not
// known. The answer begins with the group.
func ofGroup(group byte, length int, handle Handler) Handler {
	return func(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
		switch {
		case r.Data[0] != group:
			return ipmi.InvalidCommand, nil
		case len(r.Data) != length:
			return ipmi.InvalidLength, nil
		}
		code, data := handle(ctx, r)
		if code != ipmi.OK {
			return code, nil
		}
		return ipmi.OK, append([]byte{group}, data...)
	}
}

// capabilities answers Get DCMI Capabilities Info (DCMI v1.1 section 6.1).
func (c dcmi) capabilities(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		supported     = 1
		platform      = 2
		optional      = 3
		manageability = 4
		statistics    = 5

		identification = 0x01
		selLogging     = 0x02
		chassisPower   = 0x04

		primaryLAN = 0x08
		hasSOL     = 0x10

		selCapacity    = 500
		dropsOldest    = 0x1000
		rollsOver      = 0x8000
		guidSupport    = 0x01
		assetTag       = 0x04
		noSuchChannel  = 0xFF
		noTemperatures = 0x00
		noAddress      = 0x00
		noPeriods      = 0x00
	)
	data := []byte{dcmiMajor, dcmiMinor, dcmiRevision}
	switch r.Data[1] {
	case supported:
		mandatory, access := byte(identification|chassisPower), byte(primaryLAN)
		if c.log != nil {
			mandatory |= selLogging
		}
		if r.Target.Console != nil {
			access |= hasSOL
		}
		return ipmi.OK, append(data, mandatory, 0, access)
	case platform:
		var log uint16
		if c.log != nil {
			log = selCapacity | dropsOldest | rollsOver
		}
		data = binary.LittleEndian.AppendUint16(data, log)
		return ipmi.OK, append(data, guidSupport|assetTag, noTemperatures)
	case optional: // Clients ask for all parameters, although parameter 1 has none of it.
		return ipmi.OK, append(data, noAddress, noAddress)
	case statistics:
		return ipmi.OK, append(data, noPeriods)
	case manageability:
		return ipmi.OK, append(data, channelLAN, noSuchChannel, noSuchChannel)
	}
	return ipmi.ParameterOutOfRange, nil
}

// assetTag answers Get Asset Tag (DCMI v1.1 section 6.4.2): what the BMC is called
// where it is managed.
func (dcmi) assetTag(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	ref := r.Target.Reference
	return dcmiText(r, printable(ref.GetNamespace()+"/"+ref.GetName(), dcmiMaxText))
}

// identifier answers Get Management Controller Identifier String (DCMI v1.1 section
// 6.4.6): the BMC's name, with a zero at its end.
func (dcmi) identifier(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	return dcmiText(r, printable(r.Target.Reference.GetName(), dcmiMaxText)+"\x00")
}

// dcmiText returns a window of a text after its whole length.
func dcmiText(r *Request, text string) (ipmi.CompletionCode, []byte) {
	offset, count := int(r.Data[1]), int(r.Data[2])
	if offset > len(text) || count > dcmiWindow {
		return ipmi.ParameterOutOfRange, nil
	}
	part := text[offset:min(offset+count, len(text))]
	return ipmi.OK, append([]byte{byte(len(text))}, part...) //nolint:gosec // At most 64.
}
