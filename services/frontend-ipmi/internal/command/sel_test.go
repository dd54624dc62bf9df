// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"encoding/hex"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// at is the time of the test's entries, 65A1B2C3h.
var at = time.Unix(0x65A1B2C3, 0)

func (b *bench) happened(t *testing.T, events ...*statev1.Event) {
	t.Helper()
	for _, e := range events {
		e.Time = timestamppb.New(at)
	}
	if err := b.events.Append(t.Context(), nil, events...); err != nil {
		t.Fatal(err)
	}
}

// The records of IPMI v2.0 section 32.1: number, type, time, generator 20h, event
// revision 4, sensor type and number, direction and type 6Fh, offset, FFFFh. Types
// and offsets are those of table 42-3.
func TestSEL_records(t *testing.T) {
	t.Parallel()
	client, err := hex.DecodeString("ffff02000000004100046f0101af0102")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		event *statev1.Event
		want  string
	}{
		"powered on":        {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_POWERED_ON}, "02c3b2a16520000422016f00ffff"},
		"powered off":       {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_POWERED_OFF}, "02c3b2a16520000422016f05ffff"},
		"stopped":           {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_STOPPED}, "02c3b2a16520000422016f05ffff"},
		"failed":            {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_FAILED}, "02c3b2a16520000420006f01ffff"},
		"reset":             {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_RESET}, "02c3b2a1652000041d006f01ffff"},
		"override changed":  {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_CHANGED}, "02c3b2a16520000412006f00ffff"},
		"override used":     {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_BOOT_OVERRIDE_USED}, "02c3b2a1652000041d006f00ffff"},
		"login":             {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_LOGIN}, "02c3b2a1652000042a006f00ffff"},
		"login failed":      {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_LOGIN_FAILED}, "02c3b2a1652000042a006f02ffff"},
		"log cleared":       {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_LOG_CLEARED}, "02c3b2a16520000410006f02ffff"},
		"watchdog expired":  {&statev1.Event{Code: statev1.EventCode_EVENT_CODE_WATCHDOG_EXPIRED}, "02c3b2a16520000423006f00ffff"},
		"without a code":    {&statev1.Event{Message: "Moved: the machine runs on another node."}, "c0c3b2a165000000" + "4d6f7665643a"},
		"a client's record": {&statev1.Event{IpmiRecord: client}, "02000000004100046f0101af0102"},
	} {
		b := newBench()
		b.happened(t, tc.event)
		if got, want := b.send(t, session(user), "0a 43 0000000000ff"), "00 ffff"+"0100"+tc.want; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestSEL_info(t *testing.T) {
	t.Parallel()
	b := newBench()
	for _, step := range []struct {
		name   string
		events []*statev1.Event
		want   string
	}{
		{"nothing ever", nil, "00 51" + "0000" + "401f" + "ffffffff" + "ffffffff" + "02"},
		{"an entry", []*statev1.Event{{}}, "00 51" + "0100" + "301f" + "c3b2a165" + "ffffffff" + "02"},
		{"cleared", []*statev1.Event{{Code: statev1.EventCode_EVENT_CODE_LOG_CLEARED}}, "00 51" + "0200" + "201f" + "c3b2a165" + "c3b2a165" + "02"},
	} {
		b.happened(t, step.events...)
		if got := b.send(t, session(user), "0a 40"); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
}

func TestSEL_entries(t *testing.T) {
	t.Parallel()
	b := newBench()
	if got := b.send(t, session(user), "0a 43 0000000000ff"); got != "cb" {
		t.Errorf("first entry of an empty log: %q", got)
	}
	b.events.last = 0xFFFD // Record numbers go on from FFFEh at 1.
	b.happened(t, &statev1.Event{}, &statev1.Event{}, &statev1.Event{Code: statev1.EventCode_EVENT_CODE_RESET})
	for name, tc := range map[string]exchange{
		"first":                        {user, "0a 43 000000000004", "00 0100" + "feffc0c3"},
		"by number":                    {user, "0a 43 0000feff0002", "00 0100" + "feff"},
		"next":                         {user, "0a 43 000001000002", "00 0200" + "0100"},
		"last":                         {user, "0a 43 0000ffff0002", "00 ffff" + "0200"},
		"one that has gone":            {user, "0a 43 0000fdff0002", "cb"},
		"one to come":                  {user, "0a 43 000003000002", "cb"},
		"part, without reservation":    {user, "0a 43 0000ffff0102", "c5"},
		"under a reservation not made": {user, "0a 43 0700ffff0002", "c5"},
		"cut off":                      {user, "0a 43 0000ffff00", "c7"},
		"allocation info":              {user, "0a 41", "c1"},
		"partial add":                  {admin, "0a 45 000000000000", "c1"},
		"delete":                       {admin, "0a 46 00000100", "c1"},
		"set time":                     {admin, "0a 49 00000000", "c1"},
		"add by a user":                {user, "0a 44 " + "00000200000000410004090101afffff", "d4"},
		"add cut off":                  {operator, "0a 44 0000", "c7"},
		"clear by a user":              {user, "0a 47 0000434c52aa", "d4"},
		"clear without reservation":    {operator, "0a 47 0000434c52aa", "c5"},
		"clear without the letters":    {operator, "0a 47 0000434c53aa", "cc"},
		"clear, unknown operation":     {operator, "0a 47 0000434c5201", "cc"},
	} {
		if got := b.send(t, session(tc.level), tc.request); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := b.send(t, session(user), "0a 42"); got != "00 0100" {
		t.Errorf("reserve: %q", got)
	}
	for name, tc := range map[string]struct{ request, want string }{
		"part":           {"0a 43 0100ffff0702", "00 ffff" + "2000"},
		"to the end":     {"0a 43 0100ffff0eff", "00 ffff" + "ffff"},
		"beyond the end": {"0a 43 0100ffff10ff", "c9"},
	} {
		if got := b.send(t, session(user), tc.request); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Add and Clear change the log; the number of the new entry is in the answer.
func TestSEL_changes(t *testing.T) {
	t.Parallel()
	b := newBench()
	if got := b.send(t, session(operator), "0a 44 "+"77770200000000410004090101afffff"); got != "00 0100" {
		t.Fatalf("add: %q", got)
	}
	if got := b.send(t, session(user), "0a 43 000000000703"); got != "c5" {
		t.Errorf("part without reservation: %q", got)
	}
	record := b.events.log.Events[0].GetIpmiRecord()
	if age := time.Now().Unix() - (int64(record[3]) | int64(record[4])<<8 | int64(record[5])<<16 | int64(record[6])<<24); age < 0 || age > 60 {
		t.Errorf("the record's time is %d s ago", age)
	}
	// An OEM record without a time keeps all its bytes.
	if got := b.send(t, session(operator), "0a 44 "+"0000e00102030405060708090a0b0c0d"); got != "00 0200" {
		t.Fatalf("add without a time: %q", got)
	}
	if got := b.send(t, session(user), "0a 43 0000020000ff"); got != "00 ffff0200e00102030405060708090a0b0c0d" {
		t.Errorf("the record without a time: %q", got)
	}
	b.send(t, session(operator), "0a 42")
	if got := b.send(t, session(operator), "0a 47 0100434c5200"); got != "00 01" {
		t.Errorf("status of an erasure: %q", got)
	}
	if got := b.send(t, session(operator), "0a 47 0100434c52aa"); got != "00 01" {
		t.Errorf("clear: %q", got)
	}
	if n := len(b.events.log.Events); n != 1 || b.events.log.Events[0].GetCode() != statev1.EventCode_EVENT_CODE_LOG_CLEARED {
		t.Errorf("%d entries after clear: %v", n, b.events.log.Events)
	}
	b.events.err = grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "down")
	for _, request := range []string{"0a 40", "0a 42", "0a 43 000000000004", "0a 44 " + "77770200000000410004090101afffff"} {
		if got := b.send(t, session(operator), request); got != "c0" {
			t.Errorf("%s while the log can't be read: %q", request, got)
		}
	}
}
