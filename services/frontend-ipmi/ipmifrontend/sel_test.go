// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"os"
	"strings"
	"testing"
	"time"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// codes are those of the event log, oldest first.
func (b *bench) codes() (codes []string) {
	b.services.Change(b.reference(), func(m *fakeservice.Machine) {
		for _, e := range m.Events {
			codes = append(codes, strings.TrimPrefix(e.GetCode().String(), "EVENT_CODE_"))
		}
	})
	return codes
}

func TestSEL_ofRealClients(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.ipmitool(t, "power", "status")
	eventually(t, "entry of the login", func() bool { return strings.Join(b.codes(), " ") == "LOGIN" })
	b.ipmitoolAs(t, []string{"-U", "nobody", "-P", "wrong", "-C", "17"}, "power", "status")
	// The same from the same address is no news.
	b.ipmitool(t, "power", "status")
	// ipmitool falls silent, which is known once a login's time is over.
	time.Sleep(session.DefaultLimits().HalfOpen)
	eventually(t, "entry of the failed login", func() bool { return strings.Join(b.codes(), " ") == "LOGIN LOGIN_FAILED" })

	event := t.TempDir() + "/event"
	if err := os.WriteFile(event, []byte("0x04 0x20 0x00 0x6f 0x00 0xff 0xff # OS boot\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	answers{
		"sel info":  {[]string{"sel", "info"}, []string{"Entries          : 2", "Free Space       : 7968 bytes", "Supported Cmds   : 'Reserve'"}},
		"sel elist": {[]string{"sel", "elist"}, []string{"1 | ", "2 | ", "Session Audit"}},
		"sel time":  {[]string{"sel", "time", "get"}, []string{" UTC"}},
	}.check(t, func(args ...string) (string, bool) { return b.ipmitool(t, args...) })
	out, ok := b.freeipmi(t, "ipmi-sel", "-u", "admin", "-p", "password", "-l", "ADMIN", "--sdr-cache-directory="+t.TempDir())
	if !ok || !strings.Contains(out, "Session Activated") || !strings.Contains(out, "Invalid Username or Password") {
		t.Errorf("ipmi-sel, success %v:\n%s", ok, out)
	}
	if out, ok := b.ipmitool(t, "sel", "add", event); !ok {
		t.Errorf("sel add: %s", out)
	}
	if got := strings.Join(b.codes(), " "); got != "LOGIN LOGIN_FAILED UNSPECIFIED" {
		t.Errorf("log after sel add: %s", got)
	}
	if out, ok := b.ipmitool(t, "sel", "clear"); !ok || !strings.Contains(out, "Clearing SEL") {
		t.Errorf("sel clear: %s", out)
	}
	if got := strings.Join(b.codes(), " "); got != "LOG_CLEARED" {
		t.Errorf("log after sel clear: %s", got)
	}
	if out, _ := b.ipmitool(t, "sel", "list"); !strings.Contains(out, "Log area reset/cleared") {
		t.Errorf("sel list after clear:\n%s", out)
	}
}

// A reservation to clear is lost by an entry that nobody has read, not by a
// login's.
func TestSEL_clearUnderReservation(t *testing.T) {
	t.Parallel()
	b := start(t)
	add := func(kind statev1.EventKind) {
		b.services.Change(b.reference(), func(m *fakeservice.Machine) {
			m.Appended++
			m.Events = append(m.Events, &statev1.Event{Sequence: m.Appended, Kind: kind, Message: "Something."})
		})
	}
	reserve := func() string {
		out, _ := b.ipmitool(t, "raw", "0x0a", "0x42")
		parts := strings.Fields(out)
		if len(parts) != 2 {
			t.Fatalf("reserve: %q", out)
		}
		return "0x" + parts[0]
	}
	clear := func(id string) (string, bool) {
		return b.ipmitool(t, "raw", "0x0a", "0x47", id, "0x00", "0x43", "0x4c", "0x52", "0xaa")
	}
	first := reserve()
	add(statev1.EventKind_EVENT_KIND_POWER)
	if out, ok := clear(first); ok || !strings.Contains(out, "Reservation cancelled") {
		t.Errorf("after an entry that nobody has read: %s", out)
	}
	second := reserve()
	if out, ok := clear(first); ok || !strings.Contains(out, "Reservation cancelled") {
		t.Errorf("under an old reservation: %s", out)
	}
	add(statev1.EventKind_EVENT_KIND_LOGIN)
	if out, ok := clear(second); !ok {
		t.Errorf("after a login: %s", out)
	}
}
