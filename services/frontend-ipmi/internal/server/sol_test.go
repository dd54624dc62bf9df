// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

// fakeGuest is the serial console of every machine. It says what is put into
// says, and speaks at once when it is opened if it is chatty.
type fakeGuest struct {
	chatty bool
	mu     sync.Mutex
	typed  []byte
	open   int
	last   *guestStream
}

type guestStream struct {
	guest *fakeGuest
	ctx   context.Context
	says  chan backend.ConsoleEvent
}

func (g *fakeGuest) Connect(ctx context.Context, _ *referencev1.BMCReference, _ bool) (backend.ConsoleStream, error) {
	s := &guestStream{g, ctx, make(chan backend.ConsoleEvent, 1000)}
	g.mu.Lock()
	g.open++
	g.last = s
	g.mu.Unlock()
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open--
	})
	if g.chatty {
		s.says <- backend.ConsoleEvent{Output: []byte("hello")}
	}
	return s, nil
}

func (g *fakeGuest) say(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last.says <- backend.ConsoleEvent{Output: []byte(text)}
}

func (g *fakeGuest) heard() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return string(g.typed)
}

func (g *fakeGuest) watchers() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

func (s *guestStream) Connected() bool { return true }

func (s *guestStream) Receive() (backend.ConsoleEvent, error) {
	select {
	case e := <-s.says:
		return e, nil
	case <-s.ctx.Done():
		return backend.ConsoleEvent{}, io.EOF
	}
}

func (s *guestStream) Send(input []byte) error {
	s.guest.mu.Lock()
	defer s.guest.mu.Unlock()
	s.guest.typed = append(s.guest.typed, input...)
	return nil
}

func (s *guestStream) Break() error { return nil }

// solConsole is a console on an endpoint whose SOL packets are set apart.
type solConsole struct {
	*console
	conn     *memoryConn
	sequence byte
	sol      []sol.Packet
}

// onSOL runs a test with an endpoint that has a serial console.
func onSOL(t *testing.T, guest *fakeGuest, test func(t *testing.T, e *endpoint, login func(source string) *solConsole)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, conn := newTestEndpoint(t, &fakeBackend{}, func(c *Config) { c.Console = guest })
		test(t, e, func(source string) *solConsole {
			c := &solConsole{console: onEndpoint(t, e, source), conn: conn}
			c.mustLogin()
			return c
		})
	})
}

// take reads a datagram: a command's answer, or a SOL packet that it keeps.
func (c *solConsole) take(b []byte) (answer []byte) {
	c.tb.Helper()
	p, err := rmcpplus.ParsePacket(b[rmcp.HeaderSize:])
	if err != nil {
		c.tb.Fatal(err)
	}
	if p.Type != rmcpplus.PayloadSOL {
		return b
	}
	if !p.Encrypted || !p.Authenticated {
		c.tb.Error("a SOL packet is not encrypted and authenticated")
	}
	payload, err := c.keys.Open(p)
	if err != nil {
		c.tb.Fatal(err)
	}
	out, err := sol.ParsePacket(payload)
	if err != nil {
		c.tb.Fatal(err)
	}
	out.Characters = bytes.Clone(out.Characters)
	c.sol = append(c.sol, out)
	return nil
}

// collect takes what was sent so far and returns the answer in it.
func (c *solConsole) collect() (answer []byte) {
	c.tb.Helper()
	synctest.Wait()
	for {
		select {
		case b := <-c.conn.sent:
			if a := c.take(b); a != nil {
				answer = a
			}
		default:
			return answer
		}
	}
}

// do carries out a command.
func (c *solConsole) do(netFn ipmi.NetFn, number byte, data ...byte) (ipmi.CompletionCode, []byte) {
	c.tb.Helper()
	answer := c.exchange(c.packet(netFn, number, data...))
	if answer == nil {
		answer = c.collect()
	}
	if answer == nil {
		c.tb.Fatalf("no answer to %02x/%02x", netFn, number)
	}
	return c.read(answer)
}

func (c *solConsole) activate(instance byte) ipmi.CompletionCode {
	c.tb.Helper()
	code, _ := c.do(ipmi.NetFnApp, 0x48, 1, instance, 0xC6, 0, 0, 0)
	return code
}

// send sends a SOL packet and keeps what it is answered with.
func (c *solConsole) send(p sol.Packet) {
	c.tb.Helper()
	c.console.sequence++
	b := c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadSOL, c.handshake.BMCID, c.console.sequence, p.AppendTo(nil))
	if answer := c.exchange(b); answer != nil {
		c.take(answer)
	}
	c.collect()
}

func (c *solConsole) types(text string) {
	c.tb.Helper()
	c.sequence = c.sequence%15 + 1
	c.send(sol.Packet{Sequence: c.sequence, Characters: []byte(text)})
}

// packets returns the SOL packets that came since.
func (c *solConsole) packets() []sol.Packet {
	c.tb.Helper()
	c.collect()
	p := c.sol
	c.sol = nil
	return p
}

func TestSOL_activation(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{chatty: true}
	onSOL(t, guest, func(t *testing.T, _ *endpoint, login func(string) *solConsole) {
		c := login(source)
		code, data := c.do(ipmi.NetFnApp, 0x48, 1, 1, 0xC6, 0, 0, 0)
		if want := []byte{0, 0, 0, 0, 255, 0, 255, 0, 0x6F, 0x02, 0xFF, 0xFF}; code != ipmi.OK || !bytes.Equal(data, want) {
			t.Errorf("Activate Payload = %v %x, want %x", code, data, want)
		}
		if p := c.packets(); len(p) > 0 {
			t.Errorf("before the console had time to take the answer comes %+v", p)
		}
		// Sent again, as when the answer was lost: not refused.
		if code, _, _ := c.command(ipmi.NetFnApp, 0x01); code != ipmi.OK {
			t.Error("the session is gone")
		}
		time.Sleep(110 * time.Millisecond)
		p := c.packets()
		if len(p) != 1 || string(p[0].Characters) != "hello" || p[0].Sequence != 1 {
			t.Fatalf("what the guest said comes as %+v", p)
		}
		c.send(sol.Packet{Ack: 1, Accepted: 5})
		c.types("ls\r")
		if p := c.packets(); len(p) != 1 || p[0].Ack != 1 || p[0].Accepted != 3 || guest.heard() != "ls\r" {
			t.Errorf("typing is answered with %+v, the guest gets %q", p, guest.heard())
		}
		id := c.handshake.BMCID
		if code, data := c.do(ipmi.NetFnApp, 0x4B, 1, 1); code != ipmi.OK || len(data) != 12 || binary.LittleEndian.Uint32(data) != id || data[4] != 1 {
			t.Errorf("Get Payload Instance Info = %v %x", code, data)
		}
		// Another one's, and another instance of the same session.
		other := login("192.0.2.9:1")
		for name, tc := range map[string]struct{ got, want ipmi.CompletionCode }{
			"instance that another session has": {other.activate(1), 0x80},
			"second instance of one session":    {c.activate(2), 0x82},
			"instance 0":                        {other.activate(0), 0xCC},
			"instance 9":                        {other.activate(9), 0xCC},
			"instance to watch":                 {other.activate(3), 0x00},
		} {
			if tc.got != tc.want {
				t.Errorf("%s: %v, want %v", name, tc.got, tc.want)
			}
		}
		if code, data := c.do(ipmi.NetFnApp, 0x4A, 1); code != ipmi.OK || !bytes.Equal(data, []byte{8, 0b101, 0}) {
			t.Errorf("Get Payload Activation Status = %v %x", code, data)
		}
		// A session that ends gives its instance back.
		other.do(ipmi.NetFnApp, 0x3C, byte(other.handshake.BMCID), byte(other.handshake.BMCID>>8), byte(other.handshake.BMCID>>16), byte(other.handshake.BMCID>>24))
		synctest.Wait()
		if guest.watchers() != 1 {
			t.Errorf("%d watch after a session closed", guest.watchers())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if guest.watchers() != 0 {
			t.Errorf("%d watch after all sessions timed out", guest.watchers())
		}
	})
}

func TestSOL_keepsSessionAlive(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	onSOL(t, guest, func(t *testing.T, _ *endpoint, login func(string) *solConsole) {
		c := login(source)
		c.activate(1)
		for range 20 { // `usesolkeepalive` of ipmitool: an empty packet now and then.
			time.Sleep(30 * time.Second)
			c.types("")
			if p := c.packets(); len(p) != 1 || p[0].Ack != c.sequence {
				t.Fatalf("a keepalive is answered with %+v", p)
			}
		}
	})
}

func TestSOL_resentActivationIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	onSOL(t, guest, func(t *testing.T, _ *endpoint, login func(string) *solConsole) {
		c := login(source)
		if code := c.activate(1); code != ipmi.OK {
			t.Fatal(code)
		}
		if code, _ := c.read(c.exchange(c.again(ipmi.NetFnApp, 0x48, 1, 1, 0xC6, 0, 0, 0))); code != ipmi.OK {
			t.Errorf("the activation, sent again: %v", code)
		}
		if code, _ := c.do(ipmi.NetFnApp, 0x49, 1, 1, 0, 0, 0, 0); code != ipmi.OK {
			t.Errorf("deactivation: %v", code)
		}
		if code, _ := c.read(c.exchange(c.again(ipmi.NetFnApp, 0x49, 1, 1, 0, 0, 0, 0))); code != ipmi.OK {
			t.Errorf("the deactivation, sent again: %v", code)
		}
		if code, _ := c.do(ipmi.NetFnApp, 0x49, 1, 1, 0, 0, 0, 0); code != ipmi.PayloadAlreadyDeactivated {
			t.Errorf("a new deactivation: %v", code)
		}
	})
}

func TestSOL_taken(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	onSOL(t, guest, func(t *testing.T, e *endpoint, login func(string) *solConsole) {
		c := login(source)
		c.activate(1)
		c.types("a")
		c.packets()
		thief := login("192.0.2.9:1")
		thief.exchange(thief.packet(ipmi.NetFnApp, 0x49, 1, 1, 0, 0, 0, 0))
		synctest.Wait()
		farewell := c.take(<-c.conn.sent)
		if len(c.sol) != 1 || c.sol[0].Flags != sol.NACK|sol.Deactivating || c.sol[0].Ack != 1 || farewell != nil {
			t.Errorf("the one who had it is told %+v", c.sol)
		}
		<-c.conn.sent // The thief's answer.
		c.sol = nil
		c.types("b")
		if p := c.packets(); len(p) > 0 || guest.heard() != "a" {
			t.Errorf("typing goes on: %+v, %q", p, guest.heard())
		}
		// New credentials end the session, which is told.
		if code := thief.activate(1); code != ipmi.OK {
			t.Fatal(code)
		}
		in := registryBMC("vm-a", 623)
		in.Accounts[0].Password = "changed"
		changed, err := parseBMC(in)
		if err != nil {
			t.Fatal(err)
		}
		keys := thief.keys
		e.update(changed)
		thief.keys = keys
		if p := thief.packets(); len(p) != 1 || p[0].Flags != sol.NACK|sol.Deactivating {
			t.Errorf("at the end of the session: %+v", p)
		}
		synctest.Wait()
		if guest.watchers() != 0 {
			t.Errorf("%d watch", guest.watchers())
		}
	})
}

func TestSOL_commandsRefuse(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	onSOL(t, guest, func(t *testing.T, _ *endpoint, login func(string) *solConsole) {
		c := login(source)
		for name, tc := range map[string]struct {
			netFn  ipmi.NetFn
			number byte
			data   []byte
			want   ipmi.CompletionCode
			answer []byte
		}{
			"activate without encryption":          {6, 0x48, []byte{1, 1, 0x46, 0, 0, 0}, 0x84, nil},
			"activate without authentication":      {6, 0x48, []byte{1, 1, 0x86, 0, 0, 0}, 0xCC, nil},
			"activate IPMI messages":               {6, 0x48, []byte{0, 1, 0xC6, 0, 0, 0}, 0xCC, nil},
			"activate, too short":                  {6, 0x48, []byte{1, 1, 0xC6, 0, 0}, 0xC7, nil},
			"deactivate what is not active":        {6, 0x49, []byte{1, 1, 0, 0, 0, 0}, 0x80, nil},
			"deactivate instance 0":                {6, 0x49, []byte{1, 0, 0, 0, 0, 0}, 0xCC, nil},
			"status of an OEM payload":             {6, 0x4A, []byte{0x20}, 0xCC, nil},
			"status":                               {6, 0x4A, []byte{1}, 0x00, []byte{8, 0, 0}},
			"instance info of nobody":              {6, 0x4B, []byte{1, 1}, 0x00, []byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}},
			"instance info of IPMI messages":       {6, 0x4B, []byte{0, 1}, 0xCC, nil},
			"payload access of an administrator":   {6, 0x4D, []byte{0x0E, 2}, 0x00, []byte{2, 0, 0, 0}},
			"payload access of a reader":           {6, 0x4D, []byte{0x0E, 4}, 0x00, []byte{0, 0, 0, 0}},
			"payload access of the null user":      {6, 0x4D, []byte{0x0E, 1}, 0x00, []byte{0, 0, 0, 0}},
			"payload access of nobody":             {6, 0x4D, []byte{0x0E, 40}, 0xCC, nil},
			"payload access of another channel":    {6, 0x4D, []byte{3, 2}, 0xCC, nil},
			"let an operator use SOL":              {6, 0x4C, []byte{0x0E, 3, 2, 0, 0, 0}, 0x00, nil},
			"let a reader use SOL":                 {6, 0x4C, []byte{0x0E, 4, 2, 0, 0, 0}, 0xD5, nil},
			"let an operator not use SOL":          {6, 0x4C, []byte{0x0E, 0x43, 2, 0, 0, 0}, 0xD5, nil},
			"let a reader not use SOL":             {6, 0x4C, []byte{0x0E, 0x44, 2, 0, 0, 0}, 0x00, nil},
			"an unknown payload access operation":  {6, 0x4C, []byte{0x0E, 0x82, 2, 0, 0, 0}, 0xCC, nil},
			"payload support":                      {6, 0x4E, []byte{0x0E}, 0x00, []byte{3, 0, 0x3F, 0, 0, 0, 0, 0}},
			"payload support of another channel":   {6, 0x4E, []byte{2}, 0xCC, nil},
			"version of SOL":                       {6, 0x4F, []byte{1, 1}, 0x00, []byte{0x10}},
			"version of RAKP message 4":            {6, 0x4F, []byte{1, 0x15}, 0x00, []byte{0x10}},
			"version of an OEM payload":            {6, 0x4F, []byte{1, 0x20}, 0x80, nil},
			"suspend encryption, not active":       {6, 0x55, []byte{1, 1, 0}, 0x83, nil},
			"suspend encryption of IPMI messages":  {6, 0x55, []byte{0, 1, 0}, 0x80, nil},
			"get SOL parameter 4":                  {0x0C, 0x22, []byte{0x0E, 4, 0, 0}, 0x00, []byte{0x11, 7, 25}},
			"get SOL parameter 8":                  {0x0C, 0x22, []byte{0x01, 8, 0, 0}, 0x00, []byte{0x11, 0x6F, 0x02}},
			"get the revision alone":               {0x0C, 0x22, []byte{0x8E, 4, 0, 0}, 0x00, []byte{0x11}},
			"get SOL parameter 9":                  {0x0C, 0x22, []byte{0x0E, 9, 0, 0}, 0x80, nil},
			"get a SOL parameter of channel 2":     {0x0C, 0x22, []byte{2, 4, 0, 0}, 0xCC, nil},
			"set SOL parameter 8":                  {0x0C, 0x21, []byte{0x0E, 8, 1, 2}, 0x82, nil},
			"set SOL parameter 1 of channel 2":     {0x0C, 0x21, []byte{2, 1, 0}, 0xCC, nil},
			"set SOL parameter 2 to no encryption": {0x0C, 0x21, []byte{0x0E, 2, 0x43}, 0xCC, nil},
		} {
			code, data := c.do(tc.netFn, tc.number, tc.data...)
			if code != tc.want || !bytes.Equal(data, tc.answer) {
				t.Errorf("%s: %v %x, want %v %x", name, code, data, tc.want, tc.answer)
			}
		}
		c.activate(1)
		for operation, want := range []ipmi.CompletionCode{0x81, 0x00, 0x80} {
			if code, _ := c.do(ipmi.NetFnApp, 0x55, 1, 1, byte(operation)); code != want {
				t.Errorf("encryption operation %d: %v, want %v", operation, code, want)
			}
		}
	})
}

// Nobody's or malformed SOL packets do nothing.
func TestSOL_packetsWithoutInstance(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	onSOL(t, guest, func(t *testing.T, _ *endpoint, login func(string) *solConsole) {
		c := login(source)
		c.types("x")
		if p := c.packets(); len(p) > 0 || guest.heard() != "" {
			t.Errorf("before the activation: %+v, %q", p, guest.heard())
		}
		c.activate(1)
		c.console.sequence++
		if answer := c.exchange(c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadSOL, c.handshake.BMCID, c.console.sequence, []byte{1, 0, 0})); answer != nil {
			t.Errorf("three bytes are answered with %x", answer)
		}
	})
}

// Over real sockets, with datagrams that get lost, come twice and overtake each
// other on the way: everything arrives once and in order, both ways.
func TestSOL_badNetwork(t *testing.T) {
	t.Parallel()
	guest := &fakeGuest{}
	s := newServer(t, &fakeBackend{}, func(c *Config) { c.Console = guest })
	conn, err := net.Dial("udp", applyBMC(t, s, "vm-a"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	buffer := make([]byte, 1024)
	c := newConsole(t, func(b []byte) []byte {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := conn.Read(buffer)
		if err != nil {
			return nil
		}
		return buffer[:n]
	})
	c.mustLogin()
	if code, _, ok := c.command(ipmi.NetFnTransport, 0x21, 0x0E, 4, 7, 3); !ok || code != ipmi.OK {
		t.Fatalf("set SOL retry: %v, %v", code, ok)
	}
	if code, _, ok := c.command(ipmi.NetFnApp, 0x48, 1, 1, 0xC6, 0, 0, 0); !ok || code != ipmi.OK {
		t.Fatalf("activate: %v, %v", code, ok)
	}
	random := rand.New(rand.NewPCG(7, 8))
	var late []byte
	send := func(p sol.Packet) {
		c.sequence++
		b := c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadSOL, c.handshake.BMCID, c.sequence, p.AppendTo(nil))
		switch random.IntN(8) {
		case 0: // Lost.
		case 1:
			_, _ = conn.Write(b)
			_, _ = conn.Write(b)
		case 2: // Overtaken by the next.
			late = b
		default:
			_, _ = conn.Write(b)
			if late != nil {
				_, _ = conn.Write(late)
				late = nil
			}
		}
	}
	var typing, said, shown []byte
	for i := range 150 {
		typing = fmt.Appendf(typing, "command %d\r", i)
		line := fmt.Sprintf("what the guest says, line %d\r\n", i)
		said = append(said, line...)
		guest.say(line)
	}
	want := string(typing)
	var latest uint32
	var sequence, last byte
	var sent []byte
	var sentAt time.Time
	for deadline := time.Now().Add(30 * time.Second); len(typing) > 0 || len(shown) < len(said); {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s %d characters are not typed and %d of %d are shown", len(typing), len(shown), len(said))
		}
		if sent == nil && len(typing) > 0 {
			sequence = sequence%15 + 1
			sent, sentAt = typing[:min(len(typing), 40)], time.Now()
			send(sol.Packet{Sequence: sequence, Characters: sent})
		} else if sent != nil && time.Since(sentAt) > 30*time.Millisecond {
			sentAt = time.Now()
			send(sol.Packet{Sequence: sequence, Characters: sent})
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		n, err := conn.Read(buffer)
		if err != nil || random.IntN(8) == 0 { // Lost on the way here.
			continue
		}
		packet, err := rmcpplus.ParsePacket(buffer[rmcp.HeaderSize:n])
		if err != nil {
			t.Fatal(err)
		}
		if packet.Sequence <= latest || packet.Type != rmcpplus.PayloadSOL {
			continue
		}
		latest = packet.Sequence
		payload, err := c.keys.Open(packet)
		if err != nil {
			t.Fatal(err)
		}
		p, err := sol.ParsePacket(payload)
		if err != nil {
			t.Fatal(err)
		}
		if sent != nil && p.Ack == sequence {
			typing, sent = typing[int(p.Accepted):], nil
		}
		if p.Sequence != 0 {
			if p.Sequence != last {
				shown, last = append(shown, p.Characters...), p.Sequence
			}
			send(sol.Packet{Ack: p.Sequence, Accepted: byte(len(p.Characters))})
		}
	}
	for deadline := time.Now().Add(5 * time.Second); guest.heard() != want && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if guest.heard() != want {
		t.Errorf("the guest gets %d characters of %d, or others", len(guest.heard()), len(want))
	}
	if !bytes.Equal(shown, said) {
		t.Errorf("the console shows %d characters of %d, or others", len(shown), len(said))
	}
}

// FuzzSOL sends any SOL payloads to an active instance.
func FuzzSOL(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 'a'}, []byte{0, 1, 5, 0})
	f.Add([]byte{2, 1, 0, 0x40}, []byte{2, 0, 0, 0x13})
	guest := &fakeGuest{chatty: true}
	e, conn := newTestEndpoint(f, &fakeBackend{}, func(c *Config) { c.Console = guest })
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first) > 300 || len(second) > 300 {
			return
		}
		c := onEndpoint(t, e, "192.0.2.1:1")
		c.mustLogin()
		if answer := c.exchange(c.packet(ipmi.NetFnApp, 0x48, 1, 1, 0xC6, 0, 0, 0)); answer != nil {
			t.Fatalf("the activation is answered with %x", answer)
		}
		<-conn.sent
		for _, payload := range [][]byte{first, second, first} {
			c.sequence++
			b := c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadSOL, c.handshake.BMCID, c.sequence, payload)
			if answer := c.exchange(b); len(answer) > 512 {
				t.Errorf("a SOL packet is answered with %d bytes", len(answer))
			}
		}
		id := c.handshake.BMCID
		if code, _, ok := c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24)); !ok || code != ipmi.OK {
			t.Fatalf("Close Session: %v, %v", code, ok)
		}
		for len(conn.sent) > 0 {
			<-conn.sent
		}
		checkAlive(t, e)
	})
}
