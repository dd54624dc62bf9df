// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// Firmware is the version that Get Device ID reports.
type Firmware struct {
	Major byte // 0 to 127.
	Minor byte // 0 to 99.
}

// registerApp adds the device commands of IPMI v2.0 section 20.
func registerApp(m *Mux, firmware Firmware, support byte, logs bool) {
	m.Handle(ipmi.NetFnApp, 0x01, Command{Name: "get_device_id", Privilege: ipmi.PrivilegeUser, Handle: getDeviceID(firmware, support)})
	m.Handle(ipmi.NetFnApp, 0x02, Command{Name: "cold_reset", Privilege: ipmi.PrivilegeAdministrator, Handle: acceptReset})
	m.Handle(ipmi.NetFnApp, 0x03, Command{Name: "warm_reset", Privilege: ipmi.PrivilegeAdministrator, Handle: acceptReset})
	m.Handle(ipmi.NetFnApp, 0x04, Command{Name: "get_self_test_results", Privilege: ipmi.PrivilegeUser, Handle: selfTest})
	m.Handle(ipmi.NetFnApp, 0x08, Command{Name: "get_device_guid", Privilege: ipmi.PrivilegeUser, Handle: deviceGUID})
	enables := globalEnables(logs)
	m.Handle(ipmi.NetFnApp, 0x2E, Command{
		Name: "set_bmc_global_enables", Privilege: ipmi.PrivilegeAdministrator, LogData: true,
		MinLength: 1, MaxLength: 1, Handle: setGlobalEnables(enables),
	})
	m.Handle(ipmi.NetFnApp, 0x2F, Command{
		Name: "get_bmc_global_enables", Privilege: ipmi.PrivilegeUser,
		Handle: func(context.Context, *Request) (ipmi.CompletionCode, []byte) { return ipmi.OK, []byte{enables} },
	})
	m.Handle(ipmi.NetFnApp, 0x37, Command{Name: "get_system_guid", Privilege: ipmi.PrivilegeUser, Sessionless: true, Handle: systemGUID})
}

// deviceSupport names the additional devices of Get Device ID: chassis, SDR
// repository and sensors. selSupport adds the System Event Log, fruSupport the FRU
// inventory.
const (
	deviceSupport = 0x80 | 0x02 | 0x01
	selSupport    = 0x04
	fruSupport    = 0x08
)

// getDeviceID answers Get Device ID (IPMI v2.0 section 20.1). The manufacturer is
// 0, unspecified: a number of somebody else would switch on that vendor's
// workarounds in clients.
func getDeviceID(firmware Firmware, support byte) Handler {
	const (
		deviceID       = 0x20
		deviceRevision = 0x01
		ipmiVersion20  = 0x02
	)
	minorBCD := firmware.Minor/10<<4 | firmware.Minor%10
	data := []byte{
		deviceID, deviceRevision, firmware.Major & 0x7F, minorBCD, ipmiVersion20, support,
		0, 0, 0, // Manufacturer.
		0, 0, // Product.
		0, 0, 0, 0, // Auxiliary firmware revision.
	}
	return func(context.Context, *Request) (ipmi.CompletionCode, []byte) { return ipmi.OK, data }
}

// acceptReset answers Cold Reset and Warm Reset (IPMI v2.0 sections 20.2, 20.3).
// A BMC here has no state of its own that a reset would clear; the machine and
// other sessions must not notice.
func acceptReset(context.Context, *Request) (ipmi.CompletionCode, []byte) { return ipmi.OK, nil }

// selfTest answers Get Self Test Results (IPMI v2.0 section 20.4): no error.
func selfTest(context.Context, *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, []byte{0x55, 0x00}
}

// globalEnables are the BMC Global Enables (IPMI v2.0 section 22.2): the event log,
// where there is one. All others are of the system interface, which there is none
// of.
func globalEnables(logs bool) byte {
	const eventLogging = 0x08
	if logs {
		return eventLogging
	}
	return 0
}

// setGlobalEnables answers Set BMC Global Enables (IPMI v2.0 section 22.1): what
// changes nothing is accepted. The log is not the IPMI client's to switch off.
func setGlobalEnables(enables byte) Handler {
	return func(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
		if r.Data[0] != enables {
			return ipmi.InvalidDataField, nil
		}
		return ipmi.OK, nil
	}
}

// deviceGUID answers Get Device GUID (IPMI v2.0 section 20.8).
func deviceGUID(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, r.Target.DeviceGUID[:]
}

// systemGUID answers Get System GUID (IPMI v2.0 section 22.14): the UUID that
// the guest sees, and that RAKP message 2 has.
func systemGUID(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, r.Target.SystemGUID[:]
}
