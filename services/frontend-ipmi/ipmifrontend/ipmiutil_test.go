// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/fakeservice"
)

// inNamespace is set where the test runs itself in a network namespace of its own.
const inNamespace = "KUBEVIRTBMC_TEST_NETWORK_NAMESPACE"

// ipmiutil knows port 623 alone, so the test runs a second time where that is free
// and there is nothing but loopback.
func TestIpmiutil(t *testing.T) {
	t.Parallel()
	ipmiutil := client(t, "ipmiutil")
	if os.Getenv(inNamespace) == "" {
		if err := exec.CommandContext(t.Context(), "unshare", "--map-root-user", "--net", "true").Run(); err != nil {
			t.Skipf("no network namespace can be made: %v", err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--map-root-user", "--net",
			"sh", "-c", `ip link set lo up && exec "$0" -test.run '^TestIpmiutil$' -test.v`, self)
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestIpmiutil") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	b := startOn(t, 623)
	b.services.Change(b.reference(), func(m *fakeservice.Machine) {
		m.Power.State = powerv1.PowerState_POWER_STATE_ON
		m.Inventory.Manufacturer, m.Inventory.MachineName = "KubeVirt", "vm-a"
	})
	answers{
		"health":        {[]string{"health"}, []string{"IPMI v2.0", "Selftest status   = 0055", "chassis_power       = on"}},
		"sensor":        {[]string{"sensor"}, []string{"Power", "Working", "Uptime"}},
		"sel":           {[]string{"sel"}, []string{"Size = 500 records"}},
		"fru":           {[]string{"fru"}, []string{"Board Manufacturer  : KubeVirt", "Product Name        : vm-a"}},
		"lan":           {[]string{"lan"}, []string{"Cipher Suites    : 17  3", "SOL Enable: 01 : enabled"}},
		"watchdog, set": {[]string{"wdt", "-t", "60", "-a", "3", "-e"}, []string{"timeout is 60 seconds", "Power cycle"}},
	}.check(t, func(args ...string) (string, bool) {
		return run(t, ipmiutil, append(args, "-N", "127.0.0.1", "-U", "admin", "-P", "password", "-J", "3", "-V", "4")...)
	})
	for _, args := range [][]string{{"reset", "-c"}, {"reset", "-r"}, {"reset", "-d"}, {"reset", "-u"}} {
		if out, ok := run(t, ipmiutil, append(args, "-N", "127.0.0.1", "-U", "admin", "-P", "password", "-J", "3", "-V", "4")...); !ok {
			t.Errorf("%v: %s", args, out)
		}
	}
	var actions []string
	for _, c := range b.services.Calls() {
		actions = append(actions, strings.TrimPrefix(c.What, "POWER_ACTION_"))
	}
	if got, want := strings.Join(actions, " "), "POWER_CYCLE FORCE_RESTART FORCE_OFF ON"; got != want {
		t.Errorf("actions %s, want %s", got, want)
	}
}
