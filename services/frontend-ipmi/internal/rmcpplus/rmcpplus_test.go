// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// datagram of a recorded conversation, without its RMCP header.
type datagram struct {
	fromClient bool
	class      rmcp.Class
	body       []byte
}

func conversation(t testing.TB, name string) []datagram {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []datagram
	for line := range strings.Lines(string(text)) {
		direction, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		header, err := rmcp.ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, datagram{direction == ">", header.Class, b[rmcp.HeaderSize:]})
	}
	return all
}

// Both clients checked the codes of these conversations, so whatever follows
// from password and random numbers has to come out here as well.
func TestConversations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		suite *rmcpplus.Suite
		want  []string // Requests in the session: network function, command, data.
	}{
		"ipmitool-suite3.hex": {rmcpplus.Suite3, []string{
			"06 3b 04", "2c 3e 0002", "06 01 ", "2c 00 00", "2c 00 03",
			"00 08 0001", "00 08 040101", "00 08 05e004000000", "00 08 0002", "00 08 0000", "06 3c SESSION",
		}},
		"ipmitool-suite17.hex":  {rmcpplus.Suite17, []string{"06 3b 04", "2c 3e 0002", "06 01 ", "2c 00 00", "2c 00 03", "00 01 ", "06 3c SESSION"}},
		"ipmipower-suite3.hex":  {rmcpplus.Suite3, []string{"06 3b 03", "00 01 ", "06 3c SESSION"}},
		"ipmipower-suite17.hex": {rmcpplus.Suite17, []string{"06 3b 03", "00 01 ", "06 3c SESSION"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			password := []byte("password")
			var handshake rmcpplus.Handshake
			var keys rmcpplus.Keys
			var got []string
			for _, d := range conversation(t, name) {
				packet, err := rmcpplus.ParsePacket(d.body)
				if err != nil {
					t.Fatalf("ParsePacket(%x): %v", d.body, err)
				}
				payload := packet.Payload
				switch packet.Type {
				case rmcpplus.PayloadOpenSessionRequest:
					request, err := rmcpplus.ParseOpenSessionRequest(payload)
					if err != nil {
						t.Fatal(err)
					}
					if chosen := request.Choose([]*rmcpplus.Suite{rmcpplus.Suite17, rmcpplus.Suite3}); chosen != tc.suite {
						t.Errorf("chose %+v, want suite %d", chosen, tc.suite.ID)
					}
					if b := request.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("Open Session Request = %x, want %x", b, payload)
					}
					handshake.ConsoleID = request.ConsoleID
				case rmcpplus.PayloadOpenSessionResponse:
					handshake.BMCID = binary.LittleEndian.Uint32(payload[8:])
					response := rmcpplus.OpenSessionResponse{
						Tag: payload[0], Privilege: payload[2], ConsoleID: handshake.ConsoleID, BMCID: handshake.BMCID, Algorithms: tc.suite.Algorithms,
					}
					if b := response.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("Open Session Response = %x, want %x", b, payload)
					}
				case rmcpplus.PayloadRAKP1:
					m, err := rmcpplus.ParseRAKP1(payload)
					if err != nil {
						t.Fatal(err)
					}
					if b := m.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("RAKP 1 = %x, want %x", b, payload)
					}
					handshake.ConsoleRandom, handshake.Role, handshake.Username = m.ConsoleRandom, m.Role, m.Username
				case rmcpplus.PayloadRAKP2:
					copy(handshake.BMCRandom[:], payload[8:])
					copy(handshake.GUID[:], payload[24:])
					m := rmcpplus.RAKP2{
						Tag: payload[0], ConsoleID: handshake.ConsoleID, BMCRandom: handshake.BMCRandom, GUID: handshake.GUID,
						Code: tc.suite.RAKP2Code(password, &handshake),
					}
					if b := m.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("RAKP 2 = %x, want %x", b, payload)
					}
				case rmcpplus.PayloadRAKP3:
					m, err := rmcpplus.ParseRAKP3(payload)
					if err != nil {
						t.Fatal(err)
					}
					if want := tc.suite.RAKP3Code(password, &handshake); !rmcpplus.Equal(m.Code, want) {
						t.Errorf("RAKP 3 code = %x, want %x", m.Code, want)
					}
					if b := m.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("RAKP 3 = %x, want %x", b, payload)
					}
				case rmcpplus.PayloadRAKP4:
					sessionKey := tc.suite.SessionKey(password, &handshake)
					m := rmcpplus.RAKP4{Tag: payload[0], ConsoleID: handshake.ConsoleID, Check: tc.suite.RAKP4Check(sessionKey, &handshake)}
					if b := m.AppendTo(nil); !bytes.Equal(b, payload) {
						t.Errorf("RAKP 4 = %x, want %x", b, payload)
					}
					keys = tc.suite.Keys(sessionKey)
				case rmcpplus.PayloadIPMI:
					if packet.SessionID == 0 {
						if b := rmcpplus.AppendPlain(nil, packet.Format, packet.Type, payload); !bytes.Equal(b, d.body) {
							t.Errorf("packet = %x, want %x", b, d.body)
						}
						continue
					}
					payload, err := keys.Open(packet)
					if err != nil {
						t.Fatalf("Open: %v", err)
					}
					m, err := ipmi.ParseMessage(payload)
					if err != nil {
						t.Fatalf("ParseMessage(%x): %v", payload, err)
					}
					if d.fromClient {
						data := hex.EncodeToString(m.Data)
						if bytes.Equal(m.Data, binary.LittleEndian.AppendUint32(nil, handshake.BMCID)) {
							data = "SESSION"
						}
						got = append(got, hex.EncodeToString([]byte{byte(m.NetFn)})+" "+hex.EncodeToString([]byte{m.Command})+" "+data)
					}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("requests mismatch (-want +got)\n%s", diff)
			}
		})
	}
}

func testKeys(suite *rmcpplus.Suite) rmcpplus.Keys { return suite.Keys([]byte("a session key")) }

func TestKeys_sealedPacketsOpen(t *testing.T) {
	t.Parallel()
	for _, suite := range []*rmcpplus.Suite{rmcpplus.Suite3, rmcpplus.Suite17} {
		keys := testKeys(suite)
		for size := range 70 {
			payload := bytes.Repeat([]byte{0xA5}, size)
			b := keys.AppendSealed(nil, rmcpplus.PayloadIPMI, 7, 9, payload)
			packet, err := rmcpplus.ParsePacket(b)
			if err != nil {
				t.Fatal(err)
			}
			if packet.SessionID != 7 || packet.Sequence != 9 || packet.Type != rmcpplus.PayloadIPMI {
				t.Errorf("packet = %+v", packet)
			}
			got, err := keys.Open(packet)
			if err != nil || !bytes.Equal(got, payload) {
				t.Errorf("suite %d, %d bytes: Open = %x, %v", suite.ID, size, got, err)
			}
		}
	}
}

// Whatever bit of a packet is changed, it does not open.
func TestKeys_Open_refusesEveryChangedBit(t *testing.T) {
	t.Parallel()
	for _, suite := range []*rmcpplus.Suite{rmcpplus.Suite3, rmcpplus.Suite17} {
		keys := testKeys(suite)
		sealed := keys.AppendSealed(nil, rmcpplus.PayloadIPMI, 7, 9, []byte("a request"))
		for bit := range len(sealed) * 8 {
			b := bytes.Clone(sealed)
			b[bit/8] ^= 1 << (bit % 8)
			packet, err := rmcpplus.ParsePacket(b)
			if err != nil {
				continue
			}
			if packet.Format != rmcpplus.FormatRMCPPlus {
				continue
			}
			if _, err := keys.Open(packet); !errors.Is(err, rmcpplus.ErrIntegrity) {
				t.Fatalf("suite %d opens a packet with bit %d changed", suite.ID, bit)
			}
		}
	}
}

func TestKeys_Open_refusesPlainPackets(t *testing.T) {
	t.Parallel()
	keys := testKeys(rmcpplus.Suite17)
	packet, err := rmcpplus.ParsePacket(rmcpplus.AppendPlain(nil, rmcpplus.FormatRMCPPlus, rmcpplus.PayloadIPMI, make([]byte, 64)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Open(packet); !errors.Is(err, rmcpplus.ErrIntegrity) {
		t.Errorf("Open of a plain packet: %v", err)
	}
}

func TestOpenSessionRequest_Choose(t *testing.T) {
	t.Parallel()
	all := []*rmcpplus.Suite{rmcpplus.Suite17, rmcpplus.Suite3}
	request := func(authentication, integrity, confidentiality byte) rmcpplus.OpenSessionRequest {
		return rmcpplus.OpenSessionRequest{
			Authentication: rmcpplus.Algorithm{Number: authentication}, Integrity: rmcpplus.Algorithm{Number: integrity},
			Confidentiality: rmcpplus.Algorithm{Number: confidentiality},
		}
	}
	anything := rmcpplus.OpenSessionRequest{
		Authentication: rmcpplus.Algorithm{Any: true}, Integrity: rmcpplus.Algorithm{Any: true}, Confidentiality: rmcpplus.Algorithm{Any: true},
	}
	for name, tc := range map[string]struct {
		request rmcpplus.OpenSessionRequest
		want    *rmcpplus.Suite
	}{
		"suite 0":                       {request(0, 0, 0), nil},
		"suite 1":                       {request(1, 0, 0), nil},
		"suite 2":                       {request(1, 1, 0), nil},
		"suite 3":                       {request(1, 1, 1), rmcpplus.Suite3},
		"suite 8":                       {request(2, 2, 1), nil},
		"suite 16":                      {request(3, 4, 0), nil},
		"suite 17":                      {request(3, 4, 1), rmcpplus.Suite17},
		"a mixture":                     {request(1, 4, 1), nil},
		"the choice is left to the BMC": {anything, rmcpplus.Suite17},
	} {
		if got := tc.request.Choose(all); got != tc.want {
			t.Errorf("%s: chose %+v", name, got)
		}
	}
}

func TestParsers_refuse(t *testing.T) {
	t.Parallel()
	valid := rmcpplus.OpenSessionRequest{Tag: 5, ConsoleID: 0x01020304}.AppendTo(nil)
	wrongType := bytes.Clone(valid)
	wrongType[8] = 1
	wrongLength := bytes.Clone(valid)
	wrongLength[11] = 9
	for name, b := range map[string][]byte{"cut off": valid[:31], "payloads in another order": wrongType, "a payload of another length": wrongLength} {
		r, err := rmcpplus.ParseOpenSessionRequest(b)
		if !errors.Is(err, rmcpplus.ErrPayload) || r.Tag != 5 || r.ConsoleID != 0x01020304 {
			t.Errorf("Open Session Request, %s: %+v, %v, want tag and id for the refusal", name, r, err)
		}
	}
	if _, err := rmcpplus.ParseOpenSessionRequest(valid[:7]); !errors.Is(err, rmcpplus.ErrShort) {
		t.Errorf("short Open Session Request: %v", err)
	}
	rakp1 := rmcpplus.RAKP1{Tag: 1, BMCID: 2, Username: "sixteen-bytes-ok"}.AppendTo(nil)
	if m, err := rmcpplus.ParseRAKP1(rakp1); err != nil || m.Username != "sixteen-bytes-ok" {
		t.Errorf("RAKP 1 with 16 bytes of name: %+v, %v", m, err)
	}
	rakp1[27] = 17
	if m, err := rmcpplus.ParseRAKP1(append(rakp1, 'x')); !errors.Is(err, rmcpplus.ErrNameLength) || m.BMCID != 2 {
		t.Errorf("RAKP 1 with 17 bytes of name: %+v, %v", m, err)
	}
	rakp1[27] = 16
	if _, err := rmcpplus.ParseRAKP1(rakp1[:30]); !errors.Is(err, rmcpplus.ErrNameLength) {
		t.Errorf("RAKP 1 with its name cut off: %v", err)
	}
	if _, err := rmcpplus.ParseRAKP1(rakp1[:27]); !errors.Is(err, rmcpplus.ErrShort) {
		t.Errorf("short RAKP 1: %v", err)
	}
	if _, err := rmcpplus.ParseRAKP3(make([]byte, 7)); !errors.Is(err, rmcpplus.ErrShort) {
		t.Errorf("short RAKP 3: %v", err)
	}
	for name, tc := range map[string]struct {
		in  []byte
		err error
	}{
		"nothing":                       {nil, rmcpplus.ErrShort},
		"v1.5 header cut off":           {make([]byte, 9), rmcpplus.ErrShort},
		"v1.5 payload cut off":          {[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, rmcpplus.ErrShort},
		"v2.0 header cut off":           {[]byte{6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, rmcpplus.ErrShort},
		"v2.0 payload cut off":          {[]byte{6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, rmcpplus.ErrShort},
		"OEM payload":                   {[]byte{6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, rmcpplus.ErrPayload},
		"MD5 authentication of v1.5":    {[]byte{2, 0, 0, 0, 0, 0, 0, 0, 0, 0}, rmcpplus.ErrFormat},
		"password authentication, v1.5": {[]byte{4, 0, 0, 0, 0, 0, 0, 0, 0, 0}, rmcpplus.ErrFormat},
	} {
		if _, err := rmcpplus.ParsePacket(tc.in); !errors.Is(err, tc.err) {
			t.Errorf("ParsePacket, %s: %v, want %v", name, err, tc.err)
		}
	}
}

func TestRefusals_endAfterConsoleID(t *testing.T) {
	t.Parallel()
	want := []byte{1, 0x11, 0, 0, 4, 3, 2, 1}
	for name, got := range map[string][]byte{
		"Open Session Response": rmcpplus.OpenSessionResponse{Tag: 1, Status: rmcpplus.StatusNoCipherSuiteMatch, ConsoleID: 0x01020304}.AppendTo(nil),
		"RAKP 2":                rmcpplus.RAKP2{Tag: 1, Status: rmcpplus.StatusNoCipherSuiteMatch, ConsoleID: 0x01020304}.AppendTo(nil),
		"RAKP 4":                rmcpplus.RAKP4{Tag: 1, Status: rmcpplus.StatusNoCipherSuiteMatch, ConsoleID: 0x01020304, Check: []byte{9}}.AppendTo(nil),
	} {
		if !bytes.Equal(got, want) {
			t.Errorf("%s = %x, want %x", name, got, want)
		}
	}
}

func TestSuite_AppendRecord(t *testing.T) {
	t.Parallel()
	got := rmcpplus.Suite3.AppendRecord(rmcpplus.Suite17.AppendRecord(nil))
	if want := []byte{0xC0, 17, 0x03, 0x44, 0x81, 0xC0, 3, 0x01, 0x41, 0x81}; !bytes.Equal(got, want) {
		t.Errorf("records = %x, want %x", got, want)
	}
}
