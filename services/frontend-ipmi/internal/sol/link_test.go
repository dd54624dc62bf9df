// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var timing = sol.Timing{Accumulate: 10 * time.Millisecond, Threshold: 251, RetryCount: 3, RetryInterval: 100 * time.Millisecond}

// bed is a link with the time that its test has come to and the session
// sequence number of the console's latest packet.
type bed struct {
	*testing.T
	*sol.Link
	now time.Time
	at  uint32
}

// newBed is a link whose guest is there and whose first wait is over.
func newBed(t *testing.T, timing sol.Timing) *bed {
	b := &bed{T: t, Link: sol.NewLink(start, timing, false), now: start.Add(time.Second)}
	b.SetAvailable(true)
	return b
}

func (b *bed) receives(p sol.Packet) {
	b.at++
	b.Receive(b.now, b.at, p)
}

// sends returns the packet that is sent now, which has to be the only one.
func (b *bed) sends() (sol.Packet, bool) {
	b.Helper()
	wire := b.Next(b.now)
	if wire == nil {
		return sol.Packet{}, false
	}
	if again := b.Next(b.now); again != nil {
		b.Errorf("%x is sent beside %x", again, wire)
	}
	p, err := sol.ParsePacket(wire)
	if err != nil {
		b.Fatal(err)
	}
	return p, true
}

func (b *bed) wants(want sol.Packet) {
	b.Helper()
	got, _ := b.sends()
	if got.Sequence != want.Sequence || got.Ack != want.Ack || got.Accepted != want.Accepted || got.Flags != want.Flags || !bytes.Equal(got.Characters, want.Characters) {
		b.Errorf("sends %+v, want %+v", got, want)
	}
}

func (b *bed) silent() {
	b.Helper()
	if p, ok := b.sends(); ok {
		b.Errorf("sends %+v, want nothing", p)
	}
}

func TestLink_outputWaitsForMore(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.Output(b.now, []byte("a"))
	b.silent()
	if wake, ok := b.Wake(); !ok || !wake.Equal(b.now.Add(10*time.Millisecond)) {
		t.Errorf("Wake = %v, %v", wake, ok)
	}
	b.now = b.now.Add(9 * time.Millisecond)
	b.Output(b.now, []byte("b"))
	b.silent()
	b.now = b.now.Add(time.Millisecond)
	b.wants(sol.Packet{Sequence: 1, Characters: []byte("ab")})
	b.receives(sol.Packet{Ack: 1, Accepted: 2})
	b.silent()
	b.Output(b.now, bytes.Repeat([]byte("x"), 300))
	b.wants(sol.Packet{Sequence: 2, Characters: bytes.Repeat([]byte("x"), 251)})
	b.receives(sol.Packet{Ack: 2, Accepted: 251})
	b.now = b.now.Add(10 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 3, Characters: bytes.Repeat([]byte("x"), 49)})
	b.receives(sol.Packet{Ack: 3, Accepted: 49})
	if wake, ok := b.Wake(); ok {
		t.Errorf("there is nothing to do, but at %v", wake)
	}
}

// Output must not come before the answer to a command that follows at once.
func TestLink_outputWaitsAfterActivation(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, Link: sol.NewLink(start, timing, false), now: start}
	b.Output(b.now, bytes.Repeat([]byte("x"), 1000))
	b.now = start.Add(99 * time.Millisecond)
	b.silent()
	b.receives(sol.Packet{Sequence: 1, Characters: []byte("a")})
	b.wants(sol.Packet{Ack: 1, Accepted: 1, Flags: sol.Unavailable})
	b.now = start.Add(100 * time.Millisecond)
	if p, ok := b.sends(); !ok || len(p.Characters) != 251 {
		t.Errorf("sends %+v, want output", p)
	}
}

func TestLink_retriesAndGivesUp(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.Output(b.now, []byte("lost"))
	b.now = b.now.Add(10 * time.Millisecond)
	for range 4 {
		b.wants(sol.Packet{Sequence: 1, Characters: []byte("lost")})
		b.now = b.now.Add(99 * time.Millisecond)
		b.silent()
		b.now = b.now.Add(time.Millisecond)
	}
	b.silent()
	b.receives(sol.Packet{Ack: 1, Accepted: 4}) // Too late.
	b.Output(b.now, []byte("next"))
	b.now = b.now.Add(10 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 2, Flags: sol.TransmitOverrun, Characters: []byte("next")})
	b.receives(sol.Packet{Ack: 2, Accepted: 4})
	b.Output(b.now, []byte("fine"))
	b.now = b.now.Add(10 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 3, Characters: []byte("fine")})
}

func TestLink_partialAcknowledgement(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.Output(b.now, []byte("abcdef"))
	b.now = b.now.Add(10 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 1, Characters: []byte("abcdef")})
	b.receives(sol.Packet{Ack: 1, Accepted: 2})
	b.wants(sol.Packet{Sequence: 2, Characters: []byte("cdef")})
	b.receives(sol.Packet{Ack: 2, Accepted: 1, Flags: sol.NACK})
	b.wants(sol.Packet{Sequence: 3, Characters: []byte("def")})
	b.receives(sol.Packet{Ack: 2, Accepted: 4}) // Late: of the packet before.
	b.silent()
	b.receives(sol.Packet{Ack: 3, Accepted: 200}) // More than there was.
	b.now = b.now.Add(time.Hour)
	b.silent()
}

func TestLink_suspendedByConsole(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.Output(b.now, []byte("abc"))
	b.now = b.now.Add(10 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 1, Characters: []byte("abc")})
	b.receives(sol.Packet{Ack: 1, Flags: sol.NACK})
	b.now = b.now.Add(4 * time.Second)
	b.silent()
	b.Output(b.now, []byte("def"))
	b.silent()
	b.now = b.now.Add(time.Second)
	b.wants(sol.Packet{Sequence: 1, Characters: []byte("abc")}) // Can it again?
	b.receives(sol.Packet{Ack: 1, Flags: sol.NACK})
	b.silent()
	b.receives(sol.Packet{Ack: 1}) // It can.
	b.now = b.now.Add(100 * time.Millisecond)
	b.wants(sol.Packet{Sequence: 1, Characters: []byte("abc")})
	b.receives(sol.Packet{Ack: 1, Accepted: 3})
	b.wants(sol.Packet{Sequence: 2, Characters: []byte("def")})
	b.receives(sol.Packet{Ack: 2, Flags: sol.NACK})
	b.receives(sol.Packet{Flags: sol.FlushOutbound})
	b.now = b.now.Add(time.Hour)
	b.silent()
}

func TestLink_input(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.receives(sol.Packet{Sequence: 5, Characters: []byte("ab")})
	b.wants(sol.Packet{Ack: 5, Accepted: 2})
	b.receives(sol.Packet{Sequence: 5, Characters: []byte("ab")}) // The answer was lost.
	b.wants(sol.Packet{Ack: 5, Accepted: 2})
	b.receives(sol.Packet{Sequence: 9, Characters: []byte("c")}) // Sequences may leap.
	b.wants(sol.Packet{Ack: 9, Accepted: 1})
	b.Receive(b.now, 1, sol.Packet{Sequence: 5, Characters: []byte("ab")}) // Overtaken.
	b.silent()
	b.receives(sol.Packet{Sequence: 10}) // Keeps the console alive.
	b.wants(sol.Packet{Ack: 10})
	if got, _ := b.Input(); string(got) != "abc" {
		t.Errorf("Input = %q, want abc", got)
	}
	b.Output(b.now, bytes.Repeat([]byte("x"), 251))
	b.receives(sol.Packet{Sequence: 11, Characters: []byte("y")})
	b.wants(sol.Packet{Sequence: 1, Ack: 11, Accepted: 1, Characters: bytes.Repeat([]byte("x"), 251)})
}

func TestLink_breaksKeepTheirPlace(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.receives(sol.Packet{Sequence: 1, Characters: []byte("ab")})
	b.wants(sol.Packet{Ack: 1, Accepted: 2})
	b.receives(sol.Packet{Sequence: 2, Flags: sol.GenerateBreak})
	b.wants(sol.Packet{Ack: 2})
	b.receives(sol.Packet{Sequence: 3, Characters: []byte("cd")})
	b.silent() // It waits until the break is taken.
	if got, generateBreak := b.Input(); string(got) != "ab" || !generateBreak {
		t.Errorf("Input = %q, %v", got, generateBreak)
	}
	b.wants(sol.Packet{Ack: 3, Accepted: 2})
	if got, generateBreak := b.Input(); string(got) != "cd" || generateBreak {
		t.Errorf("Input = %q, %v", got, generateBreak)
	}
}

func TestLink_guestTakesNoInput(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	var accepted int
	sequence := byte(0)
	for range 1000 {
		sequence = sequence%15 + 1
		b.receives(sol.Packet{Sequence: sequence, Characters: bytes.Repeat([]byte("x"), 251)})
		p, ok := b.sends()
		if !ok {
			break
		}
		accepted += int(p.Accepted)
	}
	if accepted < 16<<10-251 || accepted > 16<<10 {
		t.Fatalf("%d characters are accepted", accepted)
	}
	rest := 16<<10 - accepted
	b.receives(sol.Packet{Sequence: sequence, Characters: bytes.Repeat([]byte("x"), 251)}) // Again, while it waits.
	b.now = b.now.Add(399 * time.Millisecond)
	b.silent()
	b.now = b.now.Add(time.Millisecond)
	b.wants(sol.Packet{Ack: sequence, Accepted: byte(rest)})
	sequence = sequence%15 + 1
	b.receives(sol.Packet{Sequence: sequence, Characters: []byte("rest")})
	b.silent()
	if got, _ := b.Input(); len(got) != 16<<10 {
		t.Errorf("the guest gets %d characters", len(got))
	}
	b.wants(sol.Packet{Ack: sequence, Accepted: 4}) // As soon as there is room.
	b.receives(sol.Packet{Flags: sol.FlushInbound})
	if b.HasInput() {
		t.Error("input is left after a flush")
	}
}

func TestLink_unavailable(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.SetAvailable(false)
	b.receives(sol.Packet{Sequence: 1, Characters: []byte("lost")})
	b.wants(sol.Packet{Ack: 1, Accepted: 4, Flags: sol.Unavailable})
	b.SetAvailable(true)
	b.receives(sol.Packet{Sequence: 2, Characters: []byte("typed")})
	b.wants(sol.Packet{Ack: 2, Accepted: 5})
	if got, _ := b.Input(); string(got) != "typed" {
		t.Errorf("Input = %q", got)
	}
}

func TestLink_readOnly(t *testing.T) {
	t.Parallel()
	l := sol.NewLink(start, timing, true)
	l.SetAvailable(true)
	l.Receive(start, 1, sol.Packet{Sequence: 1, Flags: sol.GenerateBreak, Characters: []byte("x")})
	if l.HasInput() {
		t.Error("a read-only link has input")
	}
	if p, err := sol.ParsePacket(l.Next(start)); err != nil || p.Ack != 1 || p.Accepted != 1 {
		t.Errorf("answers %+v, %v", p, err)
	}
}

// A console that reads nothing keeps 32 KiB of the newest output waiting.
func TestLink_slowConsole(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	var all []byte
	for i := range 20_000 {
		line := fmt.Appendf(nil, "line %d\n", i)
		all = append(all, line...)
		b.Output(b.now, line)
	}
	huge := bytes.Repeat([]byte("z"), 100<<10)
	all = append(all, huge...)
	b.Output(b.now, huge)
	tail := []byte("the end")
	all = append(all, tail...)
	b.Output(b.now, tail)
	var got []byte
	for {
		p, ok := b.sends()
		if !ok {
			if wake, ok := b.Wake(); ok {
				b.now = wake
				continue
			}
			break
		}
		if (p.Flags&sol.TransmitOverrun != 0) != (len(got) == 0) {
			t.Fatalf("after %d characters: flags %x", len(got), p.Flags)
		}
		got = append(got, p.Characters...)
		b.receives(sol.Packet{Ack: p.Sequence, Accepted: byte(len(p.Characters))})
	}
	if len(got) != 32<<10 || !bytes.HasSuffix(all, got) {
		t.Errorf("%d characters come, not the last of what was said", len(got))
	}
}

func TestLink_farewell(t *testing.T) {
	t.Parallel()
	b := newBed(t, timing)
	b.receives(sol.Packet{Sequence: 4, Characters: []byte("x")})
	p, err := sol.ParsePacket(b.Farewell())
	if err != nil || p.Ack != 4 || p.Flags != sol.NACK|sol.Deactivating || p.Sequence != 0 {
		t.Errorf("Farewell = %+v, %v", p, err)
	}
}

// datagram on its way.
type datagram struct {
	arrives time.Time
	at      uint32 // Session sequence number.
	packet  []byte
}

// network loses, doubles and delays datagrams, so that they overtake each other.
type network struct {
	random *rand.Rand
	bad    bool
	toBMC  []datagram
	toUser []datagram
}

func (n *network) carry(line *[]datagram, now time.Time, at uint32, packet []byte) {
	copies := 1
	if n.bad {
		copies = []int{0, 0, 1, 1, 1, 1, 1, 2}[n.random.IntN(8)]
	}
	for range copies {
		delay := time.Millisecond
		if n.bad {
			delay += time.Duration(n.random.IntN(60)) * time.Millisecond
		}
		*line = append(*line, datagram{now.Add(delay), at, packet})
	}
}

func arrived(line *[]datagram, now time.Time) []datagram {
	var here, later []datagram
	for _, d := range *line {
		if d.arrives.After(now) {
			later = append(later, d)
		} else {
			here = append(here, d)
		}
	}
	*line = later
	return here
}

// user is a console as FreeIPMI and pyghmi are: one packet under way, sent again
// unchanged every 100 ms, and output told apart by its sequence number.
type user struct {
	at       uint32
	typing   []byte
	sequence byte
	sent     []byte
	sentAt   time.Time
	last     byte
	lastSize int
	shown    []byte
}

func (u *user) packet(n *network, now time.Time, p sol.Packet) {
	u.at++
	n.carry(&n.toBMC, now, u.at, p.AppendTo(nil))
}

func (u *user) step(n *network, now time.Time, random *rand.Rand) {
	switch {
	case u.sent == nil && len(u.typing) > 0:
		u.sequence = u.sequence%15 + 1
		u.sent = u.typing[:min(len(u.typing), 1+random.IntN(100))]
	case u.sent == nil || now.Sub(u.sentAt) < 100*time.Millisecond:
		return
	}
	u.sentAt = now
	u.packet(n, now, sol.Packet{Sequence: u.sequence, Characters: u.sent})
}

func (u *user) receive(t *testing.T, n *network, now time.Time, wire []byte) {
	p, err := sol.ParsePacket(wire)
	if err != nil {
		t.Fatal(err)
	}
	if u.sent != nil && p.Ack == u.sequence {
		u.typing = u.typing[min(int(p.Accepted), len(u.sent)):]
		u.sent = nil
	}
	if p.Sequence == 0 {
		return
	}
	if p.Sequence != u.last {
		u.shown = append(u.shown, p.Characters...)
		u.last, u.lastSize = p.Sequence, len(p.Characters)
	} else if len(p.Characters) > u.lastSize {
		t.Fatalf("a packet that is sent again has grown from %d to %d characters", u.lastSize, len(p.Characters))
	}
	u.packet(n, now, sol.Packet{Ack: p.Sequence, Accepted: byte(len(p.Characters))})
}

// Over a network that loses a quarter of all packets, doubles and reorders
// others, every character arrives once and in order, both ways. Late packets of
// the BMC reach the console in the order of their session sequence numbers: that
// is what its window is for.
func TestLink_badNetwork(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		patient := timing
		patient.RetryCount = 1 << 30
		b := newBed(t, patient)
		n := &network{random: random, bad: seed > 0}
		var said, typed []byte
		u := &user{}
		for i := range 400 {
			typed = fmt.Appendf(typed, "command %d\r", i)
		}
		u.typing = bytes.Clone(typed)
		var heard []byte
		var latest, sequence uint32
		for ms := range 600_000 {
			b.now = b.now.Add(time.Millisecond)
			if ms%7 == 0 && ms < 7000 {
				line := []byte(strings.Repeat("o", random.IntN(40)) + fmt.Sprintf(" %d\r\n", ms))
				said = append(said, line...)
				b.Output(b.now, line)
			}
			u.step(n, b.now, random)
			for _, d := range arrived(&n.toBMC, b.now) {
				p, err := sol.ParsePacket(d.packet)
				if err != nil {
					t.Fatal(err)
				}
				b.Receive(b.now, d.at, p)
			}
			if ms%5 == 0 { // The guest is slower than the console.
				characters, _ := b.Input()
				heard = append(heard, characters...)
			}
			for wire := b.Next(b.now); wire != nil; wire = b.Next(b.now) {
				sequence++
				n.carry(&n.toUser, b.now, sequence, wire)
			}
			for _, d := range arrived(&n.toUser, b.now) {
				if d.at > latest {
					latest = d.at
					u.receive(t, n, b.now, d.packet)
				}
			}
			if ms > 7000 && len(u.typing) == 0 && len(u.shown) == len(said) && len(heard) == len(typed) {
				break
			}
		}
		if !bytes.Equal(heard, typed) {
			t.Errorf("seed %d: of %d characters typed the guest gets %d, or others", seed, len(typed), len(heard))
		}
		if !bytes.Equal(u.shown, said) {
			t.Errorf("seed %d: of %d characters said the console shows %d, or others", seed, len(said), len(u.shown))
		}
	}
}
