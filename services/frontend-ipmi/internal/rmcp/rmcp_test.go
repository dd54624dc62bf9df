// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcp_test

import (
	"bytes"
	"errors"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
)

func TestParseHeader(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   []byte
		want rmcp.Header
		err  error
	}{
		"IPMI":                     {[]byte{6, 0, 0xFF, 7}, rmcp.Header{Sequence: 0xFF, Class: rmcp.ClassIPMI}, nil},
		"ASF":                      {[]byte{6, 0, 0xFF, 6, 1, 2}, rmcp.Header{Sequence: 0xFF, Class: rmcp.ClassASF}, nil},
		"acknowledge":              {[]byte{6, 0, 3, 0x86}, rmcp.Header{Sequence: 3, Class: rmcp.ClassASF, Acknowledge: true}, nil},
		"reserved bits are let be": {[]byte{6, 9, 0xFF, 0x67}, rmcp.Header{Sequence: 0xFF, Class: rmcp.ClassIPMI}, nil},
		"too short":                {[]byte{6, 0, 0xFF}, rmcp.Header{}, rmcp.ErrShort},
		"other version":            {[]byte{5, 0, 0xFF, 7}, rmcp.Header{}, rmcp.ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rmcp.ParseHeader(tc.in)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("ParseHeader(%x) = %+v, %v, want %+v, %v", tc.in, got, err, tc.want, tc.err)
			}
		})
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	ping := []byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x80, 0x2A, 0, 0}
	got, err := rmcp.ParsePing(ping[rmcp.HeaderSize:])
	if err != nil || got.Tag != 0x2A {
		t.Fatalf("ParsePing(%x) = %+v, %v", ping, got, err)
	}
	if b := got.AppendTo(nil); !bytes.Equal(b, ping) {
		t.Errorf("AppendTo = %x, want %x", b, ping)
	}
	want := []byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x40, 0x2A, 0, 16, 0, 0, 0x11, 0xBE, 0, 0, 0, 0, 0x81, 0, 0, 0, 0, 0, 0, 0}
	if b := rmcp.Pong(got).AppendTo(nil); !bytes.Equal(b, want) {
		t.Errorf("pong = %x, want %x", b, want)
	}
}

func TestParsePing_refuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in  []byte
		err error
	}{
		"a short one":              {[]byte{0, 0, 0x11, 0xBE, 0x80, 1, 0}, rmcp.ErrShort},
		"another enterprise":       {[]byte{0, 0, 0x11, 0xBF, 0x80, 1, 0, 0}, rmcp.ErrMessage},
		"a pong":                   {[]byte{0, 0, 0x11, 0xBE, 0x40, 1, 0, 0}, rmcp.ErrMessage},
		"one that wants no answer": {[]byte{0, 0, 0x11, 0xBE, 0x80, 0xFF, 0, 0}, rmcp.ErrMessage},
	} {
		if _, err := rmcp.ParsePing(tc.in); !errors.Is(err, tc.err) {
			t.Errorf("%s: ParsePing(%x) error = %v, want %v", name, tc.in, err, tc.err)
		}
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte{6, 0, 0xFF, 7})
	f.Add([]byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x80, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := rmcp.ParseHeader(b)
		if err != nil {
			return
		}
		again, err := rmcp.ParseHeader(h.AppendTo(nil))
		if err != nil || again != h {
			t.Errorf("ParseHeader(AppendTo) = %+v, %v, want %+v", again, err, h)
		}
	})
}

func FuzzParsePing(f *testing.F) {
	f.Add([]byte{0, 0, 0x11, 0xBE, 0x80, 0, 0, 0})
	f.Add([]byte{0, 0, 0x11, 0xBE, 0x40, 0, 0, 16})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := rmcp.ParsePing(b)
		if err != nil {
			return
		}
		if again, err := rmcp.ParsePing(p.AppendTo(nil)[rmcp.HeaderSize:]); err != nil || again != p {
			t.Errorf("ParsePing(AppendTo) = %+v, %v, want %+v", again, err, p)
		}
	})
}
