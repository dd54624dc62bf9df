// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	alice = netip.MustParseAddrPort("192.0.2.1:1000")
	bob   = netip.MustParseAddrPort("192.0.2.2:1000")
)

func request(source netip.AddrPort, consoleID uint32) session.OpenRequest {
	return session.OpenRequest{Source: source, ConsoleID: consoleID, Suite: rmcpplus.Suite17, Requested: ipmi.PrivilegeAdministrator}
}

func open(t *testing.T, table *session.Table, now time.Time, r session.OpenRequest) *session.Session {
	t.Helper()
	s, _, err := table.Open(now, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWindow_Accept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		numbers []uint32
		want    []bool
	}{
		"numbers that rise":                  {[]uint32{1, 2, 3, 7}, []bool{true, true, true, true}},
		"the number of no session":           {[]uint32{0, 1, 0}, []bool{false, true, false}},
		"a number that comes again":          {[]uint32{5, 5, 4, 4, 5}, []bool{true, false, true, false, false}},
		"15 ahead and no more":               {[]uint32{15, 31, 30}, []bool{true, false, true}},
		"16 behind and no more":              {[]uint32{15, 20, 4, 3}, []bool{true, true, true, false}},
		"the first one too far from 0":       {[]uint32{16, 15}, []bool{false, true}},
		"a start before 0, as pyghmi may do": {[]uint32{0xFFFFFFFF, 1}, []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w session.Window
			for i, n := range tc.numbers {
				if got := w.Accept(n); got != tc.want[i] {
					t.Errorf("Accept(%d) at %d = %v", n, i, got)
				}
			}
		})
	}
}

func TestWindow_Accept_roundsTheEnd(t *testing.T) {
	t.Parallel()
	w := session.WindowAt(0xFFFFFFF8)
	for n := uint32(0xFFFFFFF9); n != 8; n++ {
		if got, want := w.Accept(n), n != 0; got != want {
			t.Errorf("Accept(%#x) = %v", n, got)
		}
	}
	if w.Accept(0xFFFFFFFF) {
		t.Error("a number that came is taken again after the end was rounded")
	}
}

func TestSession_NextSequence_startsAtOne(t *testing.T) {
	t.Parallel()
	var s session.Session
	if a, b := s.NextSequence(), s.NextSequence(); a != 1 || b != 2 {
		t.Errorf("sequence numbers %d, %d, want 1, 2", a, b)
	}
}

func TestTable_Open_sameRequestGetsSameSession(t *testing.T) {
	t.Parallel()
	table := session.NewTable(session.DefaultLimits())
	first := open(t, &table, start, request(alice, 1))
	if again := open(t, &table, start, request(alice, 1)); again != first {
		t.Error("a request that came again got another session")
	}
	if other := open(t, &table, start, request(bob, 1)); other == first || other.ID == first.ID {
		t.Error("another console with the same console id got the same session")
	}
	first.State = session.Challenged
	if again := open(t, &table, start, request(alice, 1)); again == first {
		t.Error("a console that starts over got the session of its earlier try")
	}
}

func TestTable_timeouts(t *testing.T) {
	t.Parallel()
	table := session.NewTable(session.DefaultLimits())
	half := open(t, &table, start, request(alice, 1))
	active := open(t, &table, start, request(alice, 2))
	if err := table.Activate(start, active); err != nil {
		t.Fatal(err)
	}
	if next, ok := table.NextExpiry(); !ok || !next.Equal(start.Add(10*time.Second)) {
		t.Errorf("NextExpiry = %v, %v", next, ok)
	}
	at := start.Add(10 * time.Second)
	if table.Lookup(at, half.ID) != nil || table.Lookup(at, active.ID) != active {
		t.Error("after 10 s the half-open session is there, or the active one is not")
	}
	if gone := table.Expire(at); len(gone) != 1 || gone[0] != half || half.State != session.Closed {
		t.Errorf("Expire = %v", gone)
	}
	table.Touch(start.Add(30*time.Second), active)
	if gone := table.Expire(start.Add(89 * time.Second)); gone != nil {
		t.Errorf("a session that spoke 59 s ago expired: %v", gone)
	}
	if gone := table.Expire(start.Add(90 * time.Second)); len(gone) != 1 || gone[0] != active {
		t.Errorf("Expire = %v", gone)
	}
	if _, ok := table.NextExpiry(); ok {
		t.Error("an empty table has something to expire")
	}
}

func TestTable_Open_oldestOfSourceGoes(t *testing.T) {
	t.Parallel()
	limits := session.DefaultLimits()
	limits.MaxHalfOpen, limits.MaxHalfOpenPerSource = 6, 3
	table := session.NewTable(limits)
	victim := open(t, &table, start, request(bob, 1))
	var sessions []*session.Session
	for i := range uint32(3) {
		sessions = append(sessions, open(t, &table, start.Add(time.Duration(i)*time.Second), request(alice, i)))
	}
	sessions[0].State = session.Challenged // The oldest has shown that it gets answers.
	_, evicted, err := table.Open(start.Add(3*time.Second), request(alice, 9))
	if err != nil || evicted != sessions[1] {
		t.Errorf("evicted %v, %v, want the oldest without a challenge", evicted, err)
	}
	if table.Lookup(start, victim.ID) == nil {
		t.Error("a flood from one source drove out the login of another")
	}
}

func TestTable_Open_oldestOfAllGoes(t *testing.T) {
	t.Parallel()
	limits := session.DefaultLimits()
	limits.MaxHalfOpen, limits.MaxHalfOpenPerSource = 4, 2
	table := session.NewTable(limits)
	first := open(t, &table, start, request(netip.MustParseAddrPort("192.0.2.9:1"), 1))
	for i := range 3 {
		source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 1)
		open(t, &table, start.Add(time.Second), request(source, 1))
	}
	_, evicted, err := table.Open(start.Add(2*time.Second), request(alice, 1))
	if err != nil || evicted != first {
		t.Errorf("evicted %+v, %v, want the oldest", evicted, err)
	}
	if half, _ := table.Len(); half != 4 {
		t.Errorf("%d half-open sessions, want 4", half)
	}
}

func TestTable_full(t *testing.T) {
	t.Parallel()
	limits := session.DefaultLimits()
	limits.MaxActive = 2
	table := session.NewTable(limits)
	waiting := open(t, &table, start, request(alice, 100))
	for i := range uint32(2) {
		s := open(t, &table, start, request(alice, i))
		if err := table.Activate(start, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := table.Open(start, request(bob, 3)); !errors.Is(err, session.ErrFull) {
		t.Errorf("Open beyond the limit: %v", err)
	}
	if err := table.Activate(start, waiting); !errors.Is(err, session.ErrFull) || waiting.State != session.Closed {
		t.Errorf("Activate beyond the limit: %v, state %v", err, waiting.State)
	}
	for s := range table.All() {
		table.Close(s)
		table.Close(s) // No harm.
	}
	if half, active := table.Len(); half != 0 || active != 0 {
		t.Errorf("Len = %d, %d after all were closed", half, active)
	}
}

func TestTable_sourcesOfIPv6CountByNetwork(t *testing.T) {
	t.Parallel()
	limits := session.DefaultLimits()
	limits.MaxHalfOpenPerSource = 2
	table := session.NewTable(limits)
	var evictions int
	for i := range 6 {
		source := netip.MustParseAddrPort(fmt.Sprintf("[2001:db8::%d]:1", i+1))
		_, evicted, err := table.Open(start, request(source, 1))
		if err != nil {
			t.Fatal(err)
		}
		if evicted != nil {
			evictions++
		}
	}
	if evictions != 4 {
		t.Errorf("%d evictions, want 4: addresses of one /64 are one source", evictions)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	var b session.Backoff
	now := start
	for i := range 5 {
		b.Failed(now, alice.Addr(), "admin")
		if b.Wait(now, alice.Addr(), "admin") {
			t.Errorf("failure %d makes wait", i+1)
		}
	}
	for _, seconds := range []int{1, 2, 4, 4, 4} {
		pause := time.Duration(seconds) * time.Second
		b.Failed(now, alice.Addr(), "admin")
		if !b.Wait(now.Add(pause-1), alice.Addr(), "admin") || b.Wait(now.Add(pause), alice.Addr(), "admin") {
			t.Errorf("pause is not %v", pause)
		}
		now = now.Add(pause)
	}
	b.Failed(now, alice.Addr(), "admin")
	if b.Wait(now, bob.Addr(), "admin") || b.Wait(now, alice.Addr(), "operator") {
		t.Error("another source or user has to wait as well")
	}
}

func TestBackoff_successDoesNotWipe(t *testing.T) {
	t.Parallel()
	var b session.Backoff
	now := start
	for range 20 {
		b.Failed(now, alice.Addr(), "admin")
		now = now.Add(4 * time.Second)
	}
	b.Succeeded(alice.Addr(), "admin")
	if b.Wait(now, alice.Addr(), "admin") {
		t.Error("a success makes wait")
	}
	b.Failed(now, alice.Addr(), "admin")
	if !b.Wait(now.Add(time.Second-1), alice.Addr(), "admin") || b.Wait(now.Add(time.Second), alice.Addr(), "admin") {
		t.Error("a failure after the success does not make wait 1 s")
	}
}

func TestBackoff_silentConsolesSideBySideCountOnce(t *testing.T) {
	t.Parallel()
	var b session.Backoff
	for i := range 64 { // Begun within a second, timed out 10 s later.
		began := start.Add(time.Duration(i) * 10 * time.Millisecond)
		b.FellSilent(began.Add(10*time.Second), began, alice.Addr(), "admin")
	}
	now := start.Add(11 * time.Second)
	for i := range 5 { // With the one above, the sixth makes wait.
		if b.Wait(now, alice.Addr(), "admin") {
			t.Fatalf("waits after %d failures", i+1)
		}
		b.FellSilent(now.Add(10*time.Second), now, alice.Addr(), "admin")
		now = now.Add(10 * time.Second)
	}
	if !b.Wait(now, alice.Addr(), "admin") {
		t.Error("six silent consoles one after the other cost nothing")
	}
}

func TestBackoff_forgets(t *testing.T) {
	t.Parallel()
	var b session.Backoff
	for range 5 {
		b.Failed(start, alice.Addr(), "admin")
	}
	later := start.Add(11 * time.Minute)
	b.Failed(later, alice.Addr(), "admin")
	if b.Wait(later, alice.Addr(), "admin") {
		t.Error("failures of long ago count")
	}
}

func TestBackoff_isBounded(t *testing.T) {
	t.Parallel()
	var b session.Backoff
	for i := range 3000 {
		b.Failed(start.Add(time.Duration(i)*time.Millisecond), alice.Addr(), fmt.Sprint(i))
	}
	if n := b.Tracked(); n > 256 {
		t.Errorf("%d names are tracked", n)
	}
}

func message(sequence byte, data ...byte) []byte {
	return ipmi.Message{ToAddress: 0x20, Sequence: sequence, Command: 2, Data: data}.AppendTo(nil)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	var r session.Requests
	first, verdict := r.Begin(start, message(1, 1), true)
	if verdict != session.New {
		t.Fatalf("verdict %v", verdict)
	}
	if _, verdict := r.Begin(start, message(1, 1), true); verdict != session.Underway {
		t.Errorf("while it is carried out: verdict %v", verdict)
	}
	r.Done(start, first, ipmi.NodeBusy, []byte{7})
	again, verdict := r.Begin(start.Add(9*time.Second), message(1, 1), true)
	if verdict != session.Answered {
		t.Fatalf("after 9 s: verdict %v", verdict)
	}
	if code, data := again.Answer(); code != ipmi.NodeBusy || !slices.Equal(data, []byte{7}) {
		t.Errorf("answer %v %x", code, data)
	}
	if _, verdict := r.Begin(start.Add(10*time.Second), message(1, 1), true); verdict != session.New {
		t.Errorf("after 10 s: verdict %v", verdict)
	}
}

func TestRequests_sameSequenceNumberMeansAnew(t *testing.T) {
	t.Parallel()
	var r session.Requests
	do := func(now time.Time, m []byte, keep bool) session.Verdict {
		e, verdict := r.Begin(now, m, keep)
		if verdict == session.New {
			r.Done(now, e, ipmi.OK, nil)
		}
		return verdict
	}
	for i, m := range [][]byte{message(0, 1), message(0, 2), message(0, 1)} {
		if verdict := do(start, m, true); verdict != session.New {
			t.Errorf("command %d of a console with one sequence number: verdict %v", i, verdict)
		}
	}
	for i := range 3 {
		if verdict := do(start, message(5, 9), false); verdict != session.New {
			t.Errorf("read %d: verdict %v, want it read anew", i, verdict)
		}
	}
	for i := range 16 {
		do(start, message(byte(10+i), 1), false)
	}
	if verdict := do(start, message(0, 1), true); verdict != session.New {
		t.Errorf("after 16 other requests: verdict %v", verdict)
	}
}

func TestRequests_areBounded(t *testing.T) {
	t.Parallel()
	var r session.Requests
	var begun []*session.Request
	for i := range byte(20) {
		if e, _ := r.Begin(start, message(i), true); e != nil {
			begun = append(begun, e)
		}
	}
	if len(begun) != 8 {
		t.Fatalf("%d requests are under way at once, want 8", len(begun))
	}
	r.Forget(begun[0])
	if e, verdict := r.Begin(start, message(0), true); e == nil || verdict != session.New {
		t.Errorf("after one was forgotten: %v, %v", e, verdict)
	}
	r.Done(start, begun[1], ipmi.OK, nil)
	if e, _ := r.Begin(start, message(50), true); e == nil {
		t.Error("an answer is kept where a request needs its place")
	}
}
