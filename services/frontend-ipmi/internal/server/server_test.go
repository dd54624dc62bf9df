// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcp"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// fakeBackend is the machine behind every BMC. Calls block while hold is not
// nil and open.
type fakeBackend struct {
	mu      sync.Mutex
	hold    chan struct{}
	actions []powerv1.PowerAction
	reads   int
	uuid    string
	panics  bool
}

func (f *fakeBackend) wait(ctx context.Context) error {
	f.mu.Lock()
	hold, panics := f.hold, f.panics
	f.mu.Unlock()
	if panics {
		panic("a defect")
	}
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeBackend) setHold(hold chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
}

func (f *fakeBackend) did() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.actions)
}

type fakePower struct{ *fakeBackend }

func (f fakePower) Status(ctx context.Context, _ *referencev1.BMCReference) (*powerv1.PowerStatus, error) {
	f.mu.Lock()
	f.reads++
	f.mu.Unlock()
	return &powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON}, f.wait(ctx)
}

func (f fakePower) Transition(ctx context.Context, _ *referencev1.BMCReference, action powerv1.PowerAction) (string, error) {
	f.mu.Lock()
	f.actions = append(f.actions, action)
	f.mu.Unlock()
	return "operation", f.wait(ctx)
}

type fakeBoot struct{ *fakeBackend }

func (f fakeBoot) Status(ctx context.Context, _ *referencev1.BMCReference) (*bootv1.BootStatus, error) {
	return &bootv1.BootStatus{}, f.wait(ctx)
}

func (f fakeBoot) SetOverride(ctx context.Context, _ *referencev1.BMCReference, _ *bootv1.BootOverride) error {
	return f.wait(ctx)
}

type fakeInventory struct{ *fakeBackend }

func (f fakeInventory) Get(ctx context.Context, bmc *referencev1.BMCReference) (*inventoryv1.Inventory, error) {
	uuid, err := f.FirmwareUUID(ctx, bmc)
	return &inventoryv1.Inventory{FirmwareUuid: uuid}, err
}

func (f fakeInventory) FirmwareUUID(context.Context, *referencev1.BMCReference) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.uuid, nil
}

// memoryConn keeps what was sent through it; nothing comes from it.
type memoryConn struct {
	sent chan []byte
	stop chan struct{}
	once sync.Once
}

func newMemoryConn() *memoryConn {
	return &memoryConn{sent: make(chan []byte, 1000), stop: make(chan struct{})}
}

func (c *memoryConn) read([]byte, []byte) (int, peer, error) {
	<-c.stop
	return 0, peer{}, net.ErrClosed
}

func (c *memoryConn) write(b []byte, _ peer) error {
	c.sent <- b
	return nil
}

func (c *memoryConn) stopReading() { c.once.Do(func() { close(c.stop) }) }
func (c *memoryConn) close()       { c.stopReading() }
func (c *memoryConn) port() uint16 { return 623 }

func registryBMC(name string, port uint32) *registryv1.BMC {
	both := []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH}
	return &registryv1.BMC{
		Bmc:  &referencev1.BMCReference{Namespace: "default", Name: name},
		Uuid: "11111111-2222-3333-4444-555555555555",
		Accounts: []*registryv1.Account{
			{Username: "admin", Password: "password", Role: registryv1.Role_ROLE_ADMINISTRATOR, Protocols: both},
			{Username: "operator", Password: "password2", Role: registryv1.Role_ROLE_OPERATOR, Protocols: both},
			{Username: "reader", Password: "password3", Role: registryv1.Role_ROLE_READ_ONLY, Protocols: both},
			{Username: "web", Password: "password4", Role: registryv1.Role_ROLE_ADMINISTRATOR, Protocols: both[1:]},
		},
		Ipmi: &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: port}},
	}
}

func newServer(tb testing.TB, f *fakeBackend, change func(*Config)) *Server {
	tb.Helper()
	cfg := Config{
		Listen: "127.0.0.1",
		Mux:    command.New(command.Config{Power: fakePower{f}, Boot: fakeBoot{f}, Firmware: command.Firmware{Major: 1}}),
		Log:    slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx)
	})
	return s
}

// newTestEndpoint is an endpoint without a socket.
func newTestEndpoint(tb testing.TB, f *fakeBackend, change func(*Config)) (*endpoint, *memoryConn) {
	tb.Helper()
	s := newServer(tb, f, change)
	b, err := parseBMC(registryBMC("vm-a", 623))
	if err != nil {
		tb.Fatal(err)
	}
	conn := newMemoryConn()
	e := newEndpoint(s, b, conn)
	s.endpoints["default/vm-a"] = e
	s.metrics.bmcs.Inc()
	return e, conn
}

const source = "192.0.2.1:4000"

func TestLogin(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(c *console)
		want   rmcpplus.Status
	}{
		"suite 17":                          {func(*console) {}, rmcpplus.StatusOK},
		"suite 3":                           {func(c *console) { c.suite = rmcpplus.Suite3 }, rmcpplus.StatusOK},
		"look-up by name and privilege":     {func(c *console) { c.role = 0x04 }, rmcpplus.StatusOK},
		"a lower role":                      {func(c *console) { c.role = 0x12 }, rmcpplus.StatusOK},
		"wrong password":                    {func(c *console) { c.password = "wrong" }, rmcpplus.StatusInvalidCheckValue},
		"unknown user":                      {func(c *console) { c.user = "nobody" }, rmcpplus.StatusInvalidCheckValue},
		"null user":                         {func(c *console) { c.user = "" }, rmcpplus.StatusInvalidCheckValue},
		"null user without password":        {func(c *console) { c.user, c.password = "", "" }, rmcpplus.StatusInvalidCheckValue},
		"user of Redfish alone":             {func(c *console) { c.user, c.password = "web", "password4" }, rmcpplus.StatusInvalidCheckValue},
		"suite 0":                           {func(c *console) { c.suite = &rmcpplus.Suite{} }, rmcpplus.StatusNoCipherSuiteMatch},
		"role 0":                            {func(c *console) { c.role = 0x10 }, rmcpplus.StatusInvalidRole},
		"a role that does not exist":        {func(c *console) { c.role = 0x1F }, rmcpplus.StatusInvalidRole},
		"the OEM role":                      {func(c *console) { c.role = 0x15 }, rmcpplus.StatusUnauthorizedRole},
		"console id 0":                      {func(c *console) { c.id = 0 }, rmcpplus.StatusIllegalParameter},
		"password with bytes after the key": {func(c *console) { c.password = "password\x00" }, rmcpplus.StatusOK}, // Zero padding is no difference.
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
			c := onEndpoint(t, e, source)
			tc.change(c)
			if got := c.login(); got != tc.want {
				t.Errorf("login ends with status %#x, want %#x", byte(got), byte(tc.want))
			}
		})
	}
}

// What a console that does not know a password sees must not tell whether the
// user exists: same status, same length, same GUID, and a code that is wrong.
func TestLogin_unknownUserLooksLikeWrongPassword(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	for _, suite := range []*rmcpplus.Suite{rmcpplus.Suite3, rmcpplus.Suite17} {
		answers := map[string][2][]byte{}
		for _, user := range []string{"admin", "nobody", "web", ""} {
			c := onEndpoint(t, e, source)
			c.suite, c.user, c.password = suite, user, "wrong"
			if status := c.open(); status != rmcpplus.StatusOK {
				t.Fatalf("open: %#x", byte(status))
			}
			rakp2 := c.rakp1()
			if c.challengeIsRight(rakp2) {
				t.Errorf("%q: challenge fits a wrong password", user)
			}
			answers[user] = [2][]byte{rakp2, c.rakp3()}
		}
		want := answers["admin"]
		for user, got := range answers {
			if len(got[0]) != len(want[0]) || !bytes.Equal(got[0][:8], want[0][:8]) || !bytes.Equal(got[0][24:40], want[0][24:40]) {
				t.Errorf("suite %d: RAKP 2 of %q is %x, of a real user %x", suite.ID, user, got[0], want[0])
			}
			if !bytes.Equal(got[1], want[1]) {
				t.Errorf("suite %d: RAKP 4 of %q is %x, of a real user %x", suite.ID, user, got[1], want[1])
			}
		}
	}
}

func TestOpenSession_grantsARealLevel(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	for asked, want := range map[byte]byte{0: 4, 2: 2, 3: 3, 4: 4} {
		r := c.openRequest()
		r.Privilege, r.Tag = asked, asked+7
		b := c.plain(rmcpplus.PayloadOpenSessionRequest, r.AppendTo(nil))
		if b[0] != asked+7 || b[1] != 0 || b[2] != want || !bytes.Equal(b[4:8], []byte{0xA4, 0xA3, 0xA2, 0xA0}) || len(b) != 36 {
			t.Errorf("privilege %d: answer %x, want level %d", asked, b, want)
		}
	}
	for asked, want := range map[byte]rmcpplus.Status{5: rmcpplus.StatusUnauthorizedRole, 6: rmcpplus.StatusInvalidRole} {
		r := c.openRequest()
		r.Privilege = asked
		if b := c.plain(rmcpplus.PayloadOpenSessionRequest, r.AppendTo(nil)); rmcpplus.Status(b[1]) != want {
			t.Errorf("privilege %d: answer %x, want status %#x", asked, b, byte(want))
		}
	}
	if b := c.plain(rmcpplus.PayloadOpenSessionRequest, c.openRequest().AppendTo(nil)[:20]); rmcpplus.Status(b[1]) != rmcpplus.StatusIllegalParameter {
		t.Errorf("a request cut off: answer %x", b)
	}
}

func TestRAKP1_refusals(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	status := func(m rmcpplus.RAKP1, name ...byte) rmcpplus.Status {
		b := m.AppendTo(nil)
		if name != nil {
			b = append(b[:27], name...)
		}
		return rmcpplus.Status(c.plain(rmcpplus.PayloadRAKP1, b)[1])
	}
	if got := status(rmcpplus.RAKP1{BMCID: 77, Role: 0x14}); got != rmcpplus.StatusInvalidSessionID {
		t.Errorf("no such session: %#x", byte(got))
	}
	c.open()
	if got := status(rmcpplus.RAKP1{BMCID: c.handshake.BMCID, Role: 0x14}, append([]byte{17}, "seventeen-bytes-x"...)...); got != rmcpplus.StatusInvalidNameLength {
		t.Errorf("name of 17 bytes: %#x", byte(got))
	}
	if got := status(rmcpplus.RAKP1{BMCID: c.handshake.BMCID, Role: 0x14}); got != rmcpplus.StatusInvalidSessionID {
		t.Errorf("a session whose login was refused: %#x", byte(got))
	}
	// From another address: no answer that only the console should get.
	c.open()
	other := onEndpoint(t, e, "198.51.100.1:4000")
	other.handshake = c.handshake
	if b := other.rakp1(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID || len(b) != 8 {
		t.Errorf("from another address: %x", b)
	}
	if b := other.rakp3(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID {
		t.Errorf("RAKP 3 from another address: %x", b)
	}
	if b := c.rakp3(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID {
		t.Errorf("RAKP 3 before RAKP 1: %x", b)
	}
	if b := c.plain(rmcpplus.PayloadRAKP1, make([]byte, 10)); b != nil {
		t.Errorf("a short RAKP 1 is answered: %x", b)
	}
	if b := c.plain(rmcpplus.PayloadRAKP3, make([]byte, 7)); b != nil {
		t.Errorf("a short RAKP 3 is answered: %x", b)
	}
	if b := c.plain(rmcpplus.PayloadRAKP2, make([]byte, 40)); b != nil {
		t.Errorf("RAKP 2 from a console is answered: %x", b)
	}
	r := c.openRequest()
	r.Privilege = 3
	b := c.plain(rmcpplus.PayloadOpenSessionRequest, r.AppendTo(nil))
	c.handshake.BMCID = uint32(b[8]) | uint32(b[9])<<8 | uint32(b[10])<<16 | uint32(b[11])<<24
	if b := c.rakp1(); rmcpplus.Status(b[1]) != rmcpplus.StatusUnauthorizedRole {
		t.Errorf("a role above the session's privilege: %x", b)
	}
}

func TestHandshake_repeatedMessages(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	c.open()
	id := c.handshake.BMCID
	if c.open(); c.handshake.BMCID != id {
		t.Error("a repeated Open Session Request opened another session")
	}
	first := c.rakp1()
	if again := c.rakp1(); !bytes.Equal(first, again) {
		t.Errorf("RAKP 2 changes when RAKP 1 is repeated:\n%x\n%x", first, again)
	}
	first = c.rakp3()
	if again := c.rakp3(); !bytes.Equal(first, again) {
		t.Errorf("RAKP 4 changes when RAKP 3 is repeated:\n%x\n%x", first, again)
	}
	c.derive()
	if code, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
		t.Fatal("the session does not work")
	}
	if b := c.rakp3(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID {
		t.Errorf("RAKP 3 once the session is in use: %x", b)
	}
}

func TestRAKP1_otherUserInOneLogin(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	c.open()
	c.rakp1()
	c.user = "operator"
	if b := c.rakp1(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID {
		t.Errorf("another user within one login: %x", b)
	}
}

func TestRAKP3_consoleGivesUp(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	c.open()
	c.rakp1()
	if b := c.plain(rmcpplus.PayloadRAKP3, rmcpplus.RAKP3{BMCID: c.handshake.BMCID, Status: rmcpplus.StatusInvalidCheckValue}.AppendTo(nil)); b != nil {
		t.Errorf("answered with %x", b)
	}
	if half, _ := e.table.Len(); half != 0 {
		t.Error("the half-open session is still there")
	}
}

func TestLogin_withKg(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	in := registryBMC("vm-a", 623)
	in.Ipmi.Kg = []byte("a key of its own")
	b, err := parseBMC(in)
	if err != nil {
		t.Fatal(err)
	}
	e.update(b)
	c := onEndpoint(t, e, source)
	c.kg = "a key of its own"
	c.mustLogin()
	wrong := onEndpoint(t, e, source)
	if status := wrong.login(); status != rmcpplus.StatusOK {
		t.Fatalf("the console has to find out by itself: status %#x", byte(status))
	}
	if _, _, ok := wrong.command(ipmi.NetFnApp, 0x01); ok {
		t.Error("a console without Kg can speak")
	}
}

func TestPrivilege_isCutToTheUsers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		user, password string
		role           byte
		admin, control ipmi.CompletionCode
	}{
		"administrator":                 {"admin", "password", 0x14, 0x00, 0x00},
		"administrator with a low role": {"admin", "password", 0x13, 0x81, 0xD4},
		"operator":                      {"operator", "password2", 0x14, 0x81, 0xD4},
		"reader":                        {"reader", "password3", 0x14, 0x81, 0xD4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
			c := onEndpoint(t, e, source)
			c.user, c.password, c.role = tc.user, tc.password, tc.role
			if status := c.login(); status != rmcpplus.StatusOK {
				t.Fatalf("status %#x", byte(status))
			}
			if code, _, _ := c.command(ipmi.NetFnApp, 0x02); code != ipmi.InsufficientPrivilege {
				t.Errorf("a session begins with more than USER: Cold Reset gives %v", code)
			}
			if code, _, _ := c.command(ipmi.NetFnApp, 0x3B, 4); code != tc.admin {
				t.Errorf("Set Session Privilege Level to ADMINISTRATOR: %v, want %v", code, tc.admin)
			}
			if code, _, _ := c.command(ipmi.NetFnApp, 0x02); code != tc.control {
				t.Errorf("Cold Reset: %v, want %v", code, tc.control)
			}
		})
	}
}

func TestInSession_whatIsNotAuthenticGetsNoAnswer(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	c.mustLogin()
	good := func() []byte { return c.packet(ipmi.NetFnApp, 0x01) }
	mangled := good()
	mangled[len(mangled)-1] ^= 1
	otherSession := good()
	otherSession[6] ^= 1
	first := good()
	replayed := bytes.Clone(first)
	if c.exchange(first) == nil {
		t.Fatal("a good packet is not answered")
	}
	plain := rmcpplus.AppendPlain(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.FormatRMCPPlus, rmcpplus.PayloadIPMI,
		ipmi.Message{ToAddress: ipmi.AddressBMC, NetFn: ipmi.NetFnApp, Command: 1}.AppendTo(nil))
	copy(plain[6:10], first[6:10])
	c.sequence += 100
	tooFar := good()
	c.sequence -= 101
	response := c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadIPMI, c.handshake.BMCID, c.sequence+1,
		ipmi.Message{NetFn: 7, Command: 1}.AppendTo(nil))
	sol := c.keys.AppendSealed(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.PayloadSOL, c.handshake.BMCID, c.sequence+2, []byte{1, 0, 0, 0})
	c.sequence += 2
	for name, b := range map[string][]byte{
		"a wrong code": mangled, "another session": otherSession, "the same packet again": replayed, "a packet without code": plain,
		"a sequence number far ahead": tooFar, "a response": response, "a payload type that is not served": sol,
	} {
		if answer := c.exchange(b); answer != nil {
			t.Errorf("%s is answered: %x", name, answer)
		}
	}
	if code, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
		t.Errorf("the session is broken after all that: %v, %v", code, ok)
	}
}

func TestCloseSession(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	c.mustLogin()
	id := c.handshake.BMCID
	if code, _, ok := c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24)); !ok || code != ipmi.OK {
		t.Fatalf("Close Session: %v, %v", code, ok)
	}
	if _, _, ok := c.command(ipmi.NetFnApp, 0x01); ok {
		t.Error("a closed session answers")
	}
}

func TestSessionless_bothFormats(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	c := onEndpoint(t, e, source)
	request := ipmi.Message{ToAddress: ipmi.AddressBMC, FromAddress: ipmi.AddressConsole, NetFn: ipmi.NetFnApp, Sequence: 5, Command: 0x38, Data: []byte{0x8E, 4}}
	for _, format := range []rmcpplus.Format{rmcpplus.FormatV15None, rmcpplus.FormatRMCPPlus} {
		datagram := rmcpplus.AppendPlain(rmcp.AppendHeader(nil, rmcp.ClassIPMI), format, rmcpplus.PayloadIPMI, request.AppendTo(nil))
		answer := c.exchange(datagram)
		if answer == nil {
			t.Fatalf("format %#x is not answered", byte(format))
		}
		p, err := rmcpplus.ParsePacket(answer[rmcp.HeaderSize:])
		if err != nil || p.Format != format || p.SessionID != 0 {
			t.Errorf("answer in format %#x: %+v, %v", byte(format), p, err)
		}
		m, err := ipmi.ParseMessage(p.Payload)
		if err != nil || m.NetFn != 7 || m.Sequence != 5 || m.Command != 0x38 || m.Data[0] != 0 {
			t.Errorf("answer %+v, %v", m, err)
		}
	}
	if answer := c.exchange([]byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x80, 9, 0, 0}); len(answer) != 28 || answer[9] != 9 {
		t.Errorf("pong = %x", answer)
	}
	request.Command = 0x02
	if b := c.plain(rmcpplus.PayloadIPMI, request.AppendTo(nil)); b[6] != byte(ipmi.InsufficientPrivilege) {
		t.Errorf("Cold Reset outside of a session: %x", b)
	}
	if b := c.plain(rmcpplus.PayloadIPMI, []byte{1, 2, 3}); b != nil {
		t.Errorf("no message is answered: %x", b)
	}
}

// No answer outside of a session is much longer than its request, counting the
// headers of IP and UDP: the frontend is no amplifier.
func TestSessionless_doesNotAmplify(t *testing.T) {
	t.Parallel()
	const headers = 28
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	worst := 0.0
	c := newConsole(t, func(b []byte) []byte {
		size := len(b)
		answer := e.handle(b, peer{address: netip.MustParseAddrPort(source)})
		worst = max(worst, float64(len(answer)+headers)/float64(size+headers))
		return answer
	})
	c.exchange([]byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x80, 9, 0, 0})
	for _, m := range []ipmi.Message{{Command: 0x38, Data: []byte{0x8E, 4}}, {Command: 0x54, Data: []byte{0x0E, 0, 0x80}}, {Command: 0x37}, {Command: 1}} {
		m.ToAddress, m.NetFn = ipmi.AddressBMC, ipmi.NetFnApp
		c.exchange(rmcpplus.AppendPlain(rmcp.AppendHeader(nil, rmcp.ClassIPMI), rmcpplus.FormatV15None, rmcpplus.PayloadIPMI, m.AppendTo(nil)))
	}
	c.login()
	if worst > 1.7 {
		t.Errorf("an answer is %.2f times as long as its request", worst)
	}
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	l := newLimiter(10)
	now := time.Now()
	allowed := 0
	for range 100 {
		if l.allow(now, netip.MustParseAddr("192.0.2.1")) {
			allowed++
		}
	}
	if allowed != 10 {
		t.Errorf("%d of a burst of 100 are allowed, want 10", allowed)
	}
	if !l.allow(now.Add(100*time.Millisecond), netip.MustParseAddr("192.0.2.1")) {
		t.Error("nothing is allowed after a tenth of a second")
	}
	e, _ := newTestEndpoint(t, &fakeBackend{}, func(c *Config) { c.SessionlessRate = 1 })
	ping := []byte{6, 0, 0xFF, 6, 0, 0, 0x11, 0xBE, 0x80, 9, 0, 0}
	from := peer{address: netip.MustParseAddrPort(source)}
	if e.handle(ping, from) == nil || e.handle(ping, from) != nil {
		t.Error("the limit does not hold for pings")
	}
}

func TestBackoff_afterWrongPasswords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		for _, user := range []string{"admin", "nobody"} {
			for i := range 6 {
				c := onEndpoint(t, e, source)
				c.user, c.password = user, "wrong"
				if status := c.login(); status != rmcpplus.StatusInvalidCheckValue {
					t.Errorf("%s, failure %d: status %#x", user, i+1, byte(status))
				}
			}
			c := onEndpoint(t, e, source)
			c.user = user
			if status := c.login(); status != rmcpplus.StatusInsufficientResources {
				t.Errorf("%s: status %#x after 6 failures, want a refusal for now", user, byte(status))
			}
		}
		if status := onEndpoint(t, e, "198.51.100.7:1").login(); status != rmcpplus.StatusOK {
			t.Errorf("from another source: status %#x", byte(status))
		}
		time.Sleep(time.Second)
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
			t.Errorf("after the pause: status %#x", byte(status))
		}
	})
}

// A console that finds the password wrong falls silent after RAKP message 2.
func TestBackoff_countsSilentConsoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		for range 6 {
			abandon(t, e)
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		if half, _ := e.table.Len(); half != 0 {
			t.Errorf("%d half-open sessions after 10 s", half)
		}
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusInsufficientResources {
			t.Errorf("status %#x, want a refusal for now", byte(status))
		}
		time.Sleep(time.Second)
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
			t.Errorf("after the pause: status %#x", byte(status))
		}
	})
}

// abandon begins a login and stops after RAKP message 2.
func abandon(tb testing.TB, e *endpoint) {
	tb.Helper()
	c := onEndpoint(tb, e, source)
	if status := c.open(); status != rmcpplus.StatusOK {
		tb.Fatalf("open: status %#x", byte(status))
	}
	c.rakp1()
}

// Whoever begins logins and drops them does not lock out the right password:
// not at once, not when they time out, not after.
func TestBackoff_abandonedHandshakesDoNotLockOut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handshakes  int
		loginsAfter []time.Duration
	}{
		"11, a login meanwhile":          {11, []time.Duration{0, 10200 * time.Millisecond, 11 * time.Second, 20 * time.Second}},
		"11, no login meanwhile":         {11, []time.Duration{10200 * time.Millisecond, 11 * time.Second}},
		"200, so that sessions must go":  {200, []time.Duration{0, 9 * time.Second, 10100 * time.Millisecond, 13 * time.Second}},
		"200, none until they timed out": {200, []time.Duration{12 * time.Second}},
		"200, first login as they do so": {200, []time.Duration{10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
				for range tc.handshakes {
					abandon(t, e)
					time.Sleep(5 * time.Millisecond)
				}
				began := time.Now()
				for _, after := range tc.loginsAfter {
					time.Sleep(after - time.Since(began))
					synctest.Wait()
					if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
						t.Errorf("login after %v: status %#x", after, byte(status))
					}
				}
			})
		})
	}
}

// A login that is proved voids the handshakes that began before it, however
// often that happens.
func TestBackoff_loginVoidsAbandonedHandshakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		for i := range 20 {
			abandon(t, e)
			if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
				t.Fatalf("login %d: status %#x", i+1, byte(status))
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
	})
}

// One bad try every 30 s keeps the right password out for seconds, not for ever.
func TestBackoff_isNotProlongedByFewTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		for i := range 20 {
			c := onEndpoint(t, e, source)
			c.password = "wrong"
			if status := c.login(); status != rmcpplus.StatusInvalidCheckValue {
				t.Errorf("bad try %d: status %#x", i+1, byte(status))
			}
			time.Sleep(4 * time.Second)
			if i >= 10 {
				if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
					t.Errorf("4 s after bad try %d: status %#x", i+1, byte(status))
				}
			}
			time.Sleep(26 * time.Second)
		}
	})
}

// A client with the right password does not give the one beside it that guesses
// more than about a try a second, and gets in itself.
func TestBackoff_guessingBesideAGoodClient(t *testing.T) {
	t.Parallel()
	for _, sideBySide := range []int{1, 30} {
		t.Run(fmt.Sprint(sideBySide), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
				var guesses, logins int
				for i := range 180 { // For 45 s.
					if i%5 == 2 { // Not in step with the pauses.
						c := onEndpoint(t, e, source)
						if c.login() == rmcpplus.StatusOK {
							c.derive()
							c.command(ipmi.NetFnApp, 0x3C, 0, 0, 0, 0)
							logins++
						}
					}
					var begun []*console
					for range sideBySide {
						c := onEndpoint(t, e, source)
						c.password = "wrong"
						if c.open() == rmcpplus.StatusOK && c.rakp1()[1] == 0 {
							begun = append(begun, c)
						}
					}
					for _, c := range begun {
						if rmcpplus.Status(c.rakp3()[1]) == rmcpplus.StatusInvalidCheckValue {
							guesses++
						}
					}
					time.Sleep(250 * time.Millisecond)
				}
				if guesses > 55 {
					t.Errorf("%d wrong passwords were tried in 45 s", guesses)
				}
				if logins == 0 {
					t.Error("the right password never got in")
				}
				t.Logf("%d guesses, %d of 36 logins", guesses, logins)
			})
		})
	}
}

func TestFlood_abandonedHandshakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		for i := range 200 {
			c := onEndpoint(t, e, fmt.Sprintf("192.0.2.1:%d", 5000+i))
			if status := c.open(); status != rmcpplus.StatusOK {
				t.Fatalf("open %d: status %#x", i, byte(status))
			}
		}
		if half, _ := e.table.Len(); half > 64 {
			t.Errorf("%d half-open sessions of one source", half)
		}
		for range 3 {
			if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
				t.Errorf("login after the flood: status %#x", byte(status))
			}
		}
		// And from many sources.
		for i := range 5000 {
			onEndpoint(t, e, fmt.Sprintf("10.%d.%d.1:1", i/250, i%250)).open()
		}
		if half, _ := e.table.Len(); half > 128 {
			t.Errorf("%d half-open sessions", half)
		}
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
			t.Errorf("login after the flood: status %#x", byte(status))
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if half, _ := e.table.Len(); half != 0 {
			t.Errorf("%d half-open sessions 11 s later", half)
		}
	})
}

func TestLimit_activeSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		var consoles []*console
		for i := range 64 {
			c := onEndpoint(t, e, fmt.Sprintf("192.0.2.1:%d", 5000+i))
			c.mustLogin()
			consoles = append(consoles, c)
		}
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusInsufficientResources {
			t.Errorf("session 65: status %#x", byte(status))
		}
		for _, c := range consoles {
			if _, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok {
				t.Fatal("a session does not answer")
			}
		}
		time.Sleep(59 * time.Second)
		if _, _, ok := consoles[0].command(ipmi.NetFnApp, 0x01); !ok {
			t.Error("a session that spoke 59 s ago is gone")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, active := e.table.Len(); active != 1 {
			t.Errorf("%d sessions are active, want the one that spoke", active)
		}
		if status := onEndpoint(t, e, source).login(); status != rmcpplus.StatusOK {
			t.Errorf("status %#x", byte(status))
		}
	})
}

func TestCommand_sentAgain_isCarriedOutOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		c := onEndpoint(t, e, source)
		c.mustLogin()
		hold := make(chan struct{})
		f.setHold(hold)
		c.exchange(c.packet(ipmi.NetFnChassis, 0x02, 0x03))
		for range 3 { // While it is carried out.
			if answer := c.exchange(c.again(ipmi.NetFnChassis, 0x02, 0x03)); answer != nil {
				t.Errorf("answered before it is done: %x", answer)
			}
		}
		close(hold)
		synctest.Wait()
		if code, _ := c.read(<-conn.sent); code != ipmi.OK {
			t.Errorf("answer %v", code)
		}
		for range 3 { // And after.
			answer := c.exchange(c.again(ipmi.NetFnChassis, 0x02, 0x03))
			if answer == nil {
				t.Fatal("no answer to a request that was sent again")
			}
			if code, _ := c.read(answer); code != ipmi.OK {
				t.Errorf("answer %v", code)
			}
		}
		synctest.Wait()
		if len(conn.sent) != 0 || f.did() != 1 {
			t.Errorf("%d more answers, %d resets, want none and one", len(conn.sent), f.did())
		}
		c.exchange(c.packet(ipmi.NetFnChassis, 0x02, 0x03))
		synctest.Wait()
		if f.did() != 2 {
			t.Error("a new request for the same action was taken for the old one")
		}
	})
}

// A service that does not answer holds up neither other sessions nor what needs
// no service in the same one, and the client hears of it in time.
func TestCommand_slowBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		slow, other := onEndpoint(t, e, source), onEndpoint(t, e, "192.0.2.2:1")
		slow.mustLogin()
		other.mustLogin()
		f.setHold(make(chan struct{}))
		start := time.Now()
		slow.exchange(slow.packet(ipmi.NetFnChassis, 0x01))
		for name, c := range map[string]*console{"the same session": slow, "another session": other} {
			if code, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
				t.Errorf("keepalive in %s: %v, %v", name, code, ok)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("keepalives took %v", took)
		}
		if code, _ := slow.read(<-conn.sent); code != ipmi.Timeout {
			t.Errorf("status gives %v, want a time-out", code)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("answer after %v", took)
		}
		slow.exchange(slow.packet(ipmi.NetFnChassis, 0x02, 0x01))
		if code, _ := slow.read(<-conn.sent); code != ipmi.Timeout {
			t.Errorf("power on gives %v, want a time-out", code)
		}
	})
}

func TestCommand_order(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		c := onEndpoint(t, e, source)
		c.mustLogin()
		hold := make(chan struct{})
		f.setHold(hold)
		for _, control := range []byte{0, 1, 2, 3, 5} {
			c.exchange(c.packet(ipmi.NetFnChassis, 0x02, control))
		}
		for range 3 {
			c.exchange(c.packet(ipmi.NetFnChassis, 0x01))
		}
		answer := c.exchange(c.packet(ipmi.NetFnChassis, 0x01))
		if answer == nil {
			t.Fatal("a ninth command at once is not answered")
		}
		if code, _ := c.read(answer); code != ipmi.NodeBusy {
			t.Errorf("a ninth command at once: %v, want busy", code)
		}
		close(hold)
		synctest.Wait()
		if len(conn.sent) != 8 {
			t.Errorf("%d answers, want 8", len(conn.sent))
		}
		want := []powerv1.PowerAction{
			powerv1.PowerAction_POWER_ACTION_FORCE_OFF, powerv1.PowerAction_POWER_ACTION_ON, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE,
			powerv1.PowerAction_POWER_ACTION_FORCE_RESTART, powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN,
		}
		for i, action := range f.actions {
			if action != want[i] {
				t.Errorf("action %d is %v, want %v", i, action, want[i])
			}
		}
	})
}

func TestCommand_slotsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		e.server.slots = make(chan struct{}, 2)
		f.setHold(make(chan struct{}))
		var last *console
		for i := range 3 {
			last = onEndpoint(t, e, fmt.Sprintf("192.0.2.1:%d", i+1))
			last.mustLogin()
			answer := last.exchange(last.packet(ipmi.NetFnChassis, 0x02, 0x01))
			if (answer != nil) != (i == 2) {
				t.Fatalf("session %d: answer %x", i, answer)
			}
			if answer != nil {
				if code, _ := last.read(answer); code != ipmi.NodeBusy {
					t.Errorf("without a slot: %v, want busy", code)
				}
			}
		}
		time.Sleep(4 * time.Second)
		f.setHold(nil)
		last.exchange(last.again(ipmi.NetFnChassis, 0x02, 0x01))
		synctest.Wait()
		if f.did() != 3 || len(conn.sent) != 3 {
			t.Errorf("%d actions, %d answers, want 3 and 3: a busy answer must not be remembered", f.did(), len(conn.sent))
		}
	})
}

func TestCommand_sessionClosedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		c := onEndpoint(t, e, source)
		c.mustLogin()
		hold := make(chan struct{})
		f.setHold(hold)
		c.exchange(c.packet(ipmi.NetFnChassis, 0x02, 0x01))
		id := c.handshake.BMCID
		c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		close(hold)
		synctest.Wait()
		if len(conn.sent) != 0 || f.did() != 1 {
			t.Errorf("%d answers, %d actions, want none and one", len(conn.sent), f.did())
		}
	})
}

func TestCommand_panicIsContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeBackend{}
		e, conn := newTestEndpoint(t, f, nil)
		c := onEndpoint(t, e, source)
		c.mustLogin()
		f.mu.Lock()
		f.panics = true
		f.mu.Unlock()
		c.exchange(c.packet(ipmi.NetFnChassis, 0x01))
		if code, _ := c.read(<-conn.sent); code != ipmi.Unspecified {
			t.Errorf("a panic gives %v", code)
		}
		if code, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
			t.Error("the session is gone")
		}
	})
}

func TestHandle_panicIsContained(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e, _ := newTestEndpoint(t, &fakeBackend{}, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Mux = command.NewMux()
		c.Mux.Handle(ipmi.NetFnApp, 0x38, command.Command{Name: "broken", Sessionless: true, Handle: func(context.Context, *command.Request) (ipmi.CompletionCode, []byte) {
			panic("a defect")
		}})
	})
	c := onEndpoint(t, e, source)
	message := ipmi.Message{ToAddress: ipmi.AddressBMC, NetFn: ipmi.NetFnApp, Command: 0x38}.AppendTo(nil)
	if b := c.plain(rmcpplus.PayloadIPMI, message); b != nil {
		t.Errorf("answer %x", b)
	}
	if !strings.Contains(log.String(), "a defect") {
		t.Errorf("log: %s", &log)
	}
	if c.open() != rmcpplus.StatusOK {
		t.Error("the endpoint is locked")
	}
}

func TestUpdate_credentials(t *testing.T) {
	t.Parallel()
	e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
	admin, operator, half, challenged := onEndpoint(t, e, source), onEndpoint(t, e, source), onEndpoint(t, e, "192.0.2.9:1"), onEndpoint(t, e, "192.0.2.9:2")
	operator.user, operator.password, operator.role = "operator", "password2", 0x13
	admin.mustLogin()
	operator.mustLogin()
	half.open()
	challenged.open()
	challenged.rakp1()

	in := registryBMC("vm-a", 623)
	in.Accounts[0].Password = "changed"
	b, err := parseBMC(in)
	if err != nil {
		t.Fatal(err)
	}
	e.update(b)
	if _, _, ok := admin.command(ipmi.NetFnApp, 0x01); ok {
		t.Error("a session of the old password goes on")
	}
	if code, _, ok := operator.command(ipmi.NetFnApp, 0x01); !ok || code != ipmi.OK {
		t.Error("a session of an account that did not change is gone")
	}
	if b := challenged.rakp3(); rmcpplus.Status(b[1]) != rmcpplus.StatusInvalidSessionID {
		t.Errorf("a login with the old password goes on: %x", b)
	}
	half.password = "changed"
	half.rakp1()
	if b := half.rakp3(); b[1] != 0 {
		t.Errorf("a login that had not named its user: %x", b)
	}
	old, current := onEndpoint(t, e, source), onEndpoint(t, e, source)
	current.password = "changed"
	if status := old.login(); status != rmcpplus.StatusInvalidCheckValue {
		t.Errorf("the old password: status %#x", byte(status))
	}
	current.mustLogin()

	for name, change := range map[string]func(*registryv1.BMC){
		"an account goes":       func(in *registryv1.BMC) { in.Accounts = in.Accounts[1:] },
		"a role changes":        func(in *registryv1.BMC) { in.Accounts[0].Role = registryv1.Role_ROLE_OPERATOR },
		"a protocol is taken":   func(in *registryv1.BMC) { in.Accounts[0].Protocols = nil },
		"Kg is set":             func(in *registryv1.BMC) { in.Ipmi.Kg = []byte("k") },
		"a cipher suite is off": func(in *registryv1.BMC) { in.Ipmi.CipherSuites = []uint32{3} },
	} {
		e, _ := newTestEndpoint(t, &fakeBackend{}, nil)
		c := onEndpoint(t, e, source)
		c.mustLogin()
		in := registryBMC("vm-a", 623)
		same, _ := parseBMC(in)
		e.update(same)
		if _, _, ok := c.command(ipmi.NetFnApp, 0x01); !ok {
			t.Errorf("%s: the session ended before", name)
		}
		change(in)
		changed, err := parseBMC(in)
		if err != nil {
			t.Fatal(err)
		}
		e.update(changed)
		if _, _, ok := c.command(ipmi.NetFnApp, 0x01); ok {
			t.Errorf("%s: the session goes on", name)
		}
	}
}

func TestSystemGUID(t *testing.T) {
	t.Parallel()
	f := &fakeBackend{uuid: "00112233-4455-6677-8899-aabbccddeeff"}
	e, _ := newTestEndpoint(t, f, nil)
	e.server.cfg.Inventory = fakeInventory{f}
	c := onEndpoint(t, e, source)
	check := func(want string) {
		t.Helper()
		c.mustLogin()
		_, system, _ := c.command(ipmi.NetFnApp, 0x37)
		if got := fmt.Sprintf("%x", system); got != want || !bytes.Equal(system, c.handshake.GUID[:]) {
			t.Errorf("system GUID %s, in RAKP 2 %x, want %s", got, c.handshake.GUID, want)
		}
	}
	check("11111111222233334444555555555555") // Not known yet: the BMC's own.
	e.lookUpGUID(t.Context())
	check("33221100554477668899aabbccddeeff")
	if _, device, _ := c.command(ipmi.NetFnApp, 0x08); fmt.Sprintf("%x", device) != "11111111222233334444555555555555" {
		t.Errorf("device GUID %x", device)
	}
	for _, uuid := range []string{"", "nonsense"} { // The last known one stays.
		f.mu.Lock()
		f.uuid = uuid
		f.mu.Unlock()
		e.lookUpGUID(t.Context())
		check("33221100554477668899aabbccddeeff")
	}
	b, err := parseBMC(registryBMC("vm-a", 623))
	if err != nil {
		t.Fatal(err)
	}
	e.update(b)
	check("33221100554477668899aabbccddeeff")
}

func TestParseBMC(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change  func(*registryv1.BMC)
		wantErr string
	}{
		"good":                      {func(*registryv1.BMC) {}, ""},
		"no UUID":                   {func(in *registryv1.BMC) { in.Uuid = "x" }, "parse UUID"},
		"no port":                   {func(in *registryv1.BMC) { in.Ipmi.Udp = nil }, "not a port"},
		"a port too high":           {func(in *registryv1.BMC) { in.Ipmi.Udp.Port = 70000 }, "not a port"},
		"a cipher suite unknown":    {func(in *registryv1.BMC) { in.Ipmi.CipherSuites = []uint32{0} }, "cipher suite 0"},
		"a Kg too long":             {func(in *registryv1.BMC) { in.Ipmi.Kg = make([]byte, 21) }, "(Kg)"},
		"accounts that can't be":    {func(in *registryv1.BMC) { in.Accounts[0].Username = strings.Repeat("x", 17) }, ""},
		"passwords that can't be":   {func(in *registryv1.BMC) { in.Accounts[0].Password = strings.Repeat("x", 21) }, ""},
		"an account without secret": {func(in *registryv1.BMC) { in.Accounts[0].Password = "" }, ""},
	} {
		in := registryBMC("vm-a", 623)
		tc.change(in)
		b, err := parseBMC(in)
		if tc.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%s: error %v, want %q", name, err, tc.wantErr)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantSkipped := 1
		if name == "good" {
			wantSkipped = 0
		}
		if len(b.skipped) != wantSkipped || len(b.accounts) != 3-wantSkipped {
			t.Errorf("%s: accounts %d, skipped %q", name, len(b.accounts), b.skipped)
		}
	}
}

func TestAlarm_floodIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e, _ := newTestEndpoint(t, &fakeBackend{}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		for i := range 1000 {
			c := onEndpoint(t, e, source)
			c.user, c.password = fmt.Sprint(i), "wrong"
			c.login()
		}
		if n := strings.Count(log.String(), "IPMI login failed"); n != 100 {
			t.Errorf("%d lines of 1000 failed logins at once, want 100", n)
		}
		time.Sleep(time.Second)
		c := onEndpoint(t, e, source)
		c.user, c.password = "late", "wrong"
		c.login()
		if !strings.Contains(log.String(), "user=late") {
			t.Error("a failure after the flood is not in the log")
		}
	})
}
