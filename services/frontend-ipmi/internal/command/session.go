// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"
	"slices"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// Channels: the one that there is, and "the one this came by" (IPMI v2.0 table
// 6-1).
const (
	channelLAN     = 0x01
	channelPresent = 0x0E
	channelMask    = 0x0F
)

// registerSession adds the session commands of IPMI v2.0 section 22.
func registerSession(m *Mux) {
	m.Handle(ipmi.NetFnApp, 0x38, Command{
		Name: "get_channel_authentication_capabilities", Sessionless: true,
		MinLength: 2, MaxLength: 2, Handle: authenticationCapabilities,
	})
	m.Handle(ipmi.NetFnApp, 0x54, Command{
		Name: "get_channel_cipher_suites", Sessionless: true,
		MinLength: 3, MaxLength: 3, Handle: cipherSuites,
	})
	m.Handle(ipmi.NetFnApp, 0x3B, Command{
		Name: "set_session_privilege_level", Privilege: ipmi.PrivilegeUser,
		MinLength: 1, MaxLength: 1, Handle: setPrivilege,
	})
	m.Handle(ipmi.NetFnApp, 0x3C, Command{
		Name: "close_session", Privilege: ipmi.PrivilegeCallback,
		MinLength: 4, MaxLength: 5, Handle: closeSession,
	})
	m.Handle(ipmi.NetFnApp, 0x3D, Command{
		Name: "get_session_info", Privilege: ipmi.PrivilegeUser,
		MinLength: 1, MaxLength: 5, Handle: sessionInfo,
	})
}

func isLANChannel(b byte) bool { return b&channelMask == channelLAN || b&channelMask == channelPresent }

// authenticationCapabilities answers Get Channel Authentication Capabilities
// (IPMI v2.0 section 22.13). No IPMI v1.5 authentication type is offered.
func authenticationCapabilities(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		extendedData    = 0x80
		kgSet           = 0x20
		namedUsers      = 0x04
		connectionsRMCP = 0x02
	)
	privilege := ipmi.Privilege(r.Data[1] & 0x0F)
	if !isLANChannel(r.Data[0]) || privilege < ipmi.PrivilegeCallback || privilege > ipmi.PrivilegeOEM {
		return ipmi.InvalidDataField, nil
	}
	data := []byte{channelLAN, 0, namedUsers, 0, 0, 0, 0, 0}
	if r.Target.HasKg {
		data[2] |= kgSet
	}
	if r.Data[0]&extendedData != 0 {
		data[1] |= extendedData
		data[3] |= connectionsRMCP
	}
	return ipmi.OK, data
}

// cipherSuites answers Get Channel Cipher Suites (IPMI v2.0 section 22.15): up
// to 16 bytes of the list, from 16 times the index on.
func cipherSuites(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		bySuite   = 0x80
		indexMask = 0x3F
		chunk     = 16
	)
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	var list []byte
	for _, s := range r.Target.Suites {
		if r.Data[2]&bySuite != 0 {
			list = s.AppendRecord(list)
		} else {
			list = append(list, s.AppendRecord(nil)[2:]...)
		}
	}
	from := min(int(r.Data[2]&indexMask)*chunk, len(list))
	return ipmi.OK, append([]byte{channelLAN}, list[from:min(from+chunk, len(list))]...)
}

// setPrivilege answers Set Session Privilege Level (IPMI v2.0 section 22.18).
func setPrivilege(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	level := ipmi.Privilege(r.Data[0] & 0x0F)
	switch {
	case level == ipmi.PrivilegeNone: // Asks for the present level.
	case level == ipmi.PrivilegeCallback, level > ipmi.PrivilegeOEM:
		return ipmi.InvalidDataField, nil
	case level == ipmi.PrivilegeOEM:
		return ipmi.LevelNotAvailable, nil
	case level > r.Session.Max:
		return ipmi.LevelExceedsLimit, nil
	default:
		r.Session.Level = level
	}
	return ipmi.OK, []byte{byte(r.Session.Level)}
}

// closeSession answers Close Session (IPMI v2.0 section 22.19) for the session
// that it comes in; session handles are not given out.
func closeSession(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if len(r.Data) != 4 || binary.LittleEndian.Uint32(r.Data) != r.Session.ID {
		return ipmi.InvalidSessionID, nil
	}
	r.Session.Closed = true
	return ipmi.OK, nil
}

// sessionInfo answers Get Session Info (IPMI v2.0 section 22.20). Sessions are
// numbered from 1, oldest first; the number serves as handle. An IPv6 address
// does not fit in and reads as 0.0.0.0, and the console's MAC address is unknown.
func sessionInfo(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		present  = 0x00
		byHandle = 0xFE
		byID     = 0xFF
		possible = 63
		rmcpPlus = 0x10
	)
	sizes := map[byte]int{byHandle: 2, byID: 5}
	want := sizes[r.Data[0]]
	if want == 0 {
		want = 1
	}
	if len(r.Data) != want {
		return ipmi.InvalidLength, nil
	}
	sessions := r.sessions()
	var found int
	switch r.Data[0] {
	case present, byID:
		id := r.Session.ID
		if r.Data[0] == byID {
			id = binary.LittleEndian.Uint32(r.Data[1:])
		}
		found = slices.IndexFunc(sessions, func(s SessionInfo) bool { return s.ID == id })
	case byHandle:
		found = int(r.Data[1]) - 1
	default:
		found = int(r.Data[0]) - 1
	}
	active := byte(min(len(sessions), possible))
	if found < 0 || found >= len(sessions) {
		if r.Data[0] == byHandle || r.Data[0] == byID {
			return ipmi.RecordNotPresent, nil
		}
		return ipmi.OK, []byte{0, possible, active}
	}
	s := sessions[found]
	data := []byte{byte(found + 1), possible, active, r.Target.userID(s.User), byte(s.Level), rmcpPlus | channelLAN} //nolint:gosec // At most 64.
	data = append(data, addressBytes(s.Source.Addr().Unmap())...)
	data = append(data, make([]byte, 6)...)
	return ipmi.OK, binary.LittleEndian.AppendUint16(data, s.Source.Port())
}
