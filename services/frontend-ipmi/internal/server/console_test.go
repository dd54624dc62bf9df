// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// console is a remote console: the client's side of a session, with every step
// by itself so that tests can go wrong in each.
type console struct {
	tb       testing.TB
	exchange func(datagram []byte) []byte // nil for no answer
	suite    *rmcpplus.Suite
	user     string
	password string
	kg       string
	role     byte
	id       uint32

	handshake rmcpplus.Handshake
	keys      rmcpplus.Keys
	sequence  uint32 // Of packets in the session.
	request   byte   // Sequence number of requests.
}

func newConsole(tb testing.TB, exchange func([]byte) []byte) *console {
	return &console{
		tb: tb, exchange: exchange, suite: rmcpplus.Suite17, user: "admin", password: "password",
		role: 0x14, id: 0xA0A2A3A4,
	}
}

// onEndpoint has a console speak to an endpoint without a socket.
func onEndpoint(tb testing.TB, e *endpoint, source string) *console {
	tb.Helper()
	from := peer{address: netip.MustParseAddrPort(source)}
	return newConsole(tb, func(b []byte) []byte { return e.handle(b, from) })
}

// plain exchanges a packet outside of a session and returns the answer's
// payload, nil for no answer.
func (c *console) plain(t rmcpplus.PayloadType, payload []byte) []byte {
	c.tb.Helper()
	answer := c.exchange(rmcpplus.AppendPlain(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.FormatRMCPPlus, t, payload))
	if answer == nil {
		return nil
	}
	p, err := rmcpplus.ParsePacket(answer[rmcp.HeaderSize:])
	if err != nil {
		c.tb.Fatalf("answer %x: %v", answer, err)
	}
	return p.Payload
}

func (c *console) openRequest() rmcpplus.OpenSessionRequest {
	return rmcpplus.OpenSessionRequest{
		ConsoleID:       c.id,
		Authentication:  rmcpplus.Algorithm{Number: c.suite.Authentication},
		Integrity:       rmcpplus.Algorithm{Number: c.suite.Integrity},
		Confidentiality: rmcpplus.Algorithm{Number: c.suite.Confidentiality},
	}
}

// open sends an Open Session Request and returns its status.
func (c *console) open() rmcpplus.Status {
	c.tb.Helper()
	b := c.plain(rmcpplus.PayloadOpenSessionRequest, c.openRequest().AppendTo(nil))
	if b == nil {
		c.tb.Fatal("no answer to Open Session Request")
	}
	if status := rmcpplus.Status(b[1]); status != rmcpplus.StatusOK {
		return status
	}
	c.handshake = rmcpplus.Handshake{
		ConsoleID: c.id, BMCID: binary.LittleEndian.Uint32(b[8:]), ConsoleRandom: [16]byte{1, 2, 3}, Role: c.role, Username: c.user,
	}
	return rmcpplus.StatusOK
}

// rakp1 sends RAKP message 1 and returns the answer.
func (c *console) rakp1() []byte {
	c.tb.Helper()
	b := c.plain(rmcpplus.PayloadRAKP1, rmcpplus.RAKP1{
		BMCID: c.handshake.BMCID, ConsoleRandom: c.handshake.ConsoleRandom, Role: c.role, Username: c.user,
	}.AppendTo(nil))
	if b != nil && b[1] == 0 {
		copy(c.handshake.BMCRandom[:], b[8:])
		copy(c.handshake.GUID[:], b[24:])
	}
	return b
}

// challengeIsRight tells whether RAKP message 2 proves the password.
func (c *console) challengeIsRight(rakp2 []byte) bool {
	return rmcpplus.Equal(rakp2[40:], c.suite.RAKP2Code([]byte(c.password), &c.handshake))
}

// rakp3 sends RAKP message 3 and returns the answer.
func (c *console) rakp3() []byte {
	c.tb.Helper()
	return c.plain(rmcpplus.PayloadRAKP3, rmcpplus.RAKP3{
		BMCID: c.handshake.BMCID, Code: c.suite.RAKP3Code([]byte(c.password), &c.handshake),
	}.AppendTo(nil))
}

// derive computes the keys, as after RAKP message 4.
func (c *console) derive() {
	key := c.kg
	if key == "" {
		key = c.password
	}
	c.keys = c.suite.Keys(c.suite.SessionKey([]byte(key), &c.handshake))
	c.sequence, c.request = 0, 0
}

// login opens a session and returns the status that the handshake ended with.
func (c *console) login() rmcpplus.Status {
	c.tb.Helper()
	if status := c.open(); status != rmcpplus.StatusOK {
		return status
	}
	b := c.rakp1()
	if b == nil {
		c.tb.Fatal("no answer to RAKP message 1")
	}
	if b[1] != 0 {
		return rmcpplus.Status(b[1])
	}
	b = c.rakp3()
	if b == nil {
		c.tb.Fatal("no answer to RAKP message 3")
	}
	if b[1] != 0 {
		return rmcpplus.Status(b[1])
	}
	c.derive()
	return rmcpplus.StatusOK
}

// mustLogin opens a session and raises its privilege.
func (c *console) mustLogin() {
	c.tb.Helper()
	if status := c.login(); status != rmcpplus.StatusOK {
		c.tb.Fatalf("login ends with status %#x", byte(status))
	}
	if code, _, ok := c.command(ipmi.NetFnApp, 0x3B, c.role&0x0F); !ok || code != ipmi.OK {
		c.tb.Fatalf("Set Session Privilege Level: %v, %v", code, ok)
	}
}

// packet makes the next request's packet.
func (c *console) packet(netFn ipmi.NetFn, number byte, data ...byte) []byte {
	c.request = (c.request + 1) & 0x3F
	return c.again(netFn, number, data...)
}

// again makes a packet that sends the latest request again.
func (c *console) again(netFn ipmi.NetFn, number byte, data ...byte) []byte {
	c.sequence++
	m := ipmi.Message{ToAddress: ipmi.AddressBMC, FromAddress: ipmi.AddressConsole, NetFn: netFn, Sequence: c.request, Command: number, Data: data}
	return c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadIPMI, c.handshake.BMCID, c.sequence, m.AppendTo(nil))
}

// read returns completion code and data of an answer in the session.
func (c *console) read(answer []byte) (ipmi.CompletionCode, []byte) {
	c.tb.Helper()
	p, err := rmcpplus.ParsePacket(answer[rmcp.HeaderSize:])
	if err != nil {
		c.tb.Fatalf("answer %x: %v", answer, err)
	}
	payload, err := c.keys.Open(p)
	if err != nil {
		c.tb.Fatalf("answer %x: %v", answer, err)
	}
	m, err := ipmi.ParseMessage(payload)
	if err != nil || p.SessionID != c.id || m.IsRequest() || len(m.Data) == 0 {
		c.tb.Fatalf("answer in session %x: %+v, %v", p.SessionID, m, err)
	}
	return ipmi.CompletionCode(m.Data[0]), m.Data[1:]
}

// command sends a request; false when nothing answers.
func (c *console) command(netFn ipmi.NetFn, number byte, data ...byte) (ipmi.CompletionCode, []byte, bool) {
	c.tb.Helper()
	answer := c.exchange(c.packet(netFn, number, data...))
	if answer == nil {
		return 0, nil, false
	}
	code, answerData := c.read(answer)
	return code, answerData, true
}
