// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// System Event Log (IPMI v2.0 sections 31 and 32).
const (
	selVersion     = 0x51
	selRecordSize  = 16
	selSystemEvent = 0x02
	selOEM         = 0xC0 // With a time stamp.
	selOEMNoTime   = 0xE0
	selLastID      = 0xFFFE
	selNever       = 0xFFFFFFFF

	selEventRevision  = 0x04
	selSensorSpecific = 0x6F
	selUnspecified    = 0xFF
)

// sel has the SEL commands of IPMI v2.0 section 31. The log is StateService's:
// it lasts, has a bound, beyond which the oldest entries go, and is Redfish's too.
type sel struct {
	events backend.Events
}

// registerSEL adds the SEL commands. Those for a part of an entry to be added or
// for one to be deleted (45h, 46h), and Get SEL Allocation Info (41h), are not
// served; the clock is the host's, so Set SEL Time is not either (49h).
func registerSEL(m *Mux, events backend.Events) {
	c := sel{events: events}
	m.Handle(ipmi.NetFnStorage, 0x40, Command{Name: "get_sel_info", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: c.info})
	m.Handle(ipmi.NetFnStorage, 0x42, Command{Name: "reserve_sel", Privilege: ipmi.PrivilegeUser, Backend: true, Handle: c.reserve})
	m.Handle(ipmi.NetFnStorage, 0x43, Command{Name: "get_sel_entry", Privilege: ipmi.PrivilegeUser, Backend: true, MinLength: 6, MaxLength: 6, Handle: c.get})
	m.Handle(ipmi.NetFnStorage, 0x44, Command{
		Name: "add_sel_entry", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true,
		MinLength: selRecordSize, MaxLength: selRecordSize, Handle: c.add,
	})
	m.Handle(ipmi.NetFnStorage, 0x47, Command{
		Name: "clear_sel", Privilege: ipmi.PrivilegeOperator, Backend: true, Mutates: true, LogData: true,
		MinLength: 6, MaxLength: 6, Handle: c.clear,
	})
	m.Handle(ipmi.NetFnStorage, 0x48, Command{Name: "get_sel_time", Privilege: ipmi.PrivilegeUser, Handle: repositoryTime})
}

// info answers Get SEL Info (IPMI v2.0 section 31.2).
func (c sel) info(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const reserveSupported = 0x02
	log, err := c.events.List(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	added, erased := uint32(selNever), uint32(selNever)
	for _, e := range log.Events {
		added = seconds(e)
		if e.GetCode() == statev1.EventCode_EVENT_CODE_LOG_CLEARED {
			erased = added
		}
	}
	free := min(max(log.Capacity-len(log.Events), 0)*selRecordSize, 0xFFFF)
	data := []byte{selVersion}
	data = binary.LittleEndian.AppendUint16(data, uint16(min(len(log.Events), 0xFFFF)))
	data = binary.LittleEndian.AppendUint16(data, uint16(free))
	data = binary.LittleEndian.AppendUint32(data, added)
	data = binary.LittleEndian.AppendUint32(data, erased)
	return ipmi.OK, append(data, reserveSupported)
}

// reserve answers Reserve SEL (IPMI v2.0 section 31.4).
func (c sel) reserve(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	log, err := c.events.List(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	id := r.Target.SEL.reserve()
	r.Target.SEL.note(id, lastSequence(log))
	return ipmi.OK, binary.LittleEndian.AppendUint16(nil, id)
}

// get answers Get SEL Entry (IPMI v2.0 section 31.5).
func (c sel) get(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	reservation, id := binary.LittleEndian.Uint16(r.Data), binary.LittleEndian.Uint16(r.Data[2:])
	offset, count := int(r.Data[4]), int(r.Data[5])
	if (offset != 0 || reservation != 0) && !r.Target.SEL.holds(reservation) {
		return ipmi.ReservationCanceled, nil
	}
	log, err := c.events.List(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	at := -1
	switch {
	case len(log.Events) == 0:
	case id == 0:
		at = 0
	case id == lastRecord:
		at = len(log.Events) - 1
	default:
		at = slices.IndexFunc(log.Events, func(e *statev1.Event) bool { return recordID(e) == id })
	}
	if at < 0 {
		return ipmi.RecordNotPresent, nil
	}
	next := uint16(lastRecord)
	if at+1 < len(log.Events) {
		next = recordID(log.Events[at+1])
	}
	part, code := window(selRecord(log.Events[at]), offset, count)
	if code != ipmi.OK {
		return code, nil
	}
	return ipmi.OK, append(binary.LittleEndian.AppendUint16(nil, next), part...)
}

// add answers Add SEL Entry (IPMI v2.0 section 31.6). The time is the BMC's where
// the record has one.
func (c sel) add(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	record := bytes.Clone(r.Data)
	now := timestamppb.Now()
	if record[2] < selOEMNoTime {
		binary.LittleEndian.PutUint32(record[3:], uint32(now.GetSeconds())) //nolint:gosec // Until 2106.
	}
	event := &statev1.Event{
		Id: rand.Text(), Time: now, Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_MACHINE,
		Message: "An IPMI client added a record.", IpmiRecord: record,
	}
	if err := c.events.Append(ctx, r.Target.Reference, event); err != nil {
		return backend.CompletionCode(err), nil
	}
	log, err := c.events.List(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	i := slices.IndexFunc(log.Events, func(e *statev1.Event) bool { return e.GetId() == event.GetId() })
	if i < 0 { // Others have filled or emptied the log since.
		return ipmi.RecordNotPresent, nil
	}
	return ipmi.OK, binary.LittleEndian.AppendUint16(nil, recordID(log.Events[i]))
}

// clear answers Clear SEL (IPMI v2.0 section 31.9). The reservation is lost by
// entries that were added since, but for logins: the console's own may be late.
func (c sel) clear(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const (
		initiate  = 0xAA
		getStatus = 0x00
		completed = 0x01
	)
	reservation := binary.LittleEndian.Uint16(r.Data)
	if string(r.Data[2:5]) != "CLR" || (r.Data[5] != initiate && r.Data[5] != getStatus) {
		return ipmi.InvalidDataField, nil
	}
	if !r.Target.SEL.holds(reservation) {
		return ipmi.ReservationCanceled, nil
	}
	if r.Data[5] == getStatus {
		return ipmi.OK, []byte{completed}
	}
	log, err := c.events.List(ctx, r.Target.Reference)
	if err != nil {
		return backend.CompletionCode(err), nil
	}
	for _, e := range log.Events {
		if e.GetSequence() > r.Target.SEL.noted(reservation) && e.GetKind() != statev1.EventKind_EVENT_KIND_LOGIN {
			return ipmi.ReservationCanceled, nil
		}
	}
	if err := c.events.Clear(ctx, r.Target.Reference, log.Revision); err != nil {
		return backend.CompletionCode(err), nil
	}
	cleared := &statev1.Event{
		Id: rand.Text(), Time: timestamppb.Now(), Severity: statev1.EventSeverity_EVENT_SEVERITY_OK,
		Kind: statev1.EventKind_EVENT_KIND_BMC, Code: statev1.EventCode_EVENT_CODE_LOG_CLEARED, Message: "The event log was emptied.",
	}
	if err := c.events.Append(ctx, r.Target.Reference, cleared); err != nil {
		return backend.CompletionCode(err), nil
	}
	return ipmi.OK, []byte{completed}
}

func lastSequence(log backend.EventLog) uint64 {
	if len(log.Events) == 0 {
		return 0
	}
	return log.Events[len(log.Events)-1].GetSequence()
}

// recordID is an entry's number in 16 bits: 0 and FFFFh have meanings of their
// own. A log is far shorter than the range, so no two entries share one.
func recordID(e *statev1.Event) uint16 {
	return uint16((e.GetSequence()-1)%selLastID + 1)
}

func seconds(e *statev1.Event) uint32 {
	return uint32(e.GetTime().GetSeconds()) //nolint:gosec // Until 2106.
}

// selEvents are the sensor types and offsets (IPMI v2.0 table 42-3) of events.
var selEvents = map[statev1.EventCode]struct{ sensorType, sensor, offset byte }{
	statev1.EventCode_EVENT_CODE_POWERED_ON:            {typeACPIPowerState, sensorPower, offsetS0},
	statev1.EventCode_EVENT_CODE_POWERED_OFF:           {typeACPIPowerState, sensorPower, offsetS5},
	statev1.EventCode_EVENT_CODE_STOPPED:               {typeACPIPowerState, sensorPower, offsetS5},
	statev1.EventCode_EVENT_CODE_FAILED:                {0x20, 0, 1}, // OS stop: at run time.
	statev1.EventCode_EVENT_CODE_RESET:                 {0x1D, 0, 1}, // System boot: hard reset.
	statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_CHANGED: {0x12, 0, 0}, // System event: reconfigured.
	statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_USED:    {0x1D, 0, 0}, // System boot: power up.
	statev1.EventCode_EVENT_CODE_LOGIN:                 {0x2A, 0, 0}, // Session audit: activated.
	statev1.EventCode_EVENT_CODE_LOGIN_FAILED:          {0x2A, 0, 2}, // Session audit: invalid name or password.
	statev1.EventCode_EVENT_CODE_LOG_CLEARED:           {0x10, 0, 2}, // Event logging: cleared.
	statev1.EventCode_EVENT_CODE_WATCHDOG_EXPIRED:      {0x23, 0, 0}, // Watchdog 2: expired.
}

// selRecord is the record of an entry (IPMI v2.0 section 32): the client's own,
// what follows from the code, or else an OEM record with the message's beginning.
func selRecord(e *statev1.Event) []byte {
	const oemText = 6
	if record := bytes.Clone(e.GetIpmiRecord()); len(record) == selRecordSize {
		binary.LittleEndian.PutUint16(record, recordID(e))
		return record
	}
	record := make([]byte, selRecordSize)
	binary.LittleEndian.PutUint16(record, recordID(e))
	binary.LittleEndian.PutUint32(record[3:], seconds(e))
	event, ok := selEvents[e.GetCode()]
	if !ok {
		record[2] = selOEM
		copy(record[10:], printable(e.GetMessage(), oemText)) // After the maker, who is nobody.
		return record
	}
	record[2] = selSystemEvent
	copy(record[7:], []byte{ipmi.AddressBMC, 0, selEventRevision, event.sensorType, event.sensor, selSensorSpecific, event.offset, selUnspecified, selUnspecified})
	return record
}

// LoginEvent is the entry of a login, or of one that failed.
func LoginEvent(now time.Time, actor string, ok bool) *statev1.Event {
	e := &statev1.Event{
		Id: rand.Text(), Time: timestamppb.New(now), Kind: statev1.EventKind_EVENT_KIND_LOGIN, Actor: printable(actor, 128),
		Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Code: statev1.EventCode_EVENT_CODE_LOGIN,
		Message: "A user logged in over IPMI from an address that is new.",
	}
	if !ok {
		e.Severity, e.Code = statev1.EventSeverity_EVENT_SEVERITY_WARNING, statev1.EventCode_EVENT_CODE_LOGIN_FAILED
		e.Message = "A login over IPMI failed."
	}
	return e
}
