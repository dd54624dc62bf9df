// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"math"
	"time"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// Sensors, all of whose readings come from PowerService. Load and the use of
// memory are in no object of the Kubernetes API: there are no sensors of them.
const (
	sensorPower  = 1
	sensorUptime = 2
	sensorCount  = 2
)

// Sensor types (IPMI v2.0 table 42-3) and states of the power sensor.
const (
	typeOtherUnits     = 0x0B
	typeACPIPowerState = 0x22
	offsetS0           = 0 // Working.
	offsetS5           = 5 // Off.
)

const (
	sensorScanning    = 0x40
	sensorUnavailable = 0x20
	discreteReserved  = 0x80 // Of the second byte of states.
	noThresholds      = 0xC0
)

// sensors has the sensor device commands of IPMI v2.0 section 35.
type sensors struct {
	power backend.Power
}

// registerSensor adds the sensor commands that read. Sensors make no events of
// their own and have no thresholds to set: 24h, 26h, 28h, 2Ah and 2Eh are not
// served.
func registerSensor(m *Mux, power backend.Power) {
	c := sensors{power: power}
	one := func(name string, number byte, handle Handler) {
		m.Handle(ipmi.NetFnSensor, number, Command{Name: name, Privilege: ipmi.PrivilegeUser, MinLength: 1, MaxLength: 1, Handle: handle})
	}
	m.Handle(ipmi.NetFnSensor, 0x20, Command{Name: "get_device_sdr_info", Privilege: ipmi.PrivilegeUser, MaxLength: 1, Handle: deviceSDRInfo})
	one("get_sensor_thresholds", 0x27, sensorThresholds)
	one("get_sensor_event_enable", 0x29, sensorEventEnable)
	one("get_sensor_type", 0x2F, sensorType)
	m.Handle(ipmi.NetFnSensor, 0x2D, Command{
		Name: "get_sensor_reading", Privilege: ipmi.PrivilegeUser, Backend: true,
		MinLength: 1, MaxLength: 1, Handle: c.reading,
	})
}

// deviceSDRInfo answers Get Device SDR Info (IPMI v2.0 section 35.2): fixed
// sensors on LUN 0.
func deviceSDRInfo(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		countRecords = 0x01
		lun0         = 0x01
	)
	if len(r.Data) == 1 && r.Data[0]&countRecords != 0 {
		return ipmi.OK, []byte{byte(len(repository)), lun0} //nolint:gosec // A handful.
	}
	return ipmi.OK, []byte{sensorCount, lun0}
}

// sensorThresholds answers Get Sensor Thresholds (IPMI v2.0 section 35.9): none
// can be read.
func sensorThresholds(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	switch r.Data[0] {
	case sensorUptime:
		return ipmi.OK, make([]byte, 7)
	case sensorPower:
		return ipmi.IllegalForRecord, nil
	}
	return ipmi.RecordNotPresent, nil
}

// sensorEventEnable answers Get Sensor Event Enable (IPMI v2.0 section 35.11).
func sensorEventEnable(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	if r.Data[0] != sensorPower && r.Data[0] != sensorUptime {
		return ipmi.RecordNotPresent, nil
	}
	return ipmi.OK, []byte{sensorScanning}
}

// sensorType answers Get Sensor Type (IPMI v2.0 section 35.16).
func sensorType(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const threshold, sensorSpecific = 0x01, 0x6F
	switch r.Data[0] {
	case sensorPower:
		return ipmi.OK, []byte{typeACPIPowerState, sensorSpecific}
	case sensorUptime:
		return ipmi.OK, []byte{typeOtherUnits, threshold}
	}
	return ipmi.RecordNotPresent, nil
}

// reading answers Get Sensor Reading (IPMI v2.0 section 35.14). What is not
// known is unavailable.
func (c sensors) reading(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	number := r.Data[0]
	if number != sensorPower && number != sensorUptime {
		return ipmi.RecordNotPresent, nil
	}
	status, err := c.power.Status(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	on, known := isOn(status.GetState())
	if number == sensorPower {
		switch {
		case !known:
			return ipmi.OK, []byte{0, sensorScanning | sensorUnavailable, 0, discreteReserved}
		case on:
			return ipmi.OK, []byte{0, sensorScanning, 1 << offsetS0, discreteReserved}
		}
		return ipmi.OK, []byte{0, sensorScanning, 1 << offsetS5, discreteReserved}
	}
	raw, ok := uptime(status, time.Now())
	if !on || !ok {
		return ipmi.OK, []byte{0, sensorScanning | sensorUnavailable, noThresholds}
	}
	return ipmi.OK, []byte{raw, sensorScanning, noThresholds}
}

// uptime returns the reading that is nearest to the time since the guest was last
// started or reset; see uptimeRecord. False while that is unknown.
func uptime(status *powerv1.PowerStatus, now time.Time) (byte, bool) {
	const perDoubling = 12.5 // 1 / 0.08
	if status.GetLastResetTime() == nil {
		return 0, false
	}
	minutes := max(now.Sub(status.GetLastResetTime().AsTime()).Minutes(), 1)
	return byte(min(math.Round(perDoubling*math.Log2(minutes)), math.MaxUint8)), true
}
