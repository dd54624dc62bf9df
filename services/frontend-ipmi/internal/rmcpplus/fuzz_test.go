// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus_test

import (
	"bytes"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// addPayloads adds the recorded payloads of a type as seeds.
func addPayloads(f *testing.F, wanted rmcpplus.PayloadType) {
	f.Helper()
	for _, name := range []string{"ipmitool-suite3.hex", "ipmipower-suite17.hex"} {
		for _, d := range conversation(f, name) {
			if p, err := rmcpplus.ParsePacket(d.body); err == nil && p.Type == wanted {
				f.Add(p.Payload)
			}
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, name := range []string{"ipmitool-suite3.hex", "ipmipower-suite17.hex", "ipmitool-lan.hex"} {
		for _, d := range conversation(f, name) {
			f.Add(d.body)
		}
	}
	keys := testKeys(rmcpplus.Suite17)
	f.Add(keys.AppendSealed(nil, rmcpplus.PayloadIPMI, 1, 1, []byte{1, 2, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := rmcpplus.ParsePacket(b)
		if err != nil {
			return
		}
		if len(p.Payload) > len(b) {
			t.Errorf("payload of %d bytes in %d", len(p.Payload), len(b))
		}
		_, _ = keys.Open(p) // Must not panic; only the seed can be authentic.
	})
}

func FuzzKeys_RoundTrip(f *testing.F) {
	f.Add([]byte("key"), []byte("payload"), uint32(1), uint32(2))
	f.Fuzz(func(t *testing.T, key, payload []byte, id, sequence uint32) {
		if len(payload) > 400 {
			return
		}
		for _, suite := range []*rmcpplus.Suite{rmcpplus.Suite3, rmcpplus.Suite17} {
			keys := suite.Keys(key)
			p, err := rmcpplus.ParsePacket(keys.AppendSealed(nil, rmcpplus.PayloadSOL, id, sequence, payload))
			if err != nil {
				t.Fatal(err)
			}
			got, err := keys.Open(p)
			if err != nil || !bytes.Equal(got, payload) || p.SessionID != id || p.Sequence != sequence {
				t.Errorf("suite %d: %x, %v, want %x", suite.ID, got, err, payload)
			}
		}
	})
}

func FuzzParseOpenSessionRequest(f *testing.F) {
	addPayloads(f, rmcpplus.PayloadOpenSessionRequest)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := rmcpplus.ParseOpenSessionRequest(b)
		if err != nil {
			return
		}
		if again, err := rmcpplus.ParseOpenSessionRequest(r.AppendTo(nil)); err != nil || again != r {
			t.Errorf("round trip = %+v, %v, want %+v", again, err, r)
		}
	})
}

func FuzzParseRAKP1(f *testing.F) {
	addPayloads(f, rmcpplus.PayloadRAKP1)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := rmcpplus.ParseRAKP1(b)
		if err != nil {
			return
		}
		if again, err := rmcpplus.ParseRAKP1(m.AppendTo(nil)); err != nil || again != m {
			t.Errorf("round trip = %+v, %v, want %+v", again, err, m)
		}
	})
}

func FuzzParseRAKP3(f *testing.F) {
	addPayloads(f, rmcpplus.PayloadRAKP3)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := rmcpplus.ParseRAKP3(b)
		if err != nil {
			return
		}
		again, err := rmcpplus.ParseRAKP3(m.AppendTo(nil))
		if err != nil || again.Tag != m.Tag || again.Status != m.Status || again.BMCID != m.BMCID || !bytes.Equal(again.Code, m.Code) {
			t.Errorf("round trip = %+v, %v, want %+v", again, err, m)
		}
	})
}
