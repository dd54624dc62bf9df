//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
)

// until waits until a machine's instance is as wanted.
func (c *cluster) until(t *testing.T, ref hypervisor.Ref, what string, is func(*hypervisor.Machine) bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		m, err := c.Get(ref)
		if err != nil {
			t.Fatal(err)
		}
		if is(m) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not %s: %+v, instance %+v", what, m, m.Instance)
		}
	}
}

func runs(m *hypervisor.Machine) bool {
	return m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning
}

// TestConsole_of_a_quiet_guest: a guest that says nothing is not taken for a
// broken connection, for virt-handler answers pings.
func TestConsole_of_a_quiet_guest(t *testing.T) {
	t.Parallel()
	c := open(t)
	ref := c.add(t, machine(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways}))
	c.until(t, ref, "running", runs)
	if err := c.Pause(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	conn, err := c.OpenConsole(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var heard atomic.Int64
	ended := make(chan error, 1)
	go func() {
		buffer := make([]byte, 1024)
		for {
			n, err := conn.Read(buffer)
			heard.Add(int64(n))
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		t.Fatalf("ended with %v after %d bytes", err, heard.Load())
	case <-time.After(75 * time.Second): // More than the silence that is borne.
	}
	t.Logf("%d bytes while the guest was paused", heard.Load())
	if err := c.Unpause(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	before := heard.Load()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); heard.Load() == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the guest does not answer")
		}
	}
}

// TestConsole_input_before_the_end: who types and leaves at once has typed.
func TestConsole_input_before_the_end(t *testing.T) {
	t.Parallel()
	if diskImage != "" {
		t.Skip("these guests obey no commands")
	}
	c := open(t)
	for range 3 {
		ref := c.add(t, machine(contract.Spec{RunStrategy: hypervisor.RunStrategyRerunOnFailure}))
		c.until(t, ref, "running", runs)
		conn, err := c.OpenConsole(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "poweroff\r"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		c.until(t, ref, "off", func(m *hypervisor.Machine) bool { return m.Instance == nil || m.Instance.Phase.Final() })
	}
}
