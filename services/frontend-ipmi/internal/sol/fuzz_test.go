// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol_test

import (
	"bytes"
	"testing"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

func FuzzParsePacket(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 'a'})
	f.Add([]byte{0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := sol.ParsePacket(b)
		if err != nil {
			return
		}
		wire := p.AppendTo(nil)
		again, err := sol.ParsePacket(wire)
		if err != nil || !bytes.Equal(again.AppendTo(nil), wire) {
			t.Errorf("%x becomes %x, %v", b, wire, err)
		}
	})
}

// FuzzLink does anything in any order to a link: the first byte of each step
// says what, the second how much or how long. Whatever comes, what the link
// keeps is bounded, it never sends without being asked more than it may, and it
// accepts no more than it was given.
func FuzzLink(f *testing.F) {
	f.Add([]byte{0, 10, 1, 100, 2, 0, 3, 0x11, 4, 20, 5, 0})
	f.Add([]byte{1, 255, 4, 255, 3, 0x40, 4, 1, 6, 0x10, 2, 0, 7, 1})
	f.Add(bytes.Repeat([]byte{6, 0x10, 6, 0x20, 4, 5}, 40))
	f.Add(bytes.Repeat([]byte{1, 255, 4, 30}, 60))
	f.Fuzz(func(t *testing.T, steps []byte) {
		const maxInput = 16 << 10
		now := start
		l := sol.NewLink(now, timing, false)
		var at uint32
		var given, taken, said, sent int
		var outSequence byte
		for len(steps) >= 2 {
			what, how := steps[0], steps[1]
			steps = steps[2:]
			p := sol.Packet{}
			switch what % 8 {
			case 0:
				l.SetAvailable(how&1 != 0)
				continue
			case 1:
				l.Output(now, bytes.Repeat([]byte("o"), int(how)*200))
				said += int(how) * 200
				continue
			case 2:
				characters, _ := l.Input()
				if len(characters) > maxInput {
					t.Fatalf("%d characters of input were kept", len(characters))
				}
				taken += len(characters)
				continue
			case 3: // An acknowledgement.
				p.Ack, p.Accepted, p.Flags = outSequence, how, sol.Flags(how)
			case 4:
				now = now.Add(time.Duration(how) * 5 * time.Millisecond)
				continue
			case 5: // Late packets.
				at -= uint32(how)
				continue
			case 6:
				p.Sequence, p.Flags, p.Characters = how>>4, sol.Flags(how&0x1F), bytes.Repeat([]byte("i"), int(how))
			case 7:
				var err error
				n := min(int(how), len(steps))
				if p, err = sol.ParsePacket(steps[:n]); err != nil {
					continue
				}
				steps = steps[n:]
			}
			at++
			given += len(p.Characters)
			l.Receive(now, at, p)
			packets := 0
			for wire := l.Next(now); wire != nil; wire = l.Next(now) {
				if packets++; packets > 2 {
					t.Fatal("it sends on and on")
				}
				if len(wire) > sol.PayloadSize {
					t.Fatalf("a payload has %d bytes", len(wire))
				}
				out, err := sol.ParsePacket(wire)
				if err != nil {
					t.Fatal(err)
				}
				if out.Sequence != 0 {
					if out.Sequence != outSequence {
						sent += len(out.Characters)
					}
					outSequence = out.Sequence
				}
			}
			if wake, ok := l.Wake(); ok && wake.Before(now.Add(-time.Minute)) {
				t.Fatalf("it wants to wake at %v, it is %v", wake, now)
			}
		}
		if taken > given {
			t.Fatalf("the guest gets %d characters of %d", taken, given)
		}
		if said == 0 && sent > 0 {
			t.Fatalf("%d characters of nothing are sent", sent)
		}
	})
}
