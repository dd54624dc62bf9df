// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"slices"
	"strings"
	"testing"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

func TestWatchdog_ofIpmitool(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.services.Change(b.reference(), func(m *fakeservice.Machine) { m.Power.State = powerv1.PowerState_POWER_STATE_ON })
	get := func(want ...string) {
		t.Helper()
		out, ok := b.ipmitool(t, "mc", "watchdog", "get")
		for _, text := range want {
			if !ok || !strings.Contains(out, text) {
				t.Errorf("no %q, success %v:\n%s", text, ok, out)
			}
		}
	}
	if out, ok := b.ipmitool(t, "mc", "watchdog", "reset"); ok {
		t.Errorf("reset of a timer that was never set: %s", out)
	}
	// SMS/OS, power cycle, 20 s.
	if out, ok := b.ipmitool(t, "raw", "0x06", "0x24", "0x04", "0x03", "0x00", "0x10", "0xc8", "0x00"); !ok {
		t.Fatal(out)
	}
	get("SMS/OS (0x04)", "Stopped", "Power Cycle (0x03)", "Initial Countdown:      20.0 sec")
	if out, ok := b.ipmitool(t, "mc", "watchdog", "reset"); !ok || !strings.Contains(out, "countdown restarted") {
		t.Errorf("reset: %s", out)
	}
	get("SMS/OS (0x44)", "Started/Running", "Power Cycle (0x03)", "Initial Countdown:      20.0 sec")
	if out, ok := b.ipmitool(t, "mc", "watchdog", "off"); !ok || !strings.Contains(out, "timer stopped") {
		t.Errorf("off: %s", out)
	}
	get("Stopped", "No action (0x00)")

	// OS load, power cycle, 1 s.
	if out, ok := b.ipmitool(t, "raw", "0x06", "0x24", "0x03", "0x03", "0x00", "0x08", "0x0a", "0x00"); !ok {
		t.Fatal(out)
	}
	if out, ok := b.ipmitool(t, "raw", "0x06", "0x22"); !ok {
		t.Fatal(out)
	}
	eventually(t, "power cycle by the timer", func() bool {
		return slices.ContainsFunc(b.services.Calls(), func(c fakeservice.Call) bool {
			return c.What == "POWER_ACTION_POWER_CYCLE" && c.Caller.User == "watchdog timer"
		})
	})
	eventually(t, "restart cause", func() bool {
		out, ok := b.ipmitool(t, "chassis", "restart_cause")
		return ok && strings.Contains(out, "watchdog expired")
	})
	get("Stopped", "(0x08)", "* OS Load")
	if out, _ := b.ipmitool(t, "sel", "elist"); !strings.Contains(out, "Watchdog2") || !strings.Contains(out, "Power cycle") {
		t.Errorf("log:\n%s", out)
	}
	if out, ok := b.freeipmi(t, "ipmi-sel", "-u", "admin", "-p", "password", "-l", "ADMIN", "--sdr-cache-directory="+t.TempDir()); !ok || !strings.Contains(out, "Power Cycle") || !strings.Contains(out, "OS Load") {
		t.Errorf("ipmi-sel, success %v:\n%s", ok, out)
	}
}
