// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

// freeipmi runs one of FreeIPMI's programs against the BMC.
func (b *bench) freeipmi(t *testing.T, program string, args ...string) (string, bool) {
	t.Helper()
	return run(t, client(t, program), append([]string{"-h", b.address(), "-D", "LAN_2_0"}, args...)...)
}

// The lines are those that MAAS runs.
func TestIpmipower_asMAASRunsIt(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, login := range [][]string{
		{"-u", "operator", "-p", "password2", "-I", "3", "-l", "OPERATOR", "-W", "opensesspriv"},
		{"-u", "admin", "-p", "password", "-I", "17", "-l", "OPERATOR"},
	} {
		for _, step := range []struct {
			args []string
			want string
		}{
			{[]string{"--stat"}, "127.0.0.1: off\n"},
			{[]string{"--cycle", "--on-if-off"}, "127.0.0.1: ok\n"},
			{[]string{"--stat"}, "127.0.0.1: on\n"},
			{[]string{"--cycle", "--on-if-off"}, "127.0.0.1: ok\n"},
			{[]string{"--soft"}, "127.0.0.1: ok\n"},
			{[]string{"--off"}, "127.0.0.1: ok\n"},
		} {
			if out, _ := b.freeipmi(t, "ipmipower", append(login, step.args...)...); out != step.want {
				t.Errorf("%v: %q, want %q", step.args, out, step.want)
			}
		}
	}
	var actions []string
	for _, c := range b.services.Calls() {
		actions = append(actions, strings.TrimPrefix(c.What, "POWER_ACTION_"))
	}
	if got, want := strings.Join(actions[:4], " "), "ON POWER_CYCLE GRACEFUL_SHUTDOWN FORCE_OFF"; got != want {
		t.Errorf("actions %s, want %s", got, want)
	}
}

func TestIpmipower_refusals(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, tc := range map[string]struct {
		login []string
		want  string
	}{
		"wrong password": {[]string{"-u", "admin", "-p", "wrong"}, "127.0.0.1: password invalid\n"},
		// The same text: FreeIPMI can't tell, and nobody else can.
		"unknown user":   {[]string{"-u", "nobody", "-p", "wrong"}, "127.0.0.1: password invalid\n"},
		"a Kg too many":  {[]string{"-u", "admin", "-p", "password", "-k", "x"}, "127.0.0.1: k_g invalid\n"},
		"cipher suite 0": {[]string{"-u", "admin", "-p", "password", "-I", "0"}, "127.0.0.1: cipher suite id unavailable\n"},
	} {
		if out, _ := b.freeipmi(t, "ipmipower", append(tc.login, "--stat")...); out != tc.want {
			t.Errorf("%s: %q, want %q", name, out, tc.want)
		}
	}
	if out, ok := b.freeipmi(t, "bmc-info", "-u", "operator", "-p", "password2", "-l", "ADMIN"); ok || !strings.Contains(out, "privilege level cannot be obtained for this user") {
		t.Errorf("an operator as administrator: %q", out)
	}
}

// FreeIPMI sets one bit after the other, and loses those that do not read back.
func TestIpmiChassisConfig_keepsAllBits(t *testing.T) {
	t.Parallel()
	b := start(t)
	for bootType, wantFlags := range map[string]string{"EFI": "a004000000", "PC-COMPATIBLE": "8004000000"} {
		file := filepath.Join(t.TempDir(), "chassis.conf")
		text := "Section Chassis_Boot_Flags\n\tBoot_Flags_Persistent No\n\tBIOS_Boot_Type " + bootType + "\n\tBoot_Device PXE\nEndSection\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, ok := b.freeipmi(t, "ipmi-chassis-config", "-u", "operator", "-p", "password2", "-l", "OPERATOR", "-W", "opensesspriv", "--commit", "--filename", file)
		if !ok {
			t.Errorf("%s: %s", bootType, out)
		}
		b.services.Change(b.reference(), func(m *fakeservice.Machine) {
			got := m.Boot.GetOverride()
			if hex.EncodeToString(got.GetBootFlags()) != wantFlags || got.GetTarget() != bootv1.BootTarget_BOOT_TARGET_PXE || got.GetPersistence() != bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE {
				t.Errorf("%s: override %v, want flags %s", bootType, got, wantFlags)
			}
		})
		out, ok = b.freeipmi(t, "ipmi-chassis-config", "-u", "admin", "-p", "password", "--checkout", "-S", "Chassis_Boot_Flags")
		for _, want := range []string{"Boot_Device", "PXE", "BIOS_Boot_Type", bootType} {
			if !ok || !strings.Contains(out, want) {
				t.Errorf("%s: checkout has no %q:\n%s", bootType, want, out)
			}
		}
	}
}

func TestBmcInfo(t *testing.T) {
	t.Parallel()
	b := start(t)
	out, ok := b.freeipmi(t, "bmc-info", "-u", "admin", "-p", "password", "--get-device-id")
	if !ok || !strings.Contains(out, "Chassis Device        : supported") || !strings.Contains(out, "SEL Device            : supported") {
		t.Errorf("bmc-info: %q", out)
	}
	b.services.Change(b.reference(), func(m *fakeservice.Machine) { m.Power.State = powerv1.PowerState_POWER_STATE_ON })
	if out, ok := b.freeipmi(t, "ipmi-chassis", "-u", "admin", "-p", "password", "--get-chassis-status"); !ok || !strings.Contains(out, "System Power                        : on") {
		t.Errorf("ipmi-chassis: %q", out)
	}
}
