// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

func event(n int, message string) *statev1.Event {
	return &statev1.Event{
		Id: fmt.Sprintf("id-%d", n), Time: timestamppb.New(time.Unix(int64(n), 5).UTC()), Message: message, Actor: "admin from 192.0.2.1 over ipmi",
		Severity: statev1.EventSeverity_EVENT_SEVERITY_WARNING, Kind: statev1.EventKind_EVENT_KIND_POWER,
	}
}

// The form in which logs are kept, which later versions have to read.
const keptLine = `{"sequence":7,"id":"id-1","time":"1970-01-01T00:00:01.000000005Z","severity":"WARNING","kind":"POWER","message":"powered <on>","actor":"admin from 192.0.2.1 over ipmi"}` + "\n"

func TestEventLog_form(t *testing.T) {
	t.Parallel()
	log := ParseLog(map[string][]byte{keyNext: []byte("7")})
	if !log.Add([]*statev1.Event{event(1, "powered <on>")}) {
		t.Error("a new entry was not added")
	}
	data := map[string][]byte{"other": []byte("kept")}
	if err := log.Write(data); err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{keyEvents: []byte(keptLine), keyNext: []byte("8"), "other": []byte("kept")}
	if d := cmp.Diff(want, data); d != "" {
		t.Errorf("data (-want +got):\n%s", d)
	}
	again := ParseLog(data)
	if d := cmp.Diff(log.Events, again.Events, protocmp.Transform()); d != "" || again.Next != 8 {
		t.Errorf("read again, next %d (-want +got):\n%s", again.Next, d)
	}
	if again.Add([]*statev1.Event{event(1, "again")}) {
		t.Error("an entry was added twice")
	}
}

// What programs read of an entry comes back, and a line whose record is none is
// kept apart.
func TestEventLog_codeAndRecord(t *testing.T) {
	t.Parallel()
	with := event(1, "the log was emptied")
	with.Code, with.IpmiRecord = statev1.EventCode_EVENT_CODE_LOG_CLEARED, []byte("0123456789abcdef")
	log := ParseLog(nil)
	log.Add([]*statev1.Event{with})
	data := map[string][]byte{}
	if err := log.Write(data); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data[keyEvents]), `"code":"LOG_CLEARED","ipmiRecord":"MDEyMzQ1Njc4OWFiY2RlZg=="`) {
		t.Errorf("written as %s", data[keyEvents])
	}
	if d := cmp.Diff(log.Events, ParseLog(data).Events, protocmp.Transform()); d != "" {
		t.Errorf("read again (-want +got):\n%s", d)
	}
	for name, tc := range map[string]struct {
		from, to   string
		code       statev1.EventCode
		unreadable int
	}{
		"a code of another version": {"LOG_CLEARED", "SOMETHING_NEW", statev1.EventCode_EVENT_CODE_UNSPECIFIED, 0},
		"a record cut off":          {"MDEyMzQ1Njc4OWFiY2RlZg==", "MDEy", 0, 1},
	} {
		got := ParseLog(map[string][]byte{keyEvents: []byte(strings.Replace(string(data[keyEvents]), tc.from, tc.to, 1))})
		if len(got.Unreadable) != tc.unreadable || (tc.unreadable == 0 && got.Events[0].GetCode() != tc.code) {
			t.Errorf("%s: %v, unreadable %q", name, got.Events, got.Unreadable)
		}
	}
}

func TestParseLog_whateverIsThere(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, tc := range map[string]struct {
		events, next string
		want         []string // sequence and message
		wantNext     uint64
		unreadable   int
	}{
		"nothing":               {wantNext: 1},
		"blank lines":           {events: "\n \n" + keptLine + "\n", want: []string{"7 powered <on>"}, wantNext: 8},
		"no last line end":      {events: strings.TrimSpace(keptLine), want: []string{"7 powered <on>"}, wantNext: 8},
		"next behind the log":   {events: keptLine, next: "3", want: []string{"7 powered <on>"}, wantNext: 8},
		"next is no number":     {events: keptLine, next: "many", want: []string{"7 powered <on>"}, wantNext: 8},
		"next is before zero":   {next: "-1", wantNext: 1},
		"next is too large":     {next: "99999999999999999999", wantNext: 1},
		"next after a clear":    {next: " 12\n", wantNext: 12},
		"a line is no JSON":     {events: "oops\n" + keptLine, want: []string{"7 powered <on>"}, wantNext: 8, unreadable: 1},
		"a line was cut":        {events: keptLine[:50] + "\n" + keptLine, want: []string{"7 powered <on>"}, wantNext: 8, unreadable: 1},
		"a line was copied":     {events: keptLine + keptLine, want: []string{"7 powered <on>", "8 powered <on>"}, wantNext: 9},
		"lines were swapped":    {events: keptLine + strings.Replace(keptLine, "7", "3", 1), want: []string{"3 powered <on>", "7 powered <on>"}, wantNext: 8},
		"no sequence":           {events: strings.Replace(keptLine, "7", "0", 1), wantNext: 1, unreadable: 1},
		"sequence of no end":    {events: strings.Replace(keptLine, "7", "18446744073709551615", 1), wantNext: 1, unreadable: 1},
		"unknown severity":      {events: strings.Replace(keptLine, "WARNING", "AWFUL", 1), wantNext: 1, unreadable: 1},
		"unspecified kind":      {events: strings.Replace(keptLine, "POWER", "UNSPECIFIED", 1), wantNext: 1, unreadable: 1},
		"no id":                 {events: strings.Replace(keptLine, "id-1", "", 1), wantNext: 1, unreadable: 1},
		"no message":            {events: strings.Replace(keptLine, "powered <on>", "", 1), wantNext: 1, unreadable: 1},
		"message of no end":     {events: strings.Replace(keptLine, "powered <on>", long, 1), wantNext: 1, unreadable: 1},
		"year of no proto time": {events: strings.Replace(keptLine, "1970", "0000", 1), wantNext: 1, unreadable: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := map[string][]byte{keyEvents: []byte(tc.events), keyNext: []byte(tc.next)}
			log := ParseLog(data)
			var got []string
			for _, event := range log.Events {
				got = append(got, fmt.Sprint(event.GetSequence(), " ", event.GetMessage()))
			}
			if d := cmp.Diff(tc.want, got); d != "" || log.Next != tc.wantNext || len(log.Unreadable) != tc.unreadable {
				t.Errorf("next %d, %d unreadable; want %d, %d (-want +got):\n%s", log.Next, len(log.Unreadable), tc.wantNext, tc.unreadable, d)
			}
			if err := log.Write(data); err != nil {
				t.Fatal(err)
			}
			// What could not be read is not lost, and not in the way.
			if kept := len(data[keyUnreadable]) > 0; kept != (tc.unreadable > 0) {
				t.Errorf("unreadable lines kept: %v", kept)
			}
			if again := ParseLog(data); len(again.Unreadable) > 0 || len(again.Events) != len(log.Events) {
				t.Errorf("written and read again: %d entries, %d unreadable", len(again.Events), len(again.Unreadable))
			}
		})
	}
}

func TestEventLog_isBounded(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{
		"short":           "ok",
		"long and costly": strings.Repeat("\x01", maxEventText),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := map[string][]byte{}
			for batch := range 8 {
				log := ParseLog(data)
				var events []*statev1.Event
				for n := range 100 {
					events = append(events, event(100*batch+n, message))
				}
				log.Unreadable = []string{strings.Repeat("é", maxUnreadable/4)}
				log.Add(events)
				if err := log.Write(data); err != nil {
					t.Fatal(err)
				}
			}
			log := ParseLog(data)
			if n := len(log.Events); n > Capacity || n < 80 || log.Events[n-1].GetSequence() != 800 || log.Next != 801 {
				t.Errorf("%d entries, next is %d", n, log.Next)
			}
			if len(data[keyEvents]) > maxEvents || len(data[keyUnreadable]) > maxUnreadable || !utf8.Valid(data[keyUnreadable]) {
				t.Errorf("%d bytes of entries, %d unreadable", len(data[keyEvents]), len(data[keyUnreadable]))
			}
		})
	}
}

func FuzzParseLog(f *testing.F) {
	f.Add([]byte(keptLine), []byte("8"), []byte(`{"id":"x","destination":"https://192.0.2.1/","kinds":["POWER"]}`))
	f.Add([]byte("oops\n"+keptLine+keptLine), []byte("-1"), []byte("{}\n[]"))
	f.Fuzz(func(t *testing.T, events, next, subscriptions []byte) {
		data := map[string][]byte{keyEvents: events, keyNext: next}
		log := ParseLog(data)
		log.Add([]*statev1.Event{event(1, "new")})
		if err := log.Write(data); err != nil {
			t.Fatal(err)
		}
		again := ParseLog(data)
		if len(again.Unreadable) > 0 || again.Next != log.Next {
			t.Errorf("written and read again: next %d, %d unreadable", again.Next, len(again.Unreadable))
		}
		if d := cmp.Diff(log.Events, again.Events, protocmp.Transform()); d != "" {
			t.Errorf("written and read again (-want +got):\n%s", d)
		}
		last := uint64(0)
		for _, event := range again.Events {
			if event.GetSequence() <= last || event.GetSequence() >= again.Next {
				t.Errorf("sequence %d follows %d, next is %d", event.GetSequence(), last, again.Next)
			}
			last = event.GetSequence()
		}
		list, _ := ParseSubscriptions(map[string][]byte{keySubscriptions: subscriptions})
		if err := WriteSubscriptions(data, list); err != nil {
			t.Fatal(err)
		}
		if list2, unreadable := ParseSubscriptions(data); len(unreadable) > 0 || !cmp.Equal(list, list2, protocmp.Transform()) {
			t.Errorf("subscriptions %v became %v", list, list2)
		}
	})
}

func FuzzParseAccount(f *testing.F) {
	f.Add("61", []byte(`{"username":"a","password":"secret-1","role":"OPERATOR"}`))
	f.Add("", []byte(`{}`))
	f.Fuzz(func(t *testing.T, key string, content []byte) {
		a, err := ParseAccount(key, content)
		if err != nil {
			return
		}
		data := map[string][]byte{}
		if err := PutAccount(data, a); err != nil {
			t.Fatal(err)
		}
		if again, err := ParseAccount(key, data[key]); err != nil || again != a {
			t.Errorf("account %q was read again with %v", a.Username, err)
		}
		if a.RegistryRole() == registryv1.Role_ROLE_UNSPECIFIED {
			t.Error("an account without role was read")
		}
	})
}

func TestCheckUsername(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"admin": true, "a b": true, "ünï": true, "a@b": true,
		"": false, "a:b": false, "a\x00": false, "a\nb": false, "\xff": false, "a\u200bb": false,
	} {
		if got := CheckUsername(name) == nil; got != ok {
			t.Errorf("CheckUsername(%q) is fine: %v", name, got)
		}
	}
}
