// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// registerSOL adds the SOL commands of IPMI v2.0 section 26.
func registerSOL(m *Mux) {
	m.Handle(ipmi.NetFnTransport, 0x21, Command{
		Name: "set_sol_configuration_parameters", Privilege: ipmi.PrivilegeAdministrator,
		MinLength: 2, MaxLength: 4, Handle: setSOLParameter,
	})
	m.Handle(ipmi.NetFnTransport, 0x22, Command{
		Name: "get_sol_configuration_parameters", Privilege: ipmi.PrivilegeUser,
		MinLength: 4, MaxLength: 4, Handle: getSOLParameter,
	})
}

// setSOLParameter answers Set SOL Configuration Parameters (IPMI v2.0 section
// 26.2).
func setSOLParameter(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	return r.Target.SOL.Set(r.Session.ID, r.Data[1], r.Data[2:]), nil
}

// getSOLParameter answers Get SOL Configuration Parameters (IPMI v2.0 section
// 26.3).
func getSOLParameter(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		revisionOnly = 0x80
		revision     = 0x11
	)
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	data, ok := r.Target.SOL.Get(r.Data[1], r.Target.ClientPort)
	if !ok {
		return ipmi.ParameterNotSupported, nil
	}
	if r.Data[0]&revisionOnly != 0 {
		return ipmi.OK, []byte{revision}
	}
	return ipmi.OK, append([]byte{revision}, data...)
}
