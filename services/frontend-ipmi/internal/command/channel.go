// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// registerChannel adds the channel commands of IPMI v2.0 section 22. Set Channel
// Access (40h) is not served: what the channel allows is fixed.
func registerChannel(m *Mux) {
	m.Handle(ipmi.NetFnApp, 0x41, Command{
		Name: "get_channel_access", Privilege: ipmi.PrivilegeUser,
		MinLength: 2, MaxLength: 2, Handle: channelAccess,
	})
	m.Handle(ipmi.NetFnApp, 0x42, Command{
		Name: "get_channel_info", Privilege: ipmi.PrivilegeUser,
		MinLength: 1, MaxLength: 1, Handle: channelInfo,
	})
}

// channelAccess answers Get Channel Access (IPMI v2.0 section 22.23): always
// available, up to ADMINISTRATOR, every message authenticated, no alerts. The
// settings that last and the present ones are the same.
func channelAccess(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		settingsMask     = 0xC0
		nonVolatile      = 0x40
		volatile         = 0x80
		alertingDisabled = 0x20
		alwaysAvailable  = 0x02
	)
	settings := r.Data[1] & settingsMask
	if !isLANChannel(r.Data[0]) || (settings != nonVolatile && settings != volatile) {
		return ipmi.InvalidDataField, nil
	}
	return ipmi.OK, []byte{alertingDisabled | alwaysAvailable, byte(ipmi.PrivilegeAdministrator)}
}

// channelInfo answers Get Channel Info (IPMI v2.0 section 22.24).
func channelInfo(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		medium8023   = 0x04
		protocolIPMB = 0x01 // The format of messages over LAN.
		multiSession = 0x80
	)
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	active := byte(min(len(r.sessions()), 0x3F))
	return ipmi.OK, []byte{
		channelLAN, medium8023, protocolIPMB, multiSession | active,
		0xF2, 0x1B, 0x00, // The protocol's owner: the IPMI forum, 7154.
		0, 0, // No auxiliary information.
	}
}
