// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

func TestParsePacket(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wire []byte
		want sol.Packet
	}{
		"characters":                {[]byte{1, 0, 0, 0, 'h', 'i'}, sol.Packet{Sequence: 1, Characters: []byte("hi")}},
		"an acknowledgement":        {[]byte{0, 15, 251, 0}, sol.Packet{Ack: 15, Accepted: 251, Characters: []byte{}}},
		"a break":                   {[]byte{7, 0, 0, 0x10}, sol.Packet{Sequence: 7, Flags: sol.GenerateBreak, Characters: []byte{}}},
		"a NACK with status":        {[]byte{0, 3, 0, 0x60}, sol.Packet{Ack: 3, Flags: sol.NACK | sol.Unavailable, Characters: []byte{}}},
		"reserved bits are ignored": {[]byte{0xF1, 0xF2, 3, 0x80}, sol.Packet{Sequence: 1, Ack: 2, Accepted: 3, Characters: []byte{}}},
	} {
		got, err := sol.ParsePacket(tc.wire)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: ParsePacket(%x) mismatch (-want +got)\n%s", name, tc.wire, diff)
		}
	}
	if _, err := sol.ParsePacket([]byte{1, 0, 0}); !errors.Is(err, sol.ErrShort) {
		t.Errorf("three bytes: %v", err)
	}
}

func TestParameters(t *testing.T) {
	t.Parallel()
	p := sol.NewParameters()
	const one, other = 1, 2
	for _, tc := range []struct {
		session   uint32
		parameter byte
		data      []byte
		want      ipmi.CompletionCode
		reads     []byte
	}{
		{one, 0, []byte{1}, 0x00, []byte{1}},
		{other, 0, []byte{1}, 0x81, []byte{1}},
		{one, 0, []byte{1}, 0x00, []byte{1}}, // Sent again.
		{one, 0, []byte{2}, 0x00, []byte{1}},
		{one, 0, []byte{3}, 0xCC, []byte{1}},
		{one, 0, []byte{0}, 0x00, []byte{0}},
		{one, 1, []byte{0}, 0x00, []byte{0}},
		{one, 1, []byte{1}, 0x00, []byte{1}},
		{one, 1, nil, 0xC7, []byte{1}},
		{one, 2, []byte{0xC4}, 0x00, []byte{0xC4}},
		{one, 2, []byte{0x84}, 0xCC, []byte{0xC4}},
		{one, 2, []byte{0x44}, 0xCC, []byte{0xC4}},
		{one, 2, []byte{0xC2}, 0xCC, []byte{0xC4}},
		{one, 2, []byte{0xC5}, 0xCC, []byte{0xC4}},
		{one, 3, []byte{1, 200}, 0x00, []byte{1, 200}},
		{one, 3, []byte{0, 200}, 0xC9, []byte{1, 200}},
		{one, 3, []byte{1, 252}, 0xC9, []byte{1, 200}},
		{one, 4, []byte{0xFF, 9}, 0x00, []byte{7, 9}},
		{one, 5, []byte{6}, 0x00, []byte{6}},
		{one, 5, []byte{5}, 0xC9, []byte{6}},
		{one, 6, []byte{10}, 0x00, []byte{10}},
		{one, 6, []byte{11}, 0xC9, []byte{10}},
		{one, 7, []byte{1}, 0x82, []byte{1}},
		{one, 8, []byte{1, 2}, 0x82, []byte{0x6F, 0x02}},
		{one, 9, []byte{1}, 0x80, nil},
		{one, 192, []byte{1}, 0x80, nil},
	} {
		if got := p.Set(tc.session, tc.parameter, tc.data); got != tc.want {
			t.Errorf("Set(%d, %x) = %v, want %v", tc.parameter, tc.data, got, tc.want)
		}
		if got, ok := p.Get(tc.parameter, 623); !bytes.Equal(got, tc.reads) || ok != (tc.reads != nil) {
			t.Errorf("after Set(%d, %x): Get = %x, %v, want %x", tc.parameter, tc.data, got, ok, tc.reads)
		}
	}
	p.Set(one, 0, []byte{1})
	p.SessionEnded(other)
	if got := p.Set(other, 0, []byte{1}); got != ipmi.SetAlreadyInProgress {
		t.Errorf("the end of another session: %v", got)
	}
	p.SessionEnded(one)
	if got := p.Set(other, 0, []byte{1}); got != ipmi.OK {
		t.Errorf("after the end of the session that had begun: %v", got)
	}
}
