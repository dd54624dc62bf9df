// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// Sensor data records (IPMI v2.0 section 43).
const (
	sdrVersion       = 0x51
	sdrFull          = 0x01
	sdrCompact       = 0x02
	sdrControllerLoc = 0x12
	readAll          = 0xFF
	// maxRead bounds the bytes of a record or FRU in one answer, which clients
	// with small buffers ask for again in parts.
	maxRead    = 128
	lastRecord = 0xFFFF
)

// sdrChanged is when the records were last changed in this source: the
// repository's time stamps are it, and stay as they are. Change it with the
// records.
var sdrChanged = time.Date(2026, time.December, 3, 0, 0, 0, 0, time.UTC)

// repository has all records, by record id from 1 on.
var repository = [][]byte{
	controllerRecord("KubeVirtBMC"),
	compactRecord(sensorPower, typeACPIPowerState, 1<<offsetS0|1<<offsetS5, "Power"),
	uptimeRecord("Uptime"),
}

// Entities (IPMI v2.0 table 43-13).
const (
	entityManagementModule = 0x06
	entitySystemBoard      = 0x07
)

// idString is a type/length byte with the text that it is about: 8-bit ASCII.
func idString(text string) []byte {
	return append([]byte{0xC0 | byte(len(text))}, text...) //nolint:gosec // Names of this source, at most 16.
}

// sensorHeader is what records of sensors have in common, up to the event masks.
func sensorHeader(number, sensorType, readingType byte) []byte {
	const (
		scanning    = 0x01 // From the start.
		autoRearm   = 0x40
		noEvents    = 0x03
		capability  = autoRearm | noEvents
		bmcLUN      = 0x00
		firstOfKind = 0x01
	)
	return []byte{
		ipmi.AddressBMC, bmcLUN, number, entitySystemBoard, firstOfKind, scanning, capability, sensorType, readingType,
	}
}

// controllerRecord is a management controller device locator (IPMI v2.0 section
// 43.9).
func controllerRecord(name string) []byte {
	body := []byte{ipmi.AddressBMC, 0, 0, deviceSupport, 0, 0, 0, entityManagementModule, 1, 0}
	return sdr(sdrControllerLoc, append(body, idString(name)...))
}

// compactRecord is one of a sensor with states (IPMI v2.0 section 43.2).
func compactRecord(number, sensorType byte, states uint16, name string) []byte {
	const (
		sensorSpecific = 0x6F
		noAnalog       = 0xC0
		notShared      = 0x01
	)
	body := sensorHeader(number, sensorType, sensorSpecific)
	body = append(body, 0, 0, 0, 0)                         // No events.
	body = binary.LittleEndian.AppendUint16(body, states)   // The states that it can have.
	body = append(body, noAnalog, 0, 0, notShared, 0, 0, 0) // Units, sharing, hysteresis.
	body = append(body, 0, 0, 0, 0)                         // Reserved, OEM.
	return sdr(sdrCompact, append(body, idString(name)...))
}

// uptimeRecord is of the sensor with the machine's uptime (IPMI v2.0 section
// 43.1). One byte has to carry minutes and years: a reading x means 2^(0.08 x)
// minutes, 6 % apart.
func uptimeRecord(name string) []byte {
	const (
		threshold      = 0x01
		unitMinute     = 23
		exp2           = 0x06
		m              = 8
		tolerance      = 1    // Half a step.
		exponents      = 0xE0 // Result: -2, B: 0.
		biggestReading = 0xFF
	)
	body := sensorHeader(sensorUptime, typeOtherUnits, threshold)
	body = append(body, 0, 0, 0, 0, 0, 0)                    // No events, no thresholds.
	body = append(body, 0, unitMinute, 0, exp2)              // Unsigned.
	body = append(body, m, tolerance, 0, 0, 0, exponents, 0) // No nominal reading.
	body = append(body, 0, 0, 0, biggestReading, 0)          // Range.
	body = append(body, make([]byte, 6+2+2+1)...)            // Thresholds, hysteresis, reserved, OEM.
	return sdr(sdrFull, append(body, idString(name)...))
}

// sdr puts the header before a record's body; the record id is put in when it is
// read.
func sdr(kind byte, body []byte) []byte {
	return append([]byte{0, 0, sdrVersion, kind, byte(len(body))}, body...) //nolint:gosec // At most 59.
}

// Reservation keeps one console from going on reading what another one has
// changed (IPMI v2.0 sections 31.4 and 33.11).
type Reservation struct {
	mu sync.Mutex
	id uint16
	// sequence is the log's last entry when the reservation was made.
	sequence uint64
}

// note keeps what a reservation was made of, if it is still the present one.
func (r *Reservation) note(id uint16, sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id == id {
		r.sequence = sequence
	}
}

// noted returns what note kept; 0 for a reservation that is lost.
func (r *Reservation) noted(id uint16) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id != id {
		return 0
	}
	return r.sequence
}

// reserve makes a reservation; earlier ones are lost.
func (r *Reservation) reserve() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id++
	if r.id == 0 {
		r.id = 1
	}
	return r.id
}

// holds tells whether a reservation is the present one.
func (r *Reservation) holds(id uint16) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id != 0 && r.id == id
}

// registerSDR adds the SDR repository commands of IPMI v2.0 section 33 that
// read. The repository is fixed: those that change it (24h to 27h, 29h to 2Bh)
// are not served.
func registerSDR(m *Mux) {
	m.Handle(ipmi.NetFnStorage, 0x20, Command{Name: "get_sdr_repository_info", Privilege: ipmi.PrivilegeUser, Handle: repositoryInfo})
	m.Handle(ipmi.NetFnStorage, 0x22, Command{Name: "reserve_sdr_repository", Privilege: ipmi.PrivilegeUser, Handle: reserveRepository})
	m.Handle(ipmi.NetFnStorage, 0x23, Command{Name: "get_sdr", Privilege: ipmi.PrivilegeUser, MinLength: 6, MaxLength: 6, Handle: getSDR})
	m.Handle(ipmi.NetFnStorage, 0x28, Command{Name: "get_sdr_repository_time", Privilege: ipmi.PrivilegeUser, Handle: repositoryTime})
}

// repositoryInfo answers Get SDR Repository Info (IPMI v2.0 section 33.9).
func repositoryInfo(context.Context, *Request) (ipmi.CompletionCode, []byte) {
	const reserveSupported = 0x02
	data := []byte{sdrVersion}
	data = binary.LittleEndian.AppendUint16(data, uint16(len(repository)))   //nolint:gosec // A handful.
	data = append(data, 0, 0)                                                // No room: it is fixed.
	data = binary.LittleEndian.AppendUint32(data, uint32(sdrChanged.Unix())) //nolint:gosec // Until 2106.
	data = binary.LittleEndian.AppendUint32(data, uint32(sdrChanged.Unix())) //nolint:gosec // Until 2106.
	return ipmi.OK, append(data, reserveSupported)
}

// reserveRepository answers Reserve SDR Repository (IPMI v2.0 section 33.11).
func reserveRepository(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, binary.LittleEndian.AppendUint16(nil, r.Target.SDR.reserve())
}

// getSDR answers Get SDR (IPMI v2.0 section 33.12). Reading from the start of a
// record needs no reservation.
func getSDR(_ context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	reservation, id := binary.LittleEndian.Uint16(r.Data), int(binary.LittleEndian.Uint16(r.Data[2:]))
	offset, count := int(r.Data[4]), int(r.Data[5])
	if (offset != 0 || reservation != 0) && !r.Target.SDR.holds(reservation) {
		return ipmi.ReservationCanceled, nil
	}
	switch id {
	case 0:
		id = 1
	case lastRecord:
		id = len(repository)
	}
	if id > len(repository) {
		return ipmi.RecordNotPresent, nil
	}
	record := append([]byte(nil), repository[id-1]...)
	binary.LittleEndian.PutUint16(record, uint16(id))
	next := uint16(lastRecord)
	if id < len(repository) {
		next = uint16(id + 1)
	}
	part, code := window(record, offset, count)
	if code != ipmi.OK {
		return code, nil
	}
	return ipmi.OK, append(binary.LittleEndian.AppendUint16(nil, next), part...)
}

// window returns count bytes from an offset on, all the rest for readAll.
func window(b []byte, offset, count int) ([]byte, ipmi.CompletionCode) {
	if offset >= len(b) {
		return nil, ipmi.ParameterOutOfRange
	}
	if count == readAll {
		count = len(b) - offset
	}
	if count > maxRead {
		return nil, ipmi.CannotReturnThatMuch
	}
	return b[offset:min(offset+count, len(b))], ipmi.OK
}

// repositoryTime answers Get SDR Repository Time (IPMI v2.0 section 33.17).
func repositoryTime(context.Context, *Request) (ipmi.CompletionCode, []byte) {
	return ipmi.OK, binary.LittleEndian.AppendUint32(nil, uint32(time.Now().Unix())) //nolint:gosec // Until 2106.
}
