// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// Keys of the ConfigMap.
const (
	keyEvents     = "events"
	keyNext       = "next"
	keyUnreadable = "unreadable"
)

// Bounds of the ConfigMap, which may have 1 MiB in all.
const (
	// Capacity is how many entries an event log has.
	Capacity       = 500
	maxEvents      = 512 << 10 // bytes
	maxUnreadable  = 64 << 10  // bytes
	maxEventID     = 64
	maxEventText   = 1024
	maxEventActor  = 256
	ipmiRecordSize = 16
	severityPrefix = "EVENT_SEVERITY_"
	kindPrefix     = "EVENT_KIND_"
	codePrefix     = "EVENT_CODE_"
)

// entry is a line of the log.
type entry struct {
	Sequence uint64    `json:"sequence"`
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Severity string    `json:"severity"`
	Kind     string    `json:"kind"`
	Message  string    `json:"message"`
	Actor    string    `json:"actor,omitempty"`
	Code     string    `json:"code,omitempty"`
	Record   []byte    `json:"ipmiRecord,omitempty"`
}

// EventLog is the log of a BMC.
type EventLog struct {
	// Events are the entries, oldest first.
	Events []*statev1.Event
	// Next is the sequence of the next entry.
	Next uint64
	// Unreadable are lines that are no entries.
	Unreadable []string
}

// ParseLog reads a log, whatever is in it.
func ParseLog(data map[string][]byte) *EventLog {
	l := &EventLog{Next: 1}
	for line := range bytes.Lines(data[keyEvents]) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		event, err := parseEvent(line)
		if err != nil {
			l.Unreadable = append(l.Unreadable, strings.ToValidUTF8(string(line), "?"))
			continue
		}
		l.Events = append(l.Events, event)
	}
	slices.SortStableFunc(l.Events, func(a, b *statev1.Event) int {
		switch {
		case a.GetSequence() < b.GetSequence():
			return -1
		case a.GetSequence() > b.GetSequence():
			return 1
		}
		return 0
	})
	if next, err := strconv.ParseUint(strings.TrimSpace(string(data[keyNext])), 10, 63); err == nil {
		l.Next = max(l.Next, next)
	}
	// A line that was copied by hand gets a place of its own.
	last := uint64(0)
	for _, event := range l.Events {
		if event.GetSequence() <= last {
			event.Sequence = last + 1
		}
		last = event.GetSequence()
	}
	l.Next = max(l.Next, last+1)
	return l
}

func parseEvent(line []byte) (*statev1.Event, error) {
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, err
	}
	severity := statev1.EventSeverity(statev1.EventSeverity_value[severityPrefix+e.Severity])
	kind := statev1.EventKind(statev1.EventKind_value[kindPrefix+e.Kind])
	at := timestamppb.New(e.Time)
	if e.ID == "" || len(e.ID) > maxEventID || e.Message == "" || len(e.Message) > 4*maxEventText || len(e.Actor) > 4*maxEventActor ||
		(len(e.Record) != 0 && len(e.Record) != ipmiRecordSize) || e.Sequence == 0 || e.Sequence > 1<<62 || severity == 0 || kind == 0 || at.CheckValid() != nil {
		return nil, fmt.Errorf("parse event: a field is missing or out of range")
	}
	return &statev1.Event{
		Id: e.ID, Sequence: e.Sequence, Time: at, Severity: severity, Kind: kind, Message: e.Message, Actor: e.Actor,
		// A code of a newer controller is kept by none that is older.
		Code: statev1.EventCode(statev1.EventCode_value[codePrefix+e.Code]), IpmiRecord: e.Record,
	}, nil
}

// appendEvent writes an entry's line.
func appendEvent(b *bytes.Buffer, event *statev1.Event) error {
	line := entry{
		Sequence: event.GetSequence(), ID: event.GetId(), Time: event.GetTime().AsTime(),
		Severity: strings.TrimPrefix(event.GetSeverity().String(), severityPrefix),
		Kind:     strings.TrimPrefix(event.GetKind().String(), kindPrefix),
		Message:  event.GetMessage(), Actor: event.GetActor(), Record: event.GetIpmiRecord(),
	}
	if code := event.GetCode(); code != statev1.EventCode_EVENT_CODE_UNSPECIFIED {
		line.Code = strings.TrimPrefix(code.String(), codePrefix)
	}
	return appendLine(b, line)
}

// appendLine writes a value as a line of JSON.
func appendLine(b *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// Add adds the entries whose ids are not in the log; false when all are. What
// does not fit goes from the front.
func (l *EventLog) Add(events []*statev1.Event) bool {
	known := map[string]bool{}
	for _, event := range l.Events {
		known[event.GetId()] = true
	}
	added := false
	for _, event := range events {
		if known[event.GetId()] {
			continue
		}
		known[event.GetId()] = true
		event.Sequence = l.Next
		l.Next++
		l.Events = append(l.Events, event)
		added = true
	}
	if over := len(l.Events) - Capacity; over > 0 {
		l.Events = slices.Clone(l.Events[over:])
	}
	return added
}

// Write puts the log into the ConfigMap.
func (l *EventLog) Write(data map[string][]byte) error {
	lines := make([][]byte, 0, len(l.Events))
	size := 0
	for _, event := range slices.Backward(l.Events) {
		var b bytes.Buffer
		if err := appendEvent(&b, event); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
		if size += b.Len(); size > maxEvents {
			break
		}
		lines = append(lines, b.Bytes())
	}
	l.Events = l.Events[len(l.Events)-len(lines):]
	slices.Reverse(lines)
	data[keyEvents] = bytes.Join(lines, nil)
	data[keyNext] = strconv.AppendUint(nil, l.Next, 10)
	KeepUnreadable(data, l.Unreadable)
	l.Unreadable = nil
	return nil
}

// KeepUnreadable moves lines that can't be read to where they are in nobody's
// way; the oldest make room.
func KeepUnreadable(data map[string][]byte, lines []string) {
	if len(lines) == 0 {
		return
	}
	kept := slices.Concat(data[keyUnreadable], []byte(strings.Join(lines, "\n")+"\n"))
	if over := len(kept) - maxUnreadable; over > 0 {
		kept = kept[over:]
		for len(kept) > 0 && !utf8.RuneStart(kept[0]) {
			kept = kept[1:]
		}
	}
	data[keyUnreadable] = kept
}

// RevisionOf is a revision of the log: what it is made of.
func RevisionOf(data map[string][]byte) string {
	sum := sha256.Sum256(data[keyEvents])
	return hex.EncodeToString(sum[:16])
}
