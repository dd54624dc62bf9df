// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"os"
	"path/filepath"
	"testing"

	"kubevirtbmc.dev/test/launch"
)

// freeIPMI returns a FreeIPMI tool with the options that MAAS gives it.
func freeIPMI(t *testing.T, s *launch.Standalone, program, suite string) client {
	t.Helper()
	return need(t, program, "-h", "127.0.0.1:"+s.IPMIPort(0), "-u", s.Username, "-p", s.Password,
		"-D", "LAN_2_0", "-W", "opensesspriv", "-I", suite, "-l", "OPERATOR")
}

func TestIPMIpower(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	for _, suite := range []string{"3", "17"} {
		tool := freeIPMI(t, s, "ipmipower", suite)
		tool.want(": off", "--stat")
		tool.want(": ok", "--cycle", "--on-if-off")
		first := api.waitPower("POWER_STATE_ON")
		tool.want(": on", "--stat")
		tool.want(": ok", "--cycle", "--on-if-off")
		eventually(t, "new instance after a power cycle", func() bool {
			p := api.power()
			return p.State == "POWER_STATE_ON" && p.InstanceID != first.InstanceID
		})
		tool.want(": ok", "--soft")
		api.waitPower("POWER_STATE_OFF")
		tool.want(": ok", "--on")
		api.waitPower("POWER_STATE_ON")
		tool.want(": ok", "--off")
		api.waitPower("POWER_STATE_OFF")
	}
}

func TestIPMIpower_logins(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	tool := need(t, "ipmipower", "-h", "127.0.0.1:"+s.IPMIPort(0), "-D", "LAN_2_0", "-I", "17", "-l", "OPERATOR", "--session-timeout", "4000")
	tool.want(": off", "-u", s.Username, "-p", s.Password, "--stat") // Without -W opensesspriv.
	for _, args := range [][]string{
		{"-u", s.Username, "-p", "wrong", "--on"},
		{"-u", "nobody", "-p", s.Password, "--on"},
	} {
		// ipmipower's exit status is 0 whatever happens; the text tells.
		r := tool.run(args...)
		if want := "127.0.0.1"; len(r.stdout) == 0 || r.stdout == want+": ok" {
			t.Errorf("%v: %v, want a refusal", args, r)
		}
	}
	if p := newREST(t, s, "sim-0").power(); p.State != "POWER_STATE_OFF" {
		t.Errorf("a wrong login switched the machine: %s", p.State)
	}
}

// What MAAS sends: read, change, write, three times over.
func TestIPMIChassisConfig_keepsBothBits(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	file := filepath.Join(t.TempDir(), "boot.cfg")
	config := `Section Chassis_Boot_Flags
	Boot_Flags_Persistent No
	BIOS_Boot_Type EFI
	Boot_Device PXE
EndSection
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	freeIPMI(t, s, "ipmi-chassis-config", "3").want("", "--commit", "--filename", file)
	ipmitool(t, s, 0).want("01 05 a0 04 00 00 00", "raw", "0x00", "0x09", "0x05", "0x00", "0x00")
	want := override{"BOOT_PERSISTENCE_ONCE", "BOOT_TARGET_PXE", "FIRMWARE_MODE_UEFI"}
	if got := newREST(t, s, "sim-0").override(); got != want {
		t.Errorf("override %+v, want %+v", got, want)
	}
}
