// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"time"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// chassis has the commands of IPMI v2.0 section 28 but for boot options.
type chassis struct {
	power backend.Power
}

func registerChassis(m *Mux, power backend.Power) {
	c := chassis{power: power}
	m.Handle(ipmi.NetFnChassis, 0x00, Command{Name: "get_chassis_capabilities", Privilege: ipmi.PrivilegeUser, Handle: chassisCapabilities})
	m.Handle(ipmi.NetFnChassis, 0x01, Command{Name: "get_chassis_status", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: c.status})
	m.Handle(ipmi.NetFnApp, 0x07, Command{Name: "get_acpi_power_state", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: c.acpiState})
	m.Handle(ipmi.NetFnChassis, 0x02, Command{
		Name: "chassis_control", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 1, MaxLength: 1, Handle: c.control,
	})
	m.Handle(ipmi.NetFnChassis, 0x04, Command{
		Name: "chassis_identify", Privilege: ipmi.PrivilegeOperator,
		MaxLength: 2, Handle: chassisIdentify,
	})
	m.Handle(ipmi.NetFnChassis, 0x06, Command{
		Name: "set_power_restore_policy", Privilege: ipmi.PrivilegeOperator,
		MinLength: 1, MaxLength: 1, Handle: setRestorePolicy,
	})
	m.Handle(ipmi.NetFnChassis, 0x07, Command{Name: "get_system_restart_cause", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: c.restartCause})
}

// chassisCapabilities answers Get Chassis Capabilities (IPMI v2.0 section 28.1):
// no front panel, no intrusion sensor; FRU, SDR, SEL and system management
// devices would be at the BMC's address.
func chassisCapabilities(context.Context, *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, []byte{0, ipmi.AddressBMC, ipmi.AddressBMC, ipmi.AddressBMC, ipmi.AddressBMC}
}

// status answers Get Chassis Status (IPMI v2.0 section 28.2).
func (c chassis) status(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	status, err := c.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	on, known := isOn(status.GetState())
	if !known {
		return ipmi.ResponseNotProvided, nil
	}
	const (
		poweredOnByCommand = 0x10
		powerDownByFault   = 0x08
	)
	var state, lastEvent byte
	if on {
		state |= 0x01
		if byCommand(status) {
			lastEvent |= poweredOnByCommand
		}
	}
	state |= restorePolicyBits(status.GetRestorePolicy()) << 5
	if !on && status.GetStopCause() == powerv1.StopCause_STOP_CAUSE_FAILURE {
		lastEvent |= powerDownByFault
	}
	return ipmi.OK, []byte{state, lastEvent, r.Target.identifying(time.Now())}
}

// acpiState answers Get ACPI Power State (IPMI v2.0 section 20.7): working, or soft
// off; the BMC itself is always fully on.
func (c chassis) acpiState(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		working = 0x00
		softOff = 0x05
		unknown = 0x2A
		fullyOn = 0x00
	)
	status, err := c.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	state := byte(softOff)
	switch on, known := isOn(status.GetState()); {
	case !known:
		state = unknown
	case on:
		state = working
	}
	return ipmi.OK, []byte{state, fullyOn}
}

// isOn tells whether a machine counts as powered: from when an instance of it
// exists until that is really gone. Clients that see "off" too early go on to
// set a boot device and power on a machine that still runs.
func isOn(state powerv1.PowerState) (on, known bool) {
	switch state {
	case powerv1.PowerState_POWER_STATE_POWERING_ON, powerv1.PowerState_POWER_STATE_ON,
		powerv1.PowerState_POWER_STATE_POWERING_OFF, powerv1.PowerState_POWER_STATE_PAUSED:
		return true, true
	case powerv1.PowerState_POWER_STATE_OFF:
		return false, true
	case powerv1.PowerState_POWER_STATE_UNSPECIFIED, powerv1.PowerState_POWER_STATE_UNKNOWN:
	}
	return false, false
}

func byCommand(status *powerv1.PowerStatus) bool {
	switch status.GetOperation().GetAction() {
	case powerv1.PowerAction_POWER_ACTION_ON, powerv1.PowerAction_POWER_ACTION_FORCE_RESTART,
		powerv1.PowerAction_POWER_ACTION_GRACEFUL_RESTART, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE:
		return true
	}
	return false
}

func restorePolicyBits(policy powerv1.RestorePolicy) byte {
	switch policy {
	case powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF:
		return 0
	case powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS:
		return 1
	case powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_ON:
		return 2
	case powerv1.RestorePolicy_RESTORE_POLICY_UNSPECIFIED, powerv1.RestorePolicy_RESTORE_POLICY_UNKNOWN:
	}
	return 3
}

// control answers Chassis Control (IPMI v2.0 section 28.3). A diagnostic
// interrupt (4) does not exist in KubeVirt and is out of range, as the values
// that the specification reserves.
func (c chassis) control(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	var action powerv1.PowerAction
	switch r.Data[0] & 0x0F {
	case 0:
		action = powerv1.PowerAction_POWER_ACTION_FORCE_OFF
	case 1:
		action = powerv1.PowerAction_POWER_ACTION_ON
	case 2:
		action = powerv1.PowerAction_POWER_ACTION_POWER_CYCLE
	case 3:
		action = powerv1.PowerAction_POWER_ACTION_FORCE_RESTART
	case 5:
		action = powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN
	default:
		return ipmi.ParameterOutOfRange, nil
	}
	_, err := c.power.Transition(ctx, r.Target.Reference, action)
	return backend.CompletionCode(err), nil
}

// Chassis identify states (IPMI v2.0 table 28-3).
const (
	identifyKnown     = 0x40
	identifyTemporary = 0x10
	identifyForced    = 0x20
)

// chassisIdentify answers Chassis Identify (IPMI v2.0 section 28.5): for 15 s, or
// as many seconds as the first byte says, 0 for off; with bit 0 of the second one
// until it is switched off. There is no light: Get Chassis Status shows it.
func chassisIdentify(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		byDefault = 15
		force     = 0x01
	)
	interval := byte(byDefault)
	if len(r.Data) > 0 {
		interval = r.Data[0]
	}
	r.Target.identify(time.Now(), interval, len(r.Data) > 1 && r.Data[1]&force != 0)
	return ipmi.OK, nil
}

// identify sets what the chassis identify state is.
func (s *State) identify(now time.Time, seconds byte, force bool) {
	s.identifyMu.Lock()
	defer s.identifyMu.Unlock()
	s.identifyForced = force
	s.identifyUntil = now.Add(time.Duration(seconds) * time.Second)
}

// identifying are the bits of the chassis identify state.
func (s *State) identifying(now time.Time) byte {
	s.identifyMu.Lock()
	defer s.identifyMu.Unlock()
	switch {
	case s.identifyForced:
		return identifyKnown | identifyForced
	case now.Before(s.identifyUntil):
		return identifyKnown | identifyTemporary
	}
	return identifyKnown
}

// setRestorePolicy answers Set Power Restore Policy (IPMI v2.0 section 28.8). The
// policy follows from the machine's run strategy and can't be set: the query
// (3) says that no policy can, all else is refused.
func setRestorePolicy(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const query = 3
	switch policy := r.Data[0] & 0x07; {
	case policy == query:
		return ipmi.OK, []byte{0}
	case policy > query:
		return ipmi.InvalidDataField, nil
	}
	return ipmi.SubFunctionDisabled, nil
}

// restartCause answers Get System Restart Cause (IPMI v2.0 section 28.11).
func (c chassis) restartCause(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	status, err := c.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	const (
		unknown        = 0x00
		chassisControl = 0x01
		powerButton    = 0x03
		watchdogTimer  = 0x04
	)
	switch {
	case r.Target.byWatchdog(status.GetOperation().GetId()):
		return ipmi.OK, []byte{watchdogTimer, 0}
	case byCommand(status):
		return ipmi.OK, []byte{chassisControl, channelLAN}
	case status.GetOperation().GetAction() == powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON:
		return ipmi.OK, []byte{powerButton, 0}
	}
	return ipmi.OK, []byte{unknown, 0}
}
