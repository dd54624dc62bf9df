// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

// described is a frontend whose machine runs and says what it is.
func described(t *testing.T) *bench {
	t.Helper()
	b := start(t)
	b.services.Change(b.reference(), func(m *fakeservice.Machine) {
		m.Power.State = powerv1.PowerState_POWER_STATE_ON
		m.Power.LastResetTime = timestamppb.New(time.Now().Add(-256 * time.Minute))
		m.Inventory.Manufacturer, m.Inventory.Product, m.Inventory.SerialNumber = "KubeVirt", "None", "SN-1"
		m.Inventory.MachineName, m.Inventory.MachineType = "vm-a", "q35"
	})
	return b
}

// answers runs a client once for each row, which names what is to be in its
// output.
type answers map[string]struct {
	args []string
	want []string
}

func (a answers) check(t *testing.T, run func(args ...string) (string, bool)) {
	t.Helper()
	for name, tc := range a {
		out, ok := run(tc.args...)
		if !ok {
			t.Errorf("%s fails", name)
		}
		for _, want := range tc.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s has no %q:\n%s", name, want, out)
			}
		}
	}
}

func TestIpmitool_inventory(t *testing.T) {
	t.Parallel()
	b := described(t)
	answers{
		"sdr list":      {[]string{"sdr", "list"}, []string{"Uptime", "256 minute", "Power", "0x01", "| ok"}},
		"sdr verbose":   {[]string{"sdr", "elist", "full", "-v"}, []string{"Sensor ID              : Uptime (0x2)", "System Board"}},
		"sdr, all":      {[]string{"sdr", "elist", "all"}, []string{"KubeVirtBMC", "S0/G0: working"}},
		"sdr info":      {[]string{"sdr", "info"}, []string{"Record Count                        : 3"}},
		"fru":           {[]string{"fru", "print"}, []string{"Board Mfg             : KubeVirt", "Board Serial          : SN-1", "Product Name          : vm-a", "Product Version       : q35"}},
		"lan print":     {[]string{"lan", "print", "1"}, []string{"IP Address              : 127.0.0.1", "Subnet Mask             : 255.0.0.0", "RMCP+ Cipher Suites     : 17,3"}},
		"user list":     {[]string{"user", "list", "1"}, []string{"2   admin            true    false      true       ADMINISTRATOR", "4   reader           true    false      true       USER"}},
		"user summary":  {[]string{"user", "summary", "1"}, []string{"Maximum IDs	    : 4", "Enabled User Count  : 3"}},
		"channel info":  {[]string{"channel", "info", "1"}, []string{"Channel Medium Type   : 802.3 LAN", "Access Mode         : always available"}},
		"access":        {[]string{"channel", "getaccess", "1", "3"}, []string{"User Name            : operator", "Privilege Level      : OPERATOR"}},
		"session info":  {[]string{"session", "info", "active"}, []string{"user id                       : 2", "console ip                    : 127.0.0.1"}},
		"sensor list":   {[]string{"sensor", "list"}, []string{"Uptime", "256.000", "minute"}},
		"mc info":       {[]string{"mc", "info"}, []string{"Chassis Device", "SDR Repository Device", "FRU Inventory Device"}},
		"system name":   {[]string{"mc", "getsysinfo", "system_name"}, []string{"vm-a"}},
		"session, all":  {[]string{"session", "info", "all"}, []string{"session handle"}},
		"sdr of Ironic": {[]string{"-v", "sdr"}, nil},
	}.check(t, func(args ...string) (string, bool) { return b.ipmitool(t, args...) })
}

func TestFreeIPMI_inventory(t *testing.T) {
	t.Parallel()
	b := described(t)
	cache := "--sdr-cache-directory=" + t.TempDir()
	for program, rows := range map[string]answers{
		"bmc-info": {"bmc-info": {nil, []string{"System Name                   : vm-a", "IPMI Version          : 2.0", "Sensor Device         : supported", "SDR Repository Device : supported", "FRU Inventory Device  : supported"}}},
		"ipmi-sensors": {
			"ipmi-sensors":       {[]string{cache, "--no-header-output", "--comma-separated-output"}, []string{"Uptime", "256.00", "'S0/G0'"}},
			"ipmi-sensors again": {[]string{cache, "--no-header-output", "--ignore-not-available-sensors"}, []string{"Uptime"}},
		},
		"ipmi-fru": {"ipmi-fru": {[]string{cache}, []string{"FRU Board Manufacturer: KubeVirt", "FRU Product Name: vm-a"}}},
	} {
		rows.check(t, func(args ...string) (string, bool) {
			return b.freeipmi(t, program, append([]string{"-u", "admin", "-p", "password", "-l", "ADMIN"}, args...)...)
		})
	}
}

// ipmi-config's exit status is 1 where a BMC lacks any of its parameters.
func TestIpmiConfig_checkout(t *testing.T) {
	t.Parallel()
	b := described(t)
	out, _ := b.freeipmi(t, "ipmi-config", "-u", "admin", "-p", "password", "-l", "ADMIN", "--category=core", "--checkout")
	out = strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"Username operator", "Lan_Privilege_Limit Operator", "IP_Address 127.0.0.1", "Subnet_Mask 255.0.0.0", "Volatile_Access_Mode Always_Available"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
}

const pyghmiInventory = `
import sys
import pyghmi.ipmi.command as command
bmc = command.Command(bmc="127.0.0.1", userid="admin", password="password", port=int(sys.argv[1]), privlevel=4)
for name, what in bmc.get_inventory():
    print(name, what and what.get("Board manufacturer"), what and what.get("Product name"))
for reading in bmc.get_sensor_data():
    print(reading.name, reading.value, reading.states)
`

func TestPyghmi_inventory(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), debianPython, "-c", "import pyghmi").Run(); err != nil {
		t.Skipf("pyghmi is not installed for %s", debianPython)
	}
	b := described(t)
	program := t.TempDir() + "/client.py"
	if err := os.WriteFile(program, []byte(pyghmiInventory), 0o600); err != nil {
		t.Fatal(err)
	}
	out, ok := run(t, debianPython, program, strconv.Itoa(int(b.port())))
	for _, want := range []string{"System KubeVirt vm-a", "Uptime 256."} {
		if !ok || !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
