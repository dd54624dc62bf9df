// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmi_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The messages are of testdata/ipmitool-lan.hex.
func TestMessage_asIpmitoolSendsIt(t *testing.T) {
	t.Parallel()
	wire := fromHex(t, "2018c88104380e0431")
	got, err := ipmi.ParseMessage(wire)
	if err != nil {
		t.Fatal(err)
	}
	want := ipmi.Message{ToAddress: 0x20, NetFn: ipmi.NetFnApp, FromAddress: 0x81, Sequence: 1, Command: 0x38, Data: []byte{0x0E, 0x04}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseMessage(%x) mismatch (-want +got)\n%s", wire, diff)
	}
	if !got.IsRequest() {
		t.Error("IsRequest = false")
	}
	if b := got.AppendTo(nil); !bytes.Equal(b, wire) {
		t.Errorf("AppendTo = %x, want %x", b, wire)
	}
	answer := fromHex(t, "811c632004380001000400000000009f")
	if b := got.AppendResponse(nil, ipmi.OK, answer[7:15]); !bytes.Equal(b, answer) {
		t.Errorf("AppendResponse = %x, want %x", b, answer)
	}
	if m, err := ipmi.ParseMessage(answer); err != nil || m.IsRequest() {
		t.Errorf("ParseMessage(%x) = %+v, %v, want a response", answer, m, err)
	}
}

func TestParseMessage_refuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wire string
		err  error
	}{
		"an empty one":              {"", ipmi.ErrShort},
		"one without data checksum": {"2018c8810438", ipmi.ErrShort},
		"a wrong header checksum":   {"2018c98104380e0431", ipmi.ErrChecksum},
		"a wrong data checksum":     {"2018c88104380e0432", ipmi.ErrChecksum},
	} {
		if _, err := ipmi.ParseMessage(fromHex(t, tc.wire)); !errors.Is(err, tc.err) {
			t.Errorf("%s: error = %v, want %v", name, err, tc.err)
		}
	}
}

func TestParseGUID(t *testing.T) {
	t.Parallel()
	got, err := ipmi.ParseGUID("00112233-4455-6677-8899-aabbccddeeff")
	if want := fromHex(t, "33221100554477668899aabbccddeeff"); err != nil || !bytes.Equal(got[:], want) {
		t.Errorf("ParseGUID = %x, %v, want %x", got, err, want)
	}
	for _, s := range []string{"", "00112233445566778899aabbccddeeff", "0011223x-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabb-cddeeff"} {
		if _, err := ipmi.ParseGUID(s); err == nil {
			t.Errorf("ParseGUID(%q) succeeds", s)
		}
	}
}

func TestPrivilege_String(t *testing.T) {
	t.Parallel()
	for p, want := range map[ipmi.Privilege]string{0: "NONE", 1: "CALLBACK", 2: "USER", 3: "OPERATOR", 4: "ADMINISTRATOR", 5: "OEM", 9: "Privilege(9)"} {
		if got := p.String(); got != want {
			t.Errorf("Privilege(%d) = %q, want %q", byte(p), got, want)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add(fromHex(f, "2018c88104380e0431"))
	f.Add(fromHex(f, "811c632004380001000400000000009f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ipmi.ParseMessage(b)
		if err != nil {
			return
		}
		if again := m.AppendTo(nil); !bytes.Equal(again, b) {
			t.Errorf("AppendTo = %x, want %x", again, b)
		}
	})
}

func FuzzParseGUID(f *testing.F) {
	f.Add("00112233-4455-6677-8899-aabbccddeeff")
	f.Add("x")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := ipmi.ParseGUID(s); err == nil && len(s) != 36 {
			t.Errorf("ParseGUID(%q) succeeds", s)
		}
	})
}
