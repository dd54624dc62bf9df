// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// FuzzServer sends any datagram to a whole endpoint: it must not fail, must not
// answer with much more than it got, and must go on serving.
func FuzzServer(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "*.hex"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no recorded conversations: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if b, err := hex.DecodeString(strings.TrimSpace(strings.TrimLeft(line, "<> "))); err == nil {
				f.Add(b)
			}
		}
	}
	e, _ := newTestEndpoint(f, &fakeBackend{}, nil)
	from := peer{address: netip.MustParseAddrPort("198.51.100.1:1")}
	f.Fuzz(func(t *testing.T, b []byte) {
		size := len(b)
		if answer := e.handle(b, from); len(answer) > size+64 {
			t.Errorf("%d bytes are answered with %d", size, len(answer))
		}
		checkAlive(t, e)
	})
}

// FuzzSession sends any message, of any payload type, within a session.
func FuzzSession(f *testing.F) {
	for _, m := range []ipmi.Message{
		{NetFn: ipmi.NetFnApp, Command: 0x01},
		{NetFn: ipmi.NetFnApp, Command: 0x3B, Data: []byte{4}},
		{NetFn: ipmi.NetFnApp, Command: 0x54, Data: []byte{0x0E, 0, 0x80}},
		{NetFn: ipmi.NetFnChassis, Command: 0x02, Data: []byte{1}},
		{NetFn: ipmi.NetFnChassis, Command: 0x08, Data: []byte{5, 0xE0, 4, 0, 0, 0}},
		{NetFn: ipmi.NetFnChassis, Command: 0x09, Data: []byte{5, 0, 0}},
		{NetFn: ipmi.NetFnGroupExtension, Command: 0x3E, Data: []byte{0, 2}},
	} {
		m.ToAddress, m.FromAddress = ipmi.AddressBMC, ipmi.AddressConsole
		f.Add(byte(rmcpplus.PayloadIPMI), m.AppendTo(nil))
	}
	f.Add(byte(rmcpplus.PayloadSOL), []byte{1, 0, 0, 0})
	e, conn := newTestEndpoint(f, &fakeBackend{}, nil)
	f.Fuzz(func(t *testing.T, payloadType byte, payload []byte) {
		if len(payload) > 300 || payloadType > 0x3F {
			return
		}
		c := onEndpoint(t, e, "192.0.2.1:1")
		c.mustLogin()
		c.sequence++
		c.exchange(c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadType(payloadType), c.handshake.BMCID, c.sequence, payload))
		id := c.handshake.BMCID
		c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		for {
			select {
			case <-conn.sent:
				continue
			default:
			}
			break
		}
		checkAlive(t, e)
	})
}

func checkAlive(t *testing.T, e *endpoint) {
	t.Helper()
	c := onEndpoint(t, e, "192.0.2.77:1")
	if status := c.open(); status != rmcpplus.StatusOK {
		t.Fatalf("the endpoint refuses a session: status %#x", byte(status))
	}
}

// The same without a fuzzing engine, in each test run: recorded datagrams with
// random changes, and noise.
func TestServer_survivesNoise(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	random := rand.New(rand.NewPCG(1, 2))
	c := onEndpoint(t, e, source)
	c.mustLogin()
	var seeds [][]byte
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "ipmitool-suite17.hex"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.TrimSpace(strings.TrimLeft(line, "<> ")))
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, b)
	}
	for i := range 200_000 {
		var b []byte
		switch i % 3 {
		case 0:
			b = make([]byte, random.IntN(maxDatagram))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		case 1:
			b = append(b, seeds[random.IntN(len(seeds))]...)
			for range 1 + random.IntN(4) {
				b[random.IntN(len(b))] = byte(random.Uint32())
			}
		default:
			b = append(b, seeds[random.IntN(len(seeds))]...)
			b = b[:random.IntN(len(b)+1)]
		}
		e.handle(b, peer{address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)})
	}
	if code, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
		t.Error("a session did not survive the noise")
	}
	if status := onEndpoint(t, e, "192.0.2.200:1").login(); status != rmcpplus.StatusOK {
		t.Errorf("login after the noise: status %#x", byte(status))
	}
}
