// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"strconv"
	"time"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// LogService is the event log of the machine and its BMC, which IPMI clients see as
// the System Event Log.
type LogService struct {
	Header
	ServiceEnabled      bool       `json:"ServiceEnabled"`
	LogEntryType        string     `json:"LogEntryType"`
	MaxNumberOfRecords  uint32     `json:"MaxNumberOfRecords,omitempty"`
	OverWritePolicy     string     `json:"OverWritePolicy"`
	DateTime            string     `json:"DateTime,omitempty"`
	DateTimeLocalOffset string     `json:"DateTimeLocalOffset"`
	Status              *Status    `json:"Status"`
	Entries             Link       `json:"Entries"`
	Actions             LogActions `json:"Actions"`
}

// LogActions is the actions of a log.
type LogActions struct {
	ClearLog Action `json:"#LogService.ClearLog"`
}

// Action is an action without parameters.
type Action struct {
	Target string `json:"target"`
}

// Stable returns the log without its clock.
func (r *LogService) Stable() any {
	c := *r
	c.DateTime = ""
	return &c
}

// NewLogService returns a log that holds a number of entries.
func NewLogService(capacity uint32, now time.Time) *LogService {
	return &LogService{
		Header:         Header{ODataID: EventLogURI, ODataType: "#LogService.v1_9_0.LogService", ID: "EventLog", Name: "Event Log"},
		ServiceEnabled: true, LogEntryType: "Event", MaxNumberOfRecords: capacity, OverWritePolicy: "WrapsWhenFull",
		DateTime: now.UTC().Format(time.RFC3339), DateTimeLocalOffset: "+00:00", Status: enabled,
		Entries: Link{LogEntriesURI}, Actions: LogActions{Action{ClearLogURI}},
	}
}

// LogEntry is an entry of the event log.
type LogEntry struct {
	Header
	EntryType      string        `json:"EntryType"`
	EventID        string        `json:"EventId"`
	Severity       string        `json:"Severity,omitempty"`
	Created        string        `json:"Created"`
	Message        string        `json:"Message"`
	Originator     string        `json:"Originator,omitempty"`
	OriginatorType string        `json:"OriginatorType,omitempty"`
	Links          LogEntryLinks `json:"Links"`
}

// LogEntryLinks is the links of a log entry.
type LogEntryLinks struct {
	OriginOfCondition Link `json:"OriginOfCondition"`
}

// Stable returns the resource itself.
func (r *LogEntry) Stable() any { return r }

// severities are the Redfish names of severities.
var severities = map[statev1.EventSeverity]string{
	statev1.EventSeverity_EVENT_SEVERITY_OK:       "OK",
	statev1.EventSeverity_EVENT_SEVERITY_WARNING:  "Warning",
	statev1.EventSeverity_EVENT_SEVERITY_CRITICAL: "Critical",
}

// LogEntries returns the entries of a log, oldest first. Their ids are their
// places in it, which are never used again.
func LogEntries(events []*statev1.Event) []*LogEntry {
	var list []*LogEntry
	for _, e := range events {
		id := strconv.FormatUint(e.GetSequence(), 10)
		entry := &LogEntry{
			Header:    Header{ODataID: MemberURI(LogEntriesURI, id), ODataType: "#LogEntry.v1_21_0.LogEntry", ID: id, Name: "Log Entry " + id},
			EntryType: "Event", EventID: e.GetId(), Severity: severities[e.GetSeverity()],
			Created: e.GetTime().AsTime().UTC().Format(time.RFC3339), Message: e.GetMessage(),
			Links: LogEntryLinks{Link{originOf(e.GetKind())}},
		}
		if e.GetActor() != "" {
			entry.Originator, entry.OriginatorType = e.GetActor(), "Client"
		}
		list = append(list, entry)
	}
	return list
}

// originOf returns what an event is about: the BMC, or its machine.
func originOf(kind statev1.EventKind) string {
	switch kind {
	case statev1.EventKind_EVENT_KIND_LOGIN, statev1.EventKind_EVENT_KIND_BMC:
		return ManagerURI
	default:
		return SystemURI
	}
}
