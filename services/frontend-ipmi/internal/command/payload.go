// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

// SOLInstances is how many sessions may have a BMC's serial console at once: the
// first may type, the others watch.
const SOLInstances = 8

// Console has the SOL payload instances of one BMC, numbered from 1 on.
type Console interface {
	// Activate gives a session an instance.
	Activate(ctx context.Context, session uint32, instance int) ipmi.CompletionCode
	// Deactivate takes an instance back.
	Deactivate(ctx context.Context, session uint32, instance int) ipmi.CompletionCode
	// Owner returns the session that has an instance; 0: nobody.
	Owner(instance int) uint32
}

// payloadVersion is the format version of all payload types, 1.0 (IPMI v2.0
// table 13-16).
const payloadVersion = 0x10

const (
	payloadTypeMask = 0x3F
	instanceMask    = 0x0F
)

// registerPayload adds the payload commands of IPMI v2.0 section 24.
func registerPayload(m *Mux) {
	m.Handle(ipmi.NetFnApp, 0x48, Command{
		Name: "activate_payload", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 6, MaxLength: 6, Handle: activatePayload,
	})
	m.Handle(ipmi.NetFnApp, 0x49, Command{
		Name: "deactivate_payload", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 6, MaxLength: 6, Handle: deactivatePayload,
	})
	m.Handle(ipmi.NetFnApp, 0x4A, Command{
		Name: "get_payload_activation_status", Privilege: ipmi.PrivilegeUser,
		MinLength: 1, MaxLength: 1, Handle: payloadActivationStatus,
	})
	m.Handle(ipmi.NetFnApp, 0x4B, Command{
		Name: "get_payload_instance_info", Privilege: ipmi.PrivilegeUser,
		MinLength: 2, MaxLength: 2, Handle: payloadInstanceInfo,
	})
	m.Handle(ipmi.NetFnApp, 0x4C, Command{
		Name: "set_user_payload_access", Privilege: ipmi.PrivilegeAdministrator,
		MinLength: 6, MaxLength: 6, Handle: setUserPayloadAccess,
	})
	m.Handle(ipmi.NetFnApp, 0x4D, Command{
		Name: "get_user_payload_access", Privilege: ipmi.PrivilegeOperator,
		MinLength: 2, MaxLength: 2, Handle: userPayloadAccess,
	})
	m.Handle(ipmi.NetFnApp, 0x4E, Command{
		Name: "get_channel_payload_support", Privilege: ipmi.PrivilegeUser,
		MinLength: 1, MaxLength: 1, Handle: channelPayloadSupport,
	})
	m.Handle(ipmi.NetFnApp, 0x4F, Command{
		Name: "get_channel_payload_version", Privilege: ipmi.PrivilegeUser,
		MinLength: 2, MaxLength: 2, Handle: channelPayloadVersion,
	})
	m.Handle(ipmi.NetFnApp, 0x55, Command{
		Name: "suspend_resume_payload_encryption", Privilege: ipmi.PrivilegeUser,
		MinLength: 3, MaxLength: 3, Handle: suspendResumeEncryption,
	})
}

// instanceOf reads payload type and instance; false when SOL has no such one.
func instanceOf(data []byte) (int, bool) {
	instance := int(data[1] & instanceMask)
	return instance, rmcpplus.PayloadType(data[0]&payloadTypeMask) == rmcpplus.PayloadSOL && instance >= 1 && instance <= SOLInstances
}

// activatePayload answers Activate Payload (IPMI v2.0 section 24.1). Sessions
// here are always encrypted and authenticated, and so is SOL. There is no test
// mode.
func activatePayload(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		encrypt      = 0x80
		authenticate = 0x40
		noVLAN       = 0xFFFF
	)
	instance, ok := instanceOf(r.Data)
	parameters := r.Target.SOL
	switch {
	case !ok:
		return ipmi.InvalidDataField, nil
	case r.Target.Console == nil, !parameters.Enabled():
		return ipmi.PayloadDisabled, nil
	case r.Session.Level < parameters.Privilege():
		return ipmi.InsufficientPrivilege, nil
	case r.Data[2]&encrypt == 0:
		return ipmi.PayloadNeedsEncryption, nil
	case r.Data[2]&authenticate == 0:
		return ipmi.InvalidDataField, nil // Encryption alone does not exist.
	}
	if code := r.Target.Console.Activate(ctx, r.Session.ID, instance); code != ipmi.OK {
		return code, nil
	}
	data := make([]byte, 4, 12)
	data = binary.LittleEndian.AppendUint16(data, sol.PayloadSize)
	data = binary.LittleEndian.AppendUint16(data, sol.PayloadSize)
	data = binary.LittleEndian.AppendUint16(data, r.Target.ClientPort)
	return ipmi.OK, binary.LittleEndian.AppendUint16(data, noVLAN)
}

// deactivatePayload answers Deactivate Payload (IPMI v2.0 section 24.2). Whoever
// may activate SOL may also take it from another session, whose console may have
// died.
func deactivatePayload(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	instance, ok := instanceOf(r.Data)
	switch {
	case !ok:
		return ipmi.InvalidDataField, nil
	case r.Target.Console == nil:
		return ipmi.PayloadDisabled, nil
	case r.Session.Level < r.Target.SOL.Privilege():
		return ipmi.InsufficientPrivilege, nil
	}
	return r.Target.Console.Deactivate(ctx, r.Session.ID, instance), nil
}

// payloadActivationStatus answers Get Payload Activation Status (IPMI v2.0
// section 24.4).
func payloadActivationStatus(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if rmcpplus.PayloadType(r.Data[0]&payloadTypeMask) != rmcpplus.PayloadSOL {
		return ipmi.InvalidDataField, nil
	}
	if r.Target.Console == nil {
		return ipmi.OK, []byte{SOLInstances, 0, 0}
	}
	var active byte
	for i := range SOLInstances {
		if r.Target.Console.Owner(i+1) != 0 {
			active |= 1 << i
		}
	}
	return ipmi.OK, []byte{SOLInstances, active, 0}
}

// payloadInstanceInfo answers Get Payload Instance Info (IPMI v2.0 section
// 24.5). pyghmi keeps its console alive with it.
func payloadInstanceInfo(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const firstSerialPort = 1
	instance, ok := instanceOf(r.Data)
	if !ok {
		return ipmi.InvalidDataField, nil
	}
	var owner uint32
	if r.Target.Console != nil {
		owner = r.Target.Console.Owner(instance)
	}
	data := binary.LittleEndian.AppendUint32(make([]byte, 0, 12), owner)
	return ipmi.OK, append(data, firstSerialPort, 0, 0, 0, 0, 0, 0, 0)
}

// payloadSOLBit is SOL in the first byte of standard payload enables (IPMI v2.0
// tables 24-8, 24-9).
const payloadSOLBit = 1 << rmcpplus.PayloadSOL

// payloadAccess returns the standard payloads that a user may activate: who has
// the level for SOL may use it. False: the number is nobody's.
func payloadAccess(t *Target, id byte) (byte, bool) {
	u, ok := t.user(id & userIDMask)
	if u == nil || u.Privilege < t.SOL.Privilege() {
		return 0, ok
	}
	return payloadSOLBit, true
}

// setUserPayloadAccess answers Set User Payload Access (IPMI v2.0 section 24.6).
// Roles say who may use SOL, and they come from Kubernetes: what changes nothing
// is accepted.
func setUserPayloadAccess(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		enable  = 0
		disable = 1
	)
	access, ok := payloadAccess(r.Target, r.Data[1])
	operation := r.Data[1] >> 6
	if !isLANChannel(r.Data[0]) || !ok || operation > disable {
		return ipmi.InvalidDataField, nil
	}
	want := r.Data[2] & payloadSOLBit
	if (operation == enable && want&^access != 0) || (operation == disable && want&access != 0) {
		return ipmi.NotInPresentState, nil
	}
	return ipmi.OK, nil
}

// userPayloadAccess answers Get User Payload Access (IPMI v2.0 section 24.7).
func userPayloadAccess(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	access, ok := payloadAccess(r.Target, r.Data[1])
	if !isLANChannel(r.Data[0]) || !ok {
		return ipmi.InvalidDataField, nil
	}
	return ipmi.OK, []byte{access, 0, 0, 0}
}

// channelPayloadSupport answers Get Channel Payload Support (IPMI v2.0 section
// 24.8): IPMI messages, SOL, and what opens a session.
func channelPayloadSupport(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		messagesAndSOL = 0x03
		sessionSetup   = 0x3F
	)
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	return ipmi.OK, []byte{messagesAndSOL, 0, sessionSetup, 0, 0, 0, 0, 0}
}

// channelPayloadVersion answers Get Channel Payload Version (IPMI v2.0 section
// 24.9).
func channelPayloadVersion(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if !isLANChannel(r.Data[0]) {
		return ipmi.InvalidDataField, nil
	}
	switch t := rmcpplus.PayloadType(r.Data[1] & payloadTypeMask); {
	case t == rmcpplus.PayloadIPMI, t == rmcpplus.PayloadSOL,
		t >= rmcpplus.PayloadOpenSessionRequest && t <= rmcpplus.PayloadRAKP4:
		return ipmi.OK, []byte{payloadVersion}
	}
	return ipmi.PayloadNotOnChannel, nil
}

// suspendResumeEncryption answers Suspend/Resume Payload Encryption (IPMI v2.0
// section 24.3). Everything is encrypted all the time, and each packet has an
// initialization vector of its own.
func suspendResumeEncryption(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		operationMask = 0x1F
		suspend       = 0
		resume        = 1
	)
	if rmcpplus.PayloadType(r.Data[0]&payloadTypeMask) == rmcpplus.PayloadIPMI {
		return ipmi.OperationNotSupported, nil
	}
	instance, ok := instanceOf(r.Data)
	switch {
	case !ok:
		return ipmi.InvalidDataField, nil
	case r.Target.Console == nil, r.Target.Console.Owner(instance) != r.Session.ID:
		return ipmi.InstanceNotActive, nil
	}
	switch r.Data[2] & operationMask {
	case suspend:
		return ipmi.OperationNotAllowed, nil
	case resume:
		return ipmi.OK, nil
	}
	return ipmi.OperationNotSupported, nil
}
