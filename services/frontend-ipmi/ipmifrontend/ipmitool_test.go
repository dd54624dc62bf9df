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
