// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"unicode"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// System info parameters (IPMI v2.0 table 22-16c).
const (
	infoSetInProgress    = 0
	infoFirmwareVersion  = 1 // Nobody tells it, but FreeIPMI's bmc-info reads on only behind it.
	infoSystemName       = 2
	infoPrimaryOS        = 3
	infoOS               = 4
	infoOSVersion        = 5
	infoRevision         = 0x11
	infoBlockSize        = 16
	infoMaxText          = 255
	infoEncodingASCII    = 0
	infoEncodingUTF8     = 1
	infoRevisionOnly     = 0x80
	infoGetRequestLength = 4
)

// systemInfo has the system info commands of IPMI v2.0 section 22.
type systemInfo struct {
	inventory backend.Inventory
}

func registerSystemInfo(m *Mux, inventory backend.Inventory) {
	c := systemInfo{inventory: inventory}
	m.Handle(ipmi.NetFnApp, 0x58, Command{
		Name: "set_system_info_parameters", Privilege: ipmi.PrivilegeAdministrator,
		MinLength: 1, MaxLength: 18, Handle: c.set,
	})
	m.Handle(ipmi.NetFnApp, 0x59, Command{
		Name: "get_system_info_parameters", Privilege: ipmi.PrivilegeUser, Backend: true,
		MinLength: infoGetRequestLength, MaxLength: infoGetRequestLength, Handle: c.get,
	})
}

// set answers Set System Info Parameters (IPMI v2.0 section 22.14a): what there
// is comes from the machine.
func (systemInfo) set(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	switch r.Data[0] {
	case infoSetInProgress, infoFirmwareVersion, infoSystemName, infoPrimaryOS, infoOS, infoOSVersion:
		return ipmi.ParameterReadOnly, nil
	}
	return ipmi.ParameterNotSupported, nil
}

// get answers Get System Info Parameters (IPMI v2.0 section 22.14b). What the
// guest does not tell is an empty text.
func (c systemInfo) get(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	selector, block := r.Data[1], int(r.Data[2])
	switch selector {
	case infoSetInProgress, infoFirmwareVersion, infoSystemName, infoPrimaryOS, infoOS, infoOSVersion:
	default:
		return ipmi.ParameterNotSupported, nil
	}
	if r.Data[0]&infoRevisionOnly != 0 {
		return ipmi.OK, []byte{infoRevision}
	}
	if selector == infoSetInProgress {
		return ipmi.OK, []byte{infoRevision, 0}
	}
	inventory, err := c.inventory.Get(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	guest := inventory.GetGuestOperatingSystem()
	text := map[byte]string{
		infoSystemName: inventory.GetMachineName(),
		infoPrimaryOS:  guest.GetName(),
		infoOS:         guest.GetName(),
		infoOSVersion:  guest.GetVersion(),
	}[selector]
	data, ok := textBlock(text, block)
	if !ok {
		return ipmi.ParameterOutOfRange, nil
	}
	return ipmi.OK, append([]byte{infoRevision, byte(block)}, data...) //nolint:gosec // It was a byte.
}

// textBlock returns a block of a text: the first has its encoding and length
// before 14 bytes of it, the others have 16 bytes. False beyond the end.
func textBlock(text string, block int) ([]byte, bool) {
	if len(text) > infoMaxText {
		text = text[:infoMaxText]
	}
	encoding := byte(infoEncodingASCII)
	for _, r := range text {
		if r > unicode.MaxASCII {
			encoding = infoEncodingUTF8
		}
	}
	whole := append([]byte{encoding, byte(len(text))}, text...) //nolint:gosec // At most 255.
	from := block * infoBlockSize
	if from >= len(whole) {
		return nil, false
	}
	data := make([]byte, infoBlockSize)
	copy(data, whole[from:])
	return data, true
}
