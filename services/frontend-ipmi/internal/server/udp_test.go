// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/testport"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/rmcpplus"
)

// overUDP has a console speak to an address.
func overUDP(tb testing.TB, address string) *console {
	tb.Helper()
	conn, err := net.Dial("udp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	buffer := make([]byte, 1024)
	return newConsole(tb, func(b []byte) []byte {
		if _, err := conn.Write(b); err != nil {
			tb.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := conn.Read(buffer)
		if err != nil {
			return nil
		}
		return buffer[:n]
	})
}

// applyBMC serves a BMC on a free port and returns its address.
func applyBMC(tb testing.TB, s *Server, name string) string {
	tb.Helper()
	port := uint32(testport.Free(tb))
	if err := s.Apply(tb.Context(), registryBMC(name, port)); err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func TestServer_thousandBMCs(t *testing.T) {
	t.Parallel()
	f := &fakeBackend{}
	s := newServer(t, f, nil)
	const n = 1000
	addresses := make([]string, n)
	for i := range addresses {
		addresses[i] = applyBMC(t, s, fmt.Sprintf("vm-%d", i))
	}
	work := make(chan string)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for address := range work {
				c := overUDP(t, address)
				c.mustLogin()
				if code, data, ok := c.command(ipmi.NetFnChassis, 0x01); !ok || code != ipmi.OK || data[0]&1 != 1 {
					t.Errorf("%s: status %v %x %v", address, code, data, ok)
				}
			}
		})
	}
	for _, address := range addresses {
		work <- address
	}
	close(work)
	group.Wait()
}

func TestServer_Apply_movesAndRemoves(t *testing.T) {
	t.Parallel()
	s := newServer(t, &fakeBackend{}, nil)
	first := applyBMC(t, s, "vm-a")
	second := applyBMC(t, s, "vm-a")
	silent := func(address string) bool {
		c := overUDP(t, address)
		return c.plain(rmcpplus.PayloadOpenSessionRequest, c.openRequest().AppendTo(nil)) == nil
	}
	if first == second || !silent(first) || silent(second) {
		t.Errorf("after the move from %s: port %d", first, s.Port(registryBMC("vm-a", 1).GetBmc()))
	}
	// A port that another BMC has.
	in := registryBMC("vm-b", uint32(s.Port(registryBMC("vm-a", 1).GetBmc())))
	if err := s.Apply(t.Context(), in); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	in.Ipmi.Udp.Port = 0
	if err := s.Apply(t.Context(), in); err == nil {
		t.Error("a BMC without port is served")
	}
	// IPMI is switched off.
	in = registryBMC("vm-a", 1)
	in.Ipmi = nil
	if err := s.Apply(t.Context(), in); err != nil || !silent(second) {
		t.Errorf("a BMC without IPMI is served: %v", err)
	}
	s.Remove(in.GetBmc()) // No harm.
}

// A password that was taken back counts no more, whatever else is wrong with the
// registry's entry.
func TestServer_Apply_failuresKeepNoPassword(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, in *registryv1.BMC)
		served bool
	}{
		"the new port is taken": {func(t *testing.T, in *registryv1.BMC) {
			busy, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = busy.Close() })
			in.Ipmi.Udp.Port = uint32(busy.LocalAddr().(*net.UDPAddr).Port)
		}, true},
		"a cipher suite is not served": {func(_ *testing.T, in *registryv1.BMC) { in.Ipmi.CipherSuites = []uint32{8} }, false},
		"Kg is too long":               {func(_ *testing.T, in *registryv1.BMC) { in.Ipmi.Kg = make([]byte, 21) }, false},
		"the UUID is none":             {func(_ *testing.T, in *registryv1.BMC) { in.Uuid = "none" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &fakeBackend{}, nil)
			address := applyBMC(t, s, "vm-a")
			before := overUDP(t, address)
			before.mustLogin()
			in := registryBMC("vm-a", uint32(s.Port(registryBMC("vm-a", 1).GetBmc())))
			in.Accounts[0].Password = "rotated"
			tc.change(t, in)
			if err := s.Apply(t.Context(), in); err == nil {
				t.Fatal("no error")
			}
			if _, _, ok := before.command(ipmi.NetFnApp, 0x01); ok {
				t.Error("a session of the old password goes on")
			}
			if !tc.served {
				if port := s.Port(in.GetBmc()); port != 0 {
					t.Errorf("the BMC is served on port %d", port)
				}
				return
			}
			if status := overUDP(t, address).login(); status != rmcpplus.StatusInvalidCheckValue {
				t.Errorf("the old password: status %#x", byte(status))
			}
			current := overUDP(t, address)
			current.password = "rotated"
			current.mustLogin()
		})
	}
}

func TestServer_Shutdown_letsCommandsEnd(t *testing.T) {
	t.Parallel()
	f := &fakeBackend{}
	s := newServer(t, f, nil)
	address := applyBMC(t, s, "vm-a")
	c := overUDP(t, address)
	c.mustLogin()
	hold := make(chan struct{})
	f.setHold(hold)
	answered := make(chan ipmi.CompletionCode)
	go func() {
		code, _, ok := c.command(ipmi.NetFnChassis, 0x02, 0x01)
		if !ok {
			code = ipmi.Unspecified
		}
		answered <- code
	}()
	for f.did() == 0 {
		time.Sleep(time.Millisecond)
	}
	done := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		close(done)
	}()
	time.Sleep(50 * time.Millisecond)
	close(hold)
	if code := <-answered; code != ipmi.OK {
		t.Errorf("the command that was under way: %v", code)
	}
	<-done
	if err := s.Apply(t.Context(), registryBMC("vm-b", uint32(testport.Free(t)))); err == nil {
		t.Error("a stopped server serves a BMC")
	}
}

// On a socket that is bound to all addresses an answer comes from the address
// that was asked: a connected client gets no other.
func TestServer_answersFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"", "0.0.0.0"} {
		s := newServer(t, &fakeBackend{}, func(c *Config) { c.Listen = host })
		_, port, err := net.SplitHostPort(applyBMC(t, s, "vm-a"))
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{"127.0.0.1", "127.0.0.2", "127.9.8.7"} {
			c := overUDP(t, net.JoinHostPort(address, port))
			if b := c.plain(rmcpplus.PayloadOpenSessionRequest, c.openRequest().AppendTo(nil)); b == nil {
				t.Errorf("listen %q: no answer from %s", host, address)
			}
		}
		if host != "" {
			continue
		}
		if conn, err := net.Listen("tcp", "[::1]:0"); err != nil {
			t.Log("no IPv6 here; not tried")
		} else {
			_ = conn.Close()
			c := overUDP(t, net.JoinHostPort("::1", port))
			if b := c.plain(rmcpplus.PayloadOpenSessionRequest, c.openRequest().AppendTo(nil)); b == nil {
				t.Error("no answer from ::1")
			}
		}
	}
}

func TestServer_metrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s := newServer(t, &fakeBackend{}, func(c *Config) { c.Metrics = registry })
	c := overUDP(t, applyBMC(t, s, "vm-a"))
	c.mustLogin()
	c.command(ipmi.NetFnChassis, 0x01)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, name := range []string{
		"vbmc_ipmi_bmcs", "vbmc_ipmi_sessions", "vbmc_ipmi_datagrams_total", "vbmc_ipmi_logins_total",
		"vbmc_ipmi_commands_total", "vbmc_ipmi_command_duration_seconds",
	} {
		if !got[name] {
			t.Errorf("metric %s is missing", name)
		}
	}
	if _, err := New(Config{Metrics: registry}); err == nil {
		t.Error("metrics are registered twice without an error")
	}
}

func TestServer_looksUpTheMachinesUUID(t *testing.T) {
	t.Parallel()
	f := &fakeBackend{uuid: "00112233-4455-6677-8899-aabbccddeeff"}
	s := newServer(t, f, func(c *Config) { c.Inventory = fakeInventory{f} })
	c := overUDP(t, applyBMC(t, s, "vm-a"))
	want := [16]byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF}
	for range 1000 {
		c.mustLogin()
		if c.handshake.GUID == want {
			return
		}
		id := c.handshake.BMCID
		c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("RAKP 2 has GUID %x, want %x", c.handshake.GUID, want)
}
