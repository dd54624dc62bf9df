// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubevirtbmc.dev/test/launch"
)

func ipmitool(t *testing.T, s *launch.Standalone, i int) client {
	t.Helper()
	return need(t, "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", s.IPMIPort(i), "-U", s.Username, "-P", s.Password, "-N", "5", "-R", "1")
}

func TestIPMItool_power(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool, api := ipmitool(t, s, 0), newREST(t, s, "sim-0")
	tool.want("Chassis Power is off", "chassis", "power", "status")
	tool.want("Chassis Power Control: Up/On", "chassis", "power", "on")
	first := api.waitPower("POWER_STATE_ON")
	tool.want("Chassis Power is on", "chassis", "power", "status")
	tool.want("Chassis Power Control: Up/On", "chassis", "power", "on") // On while on is no error.
	tool.want("System Power         : on", "chassis", "status")

	tool.want("Chassis Power Control: Reset", "chassis", "power", "reset")
	if again := api.waitPower("POWER_STATE_ON"); again.InstanceID != first.InstanceID {
		t.Errorf("reset made instance %s of %s, want the same", again.InstanceID, first.InstanceID)
	}
	tool.want("Chassis Power Control: Cycle", "chassis", "power", "cycle")
	eventually(t, "new instance after a power cycle", func() bool {
		p := api.power()
		return p.State == "POWER_STATE_ON" && p.InstanceID != first.InstanceID
	})
	tool.want("Chassis Power Control: Soft", "chassis", "power", "soft")
	api.waitPower("POWER_STATE_OFF")
	tool.want("Chassis Power is off", "chassis", "power", "status")
	tool.want("Chassis Power Control: Down/Off", "chassis", "power", "off")
	tool.wantFailure("Command not supported in present state", "chassis", "power", "cycle")
	tool.want("Chassis Power Control: Up/On", "chassis", "power", "on")
	tool.want("Chassis Power Control: Down/Off", "chassis", "power", "off") // Off while it starts.
	api.waitPower("POWER_STATE_OFF")
}

func TestIPMItool_offThenOnAtOnce_endsOn(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool, api := ipmitool(t, s, 0), newREST(t, s, "sim-0")
	tool.want("Up/On", "chassis", "power", "on")
	first := api.waitPower("POWER_STATE_ON")
	tool.want("Down/Off", "chassis", "power", "off")
	tool.want("Up/On", "chassis", "power", "on")
	eventually(t, "a new instance that is on", func() bool {
		p := api.power()
		return p.State == "POWER_STATE_ON" && p.InstanceID != first.InstanceID
	})
}

func TestIPMItool_bootDevice(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool, api := ipmitool(t, s, 0), newREST(t, s, "sim-0")
	for _, tc := range []struct {
		args []string
		// The machine has UEFI firmware: the mode is that whether asked for or not.
		want override
		// What `chassis bootparam get 5` prints of it.
		texts []string
	}{
		{
			[]string{"pxe"},
			override{"BOOT_PERSISTENCE_ONCE", "BOOT_TARGET_PXE", "FIRMWARE_MODE_UEFI"},
			[]string{"Boot Flag Valid", "Options apply to only next boot", "Force PXE"},
		},
		{
			[]string{"pxe", "options=efiboot,persistent"},
			override{"BOOT_PERSISTENCE_CONTINUOUS", "BOOT_TARGET_PXE", "FIRMWARE_MODE_UEFI"},
			[]string{"Boot Flag Valid", "Options apply to all future boots", "BIOS EFI boot", "Force PXE"},
		},
		{
			[]string{"disk", "options=persistent"},
			override{"BOOT_PERSISTENCE_CONTINUOUS", "BOOT_TARGET_HDD", "FIRMWARE_MODE_UEFI"},
			[]string{"Options apply to all future boots", "Force Boot from default Hard-Drive"},
		},
		{
			[]string{"cdrom"},
			override{"BOOT_PERSISTENCE_ONCE", "BOOT_TARGET_CD", "FIRMWARE_MODE_UEFI"},
			[]string{"Options apply to only next boot", "Force Boot from CD/DVD"},
		},
		{
			[]string{"none"},
			override{"BOOT_PERSISTENCE_DISABLED", "BOOT_TARGET_NONE", "FIRMWARE_MODE_UEFI"},
			[]string{"No override"},
		},
	} {
		tool.want("Set Boot Device to "+tc.args[0], append([]string{"chassis", "bootdev"}, tc.args...)...)
		if got := api.override(); got != tc.want {
			t.Errorf("bootdev %v: override %+v, want %+v", tc.args, got, tc.want)
		}
		for _, text := range tc.texts {
			tool.want(text, "chassis", "bootparam", "get", "5")
		}
	}
}

func TestIPMItool_oneTimeBoot_isUsedOnce(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool, api := ipmitool(t, s, 0), newREST(t, s, "sim-0")
	tool.want("Set Boot Device to pxe", "chassis", "bootdev", "pxe")
	tool.want("Up/On", "chassis", "power", "on")
	api.waitPower("POWER_STATE_ON")
	eventually(t, "override used up", func() bool { return api.override().Persistence == "BOOT_PERSISTENCE_DISABLED" })
}

func TestIPMItool_logins(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	base := []string{"-I", "lanplus", "-H", "127.0.0.1", "-p", s.IPMIPort(0), "-N", "2", "-R", "1"}
	status := []string{"chassis", "power", "status"}
	tool := need(t, "ipmitool", base...)
	login := func(user, password string, more ...string) []string {
		return append(append([]string{"-U", user, "-P", password}, more...), status...)
	}
	for _, suite := range []string{"3", "17"} {
		tool.want("Chassis Power is off", login(s.Username, s.Password, "-C", suite)...)
	}
	tool.want("Chassis Power is off", login(s.Username, s.Password, "-L", "OPERATOR")...)
	tool.want("Chassis Power is off", login(s.Username, s.Password, "-L", "USER")...)
	for _, suite := range []string{"0", "1", "2", "8", "15"} {
		tool.wantFailure("", login(s.Username, s.Password, "-C", suite)...)
	}
	tool.wantFailure("", append([]string{"-I", "lan"}, append(base[2:], login(s.Username, s.Password)...)...)...)
	tool.wantFailure("Unable to establish", login(s.Username, "wrong", "-C", "17")...)
	tool.wantFailure("Unable to establish", login("nobody", s.Password, "-C", "17")...)
	tool.wantFailure("Unable to establish", login("", s.Password, "-C", "17")...)
	tool.wantFailure("", append([]string{"-U", s.Username, "-P", "wrong"}, "chassis", "power", "on")...)
	if p := api.power(); p.State != "POWER_STATE_OFF" {
		t.Errorf("a wrong password switched the machine: %s", p.State)
	}
	if strings.Contains(s.Stderr(), s.Password) || strings.Contains(s.Stderr(), s.Token) {
		t.Error("the log has a secret in it")
	}
}

// What Ironic's ipmi driver sends.
func TestIPMItool_ironicSequence(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	passwords := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(passwords, []byte(s.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := need(t, "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", s.IPMIPort(0), "-L", "ADMINISTRATOR", "-U", s.Username,
		"-R", "1", "-N", "5", "-f", passwords)
	tool.want("", "raw", "0x00", "0x08", "0x03", "0x08")
	tool.want("", "raw", "0x00", "0x08", "0x05", "0xe0", "0x04", "0x00", "0x00", "0x00")
	tool.want("01 05 e0 04 00 00 00", "raw", "0x00", "0x09", "0x05", "0x00", "0x00")
	tool.want("Force PXE", "chassis", "bootparam", "get", "5")
	tool.want("Chassis Power Control: Up/On", "power", "on")
	api := newREST(t, s, "sim-0")
	api.waitPower("POWER_STATE_ON")
	tool.want("Chassis Power is on", "power", "status")
	tool.want("Manufacturer ID", "mc", "info")
}

// The System Event Log tells what the BMC's users, the guest and others did to the
// machine, in its order.
func TestIPMItool_eventLog(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool := ipmitool(t, s, 0)
	entries := func(want ...string) {
		t.Helper()
		eventually(t, "log of "+strings.Join(want, ", "), func() bool {
			r := tool.run("sel", "elist")
			lines := strings.Split(r.stdout, "\n")
			// The login's entry is late, and anywhere.
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, "Session Audit") })
			if r.exit != 0 || len(lines) != len(want) {
				return false
			}
			for i, line := range lines {
				if !strings.Contains(line, want[i]) {
					return false
				}
			}
			return true
		})
	}
	api := newREST(t, s, "sim-0")
	tool.want("Up/On", "power", "on")
	api.waitPower("POWER_STATE_ON")
	on, off := "S0/G0: working", "S5/G2: soft-off"
	entries(on)
	tool.want("Reset", "power", "reset")
	entries(on, "System Boot Initiated")
	tool.want("Set Boot Device to pxe", "chassis", "bootdev", "pxe")
	entries(on, "System Boot Initiated", "System Reconfigured")
	tool.want("Down/Off", "power", "off")
	entries(on, "System Boot Initiated", "System Reconfigured", off)
	tool.want("Up/On", "power", "on")
	entries(on, "System Boot Initiated", "System Reconfigured", off, on, "Initiated by power up")
}
