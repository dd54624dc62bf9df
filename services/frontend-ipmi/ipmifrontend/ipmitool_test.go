// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

// client finds a client's program, or skips the test and says which is missing.
func client(t *testing.T, program string) string {
	t.Helper()
	for _, path := range []string{program, "/usr/sbin/" + program} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	t.Skipf("%s is not installed", program)
	return ""
}

// run runs a program and returns its output, both streams, and whether it
// succeeded.
func run(t *testing.T, program string, args ...string) (string, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	t.Logf("%s %s\n%s", program, strings.Join(args, " "), out)
	return string(out), err == nil
}

func (b *bench) ipmitool(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	return b.ipmitoolAs(t, []string{"-U", "admin", "-P", "password"}, args...)
}

func (b *bench) ipmitoolAs(t *testing.T, login []string, args ...string) (string, bool) {
	t.Helper()
	all := append([]string{"-I", "lanplus", "-H", "127.0.0.1", "-p", strconv.Itoa(int(b.port())), "-N", "2", "-R", "2"}, login...)
	return run(t, client(t, "ipmitool"), append(all, args...)...)
}

func TestIpmitool_powerByEachCipherSuite(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, suite := range map[string][]string{"automatic": nil, "suite 3": {"-C", "3"}, "suite 17": {"-C", "17"}} {
		for _, step := range []struct {
			args []string
			want string
		}{
			{[]string{"chassis", "power", "on"}, "Chassis Power Control: Up/On\n"},
			{[]string{"chassis", "power", "status"}, "Chassis Power is on\n"},
			{[]string{"chassis", "power", "cycle"}, "Chassis Power Control: Cycle\n"},
			{[]string{"chassis", "power", "reset"}, "Chassis Power Control: Reset\n"},
			{[]string{"chassis", "power", "soft"}, "Chassis Power Control: Soft\n"},
			{[]string{"chassis", "power", "off"}, "Chassis Power Control: Down/Off\n"},
			{[]string{"chassis", "power", "status"}, "Chassis Power is off\n"},
		} {
			out, ok := b.ipmitool(t, append(suite, step.args...)...)
			if !ok || out != step.want {
				t.Errorf("%s: %v = %q, %v, want %q", name, step.args, out, ok, step.want)
			}
		}
	}
	var actions []string
	for _, c := range b.services.Calls()[:5] {
		actions = append(actions, c.What)
		if c.Request == "" || c.Caller.User != "admin" || c.Caller.Protocol != "ipmi" || !strings.HasPrefix(c.Caller.Address, "127.0.0.1:") {
			t.Errorf("call came without its origin: %+v", c)
		}
	}
	want := []string{
		powerv1.PowerAction_POWER_ACTION_ON.String(), powerv1.PowerAction_POWER_ACTION_POWER_CYCLE.String(),
		powerv1.PowerAction_POWER_ACTION_FORCE_RESTART.String(), powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN.String(),
		powerv1.PowerAction_POWER_ACTION_FORCE_OFF.String(),
	}
	if diff := cmp.Diff(want, actions); diff != "" {
		t.Errorf("actions mismatch (-want +got)\n%s", diff)
	}
}

func TestIpmitool_bootdev(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, tc := range []struct {
		args        []string
		wantFlags   string
		target      bootv1.BootTarget
		persistence bootv1.BootPersistence
	}{
		{[]string{"chassis", "bootdev", "pxe", "options=efiboot,persistent"}, "e004000000", bootv1.BootTarget_BOOT_TARGET_PXE, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS},
		{[]string{"chassis", "bootdev", "disk"}, "8008000000", bootv1.BootTarget_BOOT_TARGET_HDD, bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE},
		{[]string{"chassis", "bootdev", "cdrom", "options=persistent"}, "c014000000", bootv1.BootTarget_BOOT_TARGET_CD, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS},
		// As Ironic does it.
		{[]string{"raw", "0x00", "0x08", "0x05", "0xe0", "0x24", "0x00", "0x00", "0x00"}, "e024000000", bootv1.BootTarget_BOOT_TARGET_HDD, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS},
		{[]string{"raw", "0x00", "0x08", "0x05", "0xa0", "0x04", "0x00", "0x00", "0x00"}, "a004000000", bootv1.BootTarget_BOOT_TARGET_PXE, bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE},
		{[]string{"chassis", "bootdev", "none"}, "8000000000", bootv1.BootTarget_BOOT_TARGET_NONE, bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED},
	} {
		if _, ok := b.ipmitool(t, "raw", "0x00", "0x08", "0x03", "0x08"); !ok {
			t.Error("set boot option 3 failed")
		}
		if _, ok := b.ipmitool(t, tc.args...); !ok {
			t.Errorf("%v failed", tc.args)
		}
		out, _ := b.ipmitool(t, "raw", "0x00", "0x09", "0x05", "0x00", "0x00")
		if got := strings.ReplaceAll(strings.TrimSpace(out), " ", ""); got != "0105"+tc.wantFlags {
			t.Errorf("%v: reads back %q, want flags %s", tc.args, got, tc.wantFlags)
		}
		b.services.Change(b.reference(), func(m *fakeservice.Machine) {
			if got := m.Boot.GetOverride(); got.GetTarget() != tc.target || got.GetPersistence() != tc.persistence {
				t.Errorf("%v: override %v, want %v %v", tc.args, got, tc.target, tc.persistence)
			}
		})
	}
	if out, ok := b.ipmitool(t, "chassis", "bootdev", "pxe", "options=persistent"); !ok || !strings.Contains(out, "Set Boot Device to pxe") {
		t.Errorf("bootdev = %q", out)
	}
	out, _ := b.ipmitool(t, "chassis", "bootparam", "get", "5")
	for _, want := range []string{"Force PXE", "apply to all future boots", "Boot parameter data: c004000000"} {
		if !strings.Contains(out, want) {
			t.Errorf("bootparam get 5 has no %q:\n%s", want, out)
		}
	}
}

func TestIpmitool_refusals(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, tc := range map[string]struct {
		login []string
		args  []string
		ok    bool
		want  string
	}{
		"wrong password":            {[]string{"-U", "admin", "-P", "wrong"}, []string{"chassis", "power", "on"}, false, "Unable to establish IPMI v2 / RMCP+ session"},
		"unknown user":              {[]string{"-U", "nobody", "-P", "password"}, []string{"chassis", "power", "on"}, false, "Unable to establish IPMI v2 / RMCP+ session"},
		"no user":                   {[]string{"-P", ""}, []string{"chassis", "power", "on"}, false, "Unable to establish IPMI v2 / RMCP+ session"},
		"user of Redfish alone":     {[]string{"-U", "web", "-P", "password4"}, []string{"chassis", "power", "on"}, false, "Unable to establish IPMI v2 / RMCP+ session"},
		"cipher suite 0":            {[]string{"-U", "admin", "-P", "password", "-C", "0"}, []string{"chassis", "power", "on"}, false, "no matching cipher suite"},
		"cipher suite 1":            {[]string{"-U", "admin", "-P", "password", "-C", "1"}, []string{"chassis", "power", "on"}, false, "no matching cipher suite"},
		"operator as administrator": {[]string{"-U", "operator", "-P", "password2"}, []string{"chassis", "power", "on"}, false, "Set Session Privilege Level to ADMINISTRATOR failed"},
		"operator as operator":      {[]string{"-U", "operator", "-P", "password2", "-L", "OPERATOR"}, []string{"chassis", "power", "status"}, true, "Chassis Power is off"},
		"administrator as operator": {[]string{"-U", "admin", "-P", "password", "-L", "OPERATOR"}, []string{"chassis", "power", "status"}, true, "Chassis Power is off"},
		"reader reads":              {[]string{"-U", "reader", "-P", "password3", "-L", "USER"}, []string{"chassis", "power", "status"}, true, "Chassis Power is off"},
		"reader switches":           {[]string{"-U", "reader", "-P", "password3", "-L", "USER"}, []string{"chassis", "power", "on"}, false, "Insufficient privilege level"},
		"a diagnostic interrupt":    {[]string{"-U", "admin", "-P", "password"}, []string{"chassis", "power", "diag"}, false, "Parameter out of range"},
		"a cycle of what is off":    {[]string{"-U", "admin", "-P", "password"}, []string{"chassis", "power", "cycle"}, false, "Command not supported in present state"},
		// Its exit status is 0 all the same.
		"a device that does not exist": {[]string{"-U", "admin", "-P", "password"}, []string{"chassis", "bootdev", "floppy"}, true, "Invalid data field in request"},
	} {
		out, ok := b.ipmitoolAs(t, tc.login, tc.args...)
		if ok != tc.ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %q, success %v, want %q", name, out, ok, tc.want)
		}
	}
	b.services.Change(b.reference(), func(m *fakeservice.Machine) {
		if m.Power.GetState() != powerv1.PowerState_POWER_STATE_OFF {
			t.Error("somebody who may not has switched the machine on")
		}
	})
	out, ok := run(t, client(t, "ipmitool"), "-I", "lan", "-H", "127.0.0.1", "-p", strconv.Itoa(int(b.port())), "-U", "admin", "-P", "password", "chassis", "power", "status")
	if ok || !strings.Contains(out, "Unable to establish IPMI v1.5 / RMCP session") {
		t.Errorf("IPMI v1.5: %q, success %v", out, ok)
	}
}

func TestIpmitool_management(t *testing.T) {
	t.Parallel()
	b := start(t)
	eventually(t, "the machine's UUID", func() bool {
		out, _ := b.ipmitool(t, "mc", "guid")
		return strings.Contains(out, "33221100554477668899AABBCCDDEEFF")
	})
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"mc info":            {[]string{"mc", "info"}, "IPMI Version              : 2.0"},
		"mc selftest":        {[]string{"mc", "selftest"}, "Selftest: passed"},
		"mc reset":           {[]string{"mc", "reset", "cold"}, "Sent cold reset command to MC"},
		"chassis status":     {[]string{"chassis", "status"}, "Power Restore Policy : previous"},
		"chassis identify":   {[]string{"chassis", "identify", "5"}, "Chassis identify interval: 5 seconds"},
		"restart cause":      {[]string{"chassis", "restart_cause"}, "System restart cause: unknown"},
		"restore policies":   {[]string{"chassis", "policy", "list"}, "Supported chassis power policy"},
		"session privileges": {[]string{"raw", "0x06", "0x3b", "0x00"}, "04"},
	} {
		if out, ok := b.ipmitool(t, tc.args...); !ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %q, success %v, want %q", name, out, ok, tc.want)
		}
	}
}

func TestIpmitool_bootOverrideOfRedfish(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.services.Change(b.reference(), func(m *fakeservice.Machine) {
		m.Boot.Override = &bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_CD,
		}
	})
	out, ok := b.ipmitool(t, "chassis", "bootparam", "get", "5")
	for _, want := range []string{"Boot Flag Valid", "Options apply to only next boot", "BIOS EFI boot", "Force Boot from CD/DVD"} {
		if !ok || !strings.Contains(out, want) {
			t.Errorf("bootparam get 5 has no %q:\n%s", want, out)
		}
	}
}

func TestIpmitool_kg(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.bmc.Ipmi.Kg = []byte("0123456789")
	b.apply(t)
	for name, tc := range map[string]struct {
		key []string
		ok  bool
	}{
		"in ASCII": {[]string{"-k", "0123456789"}, true},
		"in hex":   {[]string{"-y", "30313233343536373839"}, true},
		"wrong":    {[]string{"-k", "x"}, false},
		"none":     {nil, false},
	} {
		if out, ok := b.ipmitoolAs(t, append([]string{"-U", "admin", "-P", "password"}, tc.key...), "chassis", "power", "status"); ok != tc.ok {
			t.Errorf("Kg %s: %q, success %v", name, out, ok)
		}
	}
}

// A changed Secret counts at once: for Kubernetes users the whole point.
func TestIpmitool_changedPassword(t *testing.T) {
	t.Parallel()
	b := start(t)
	if _, ok := b.ipmitool(t, "chassis", "power", "status"); !ok {
		t.Fatal("the first password does not work")
	}
	b.bmc = newBMC("vm-a", b.port())
	b.bmc.Accounts[0].Password = "another"
	b.apply(t)
	if _, ok := b.ipmitool(t, "chassis", "power", "status"); ok {
		t.Error("the old password works")
	}
	if _, ok := b.ipmitoolAs(t, []string{"-U", "admin", "-P", "another"}, "chassis", "power", "status"); !ok {
		t.Error("the new password does not work")
	}
	b.services.Remove(b.reference())
	eventually(t, "the end of the BMC", func() bool {
		_, ok := b.ipmitoolAs(t, []string{"-U", "admin", "-P", "another", "-R", "1"}, "chassis", "power", "status")
		return !ok
	})
}

// Passwords and what is derived from them never show up in the log; who logged
// in from where, and which command had which request id, does.
func TestLog(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.ipmitool(t, "chassis", "power", "on")
	b.ipmitoolAs(t, []string{"-U", "admin", "-P", "guessed-it"}, "chassis", "power", "on")
	b.stop()
	log := b.logs.String()
	for _, secret := range []string{"password", "guessed-it"} {
		for line := range strings.Lines(log) {
			if strings.Contains(strings.ReplaceAll(line, "the console found the password wrong", ""), `"`+secret+`"`) {
				t.Errorf("the log has a password: %s", line)
			}
		}
	}
	calls := b.services.Calls()
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, want := range []string{`"request":"` + calls[0].Request + `"`, `"user":"admin"`, `"action":"chassis_control"`, `"bmc":"vm-a"`, `"msg":"IPMI session opened"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s:\n%s", want, log)
		}
	}
}
