// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmclib_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	bmclib "github.com/bmc-toolbox/bmclib/v2"

	"kubevirtbmc.dev/test/launch"
)

// patience is how long a machine may take to reach a state.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	status := m.Run()
	launch.CleanUp()
	os.Exit(status)
}

// open connects by one of bmclib's providers alone.
func open(t *testing.T, s *launch.Standalone, provider string) *bmclib.Client {
	t.Helper()
	_, redfish, _ := strings.Cut(s.Redfish(0), ":")
	client := bmclib.NewClient("127.0.0.1", s.Username, s.Password,
		bmclib.WithIpmitoolPort(s.IPMIPort(0)), bmclib.WithIpmitoolCipherSuite("17"), bmclib.WithRedfishPort(redfish))
	client.Registry.Drivers = client.Registry.For(provider)
	if err := client.Open(t.Context()); err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func wantState(t *testing.T, client *bmclib.Client, want string) {
	t.Helper()
	var state string
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if state, err = client.GetPowerState(t.Context()); err == nil && strings.Contains(strings.ToLower(state), want) {
			return
		}
	}
	t.Fatalf("power state is %q, %v, want %s", state, err, want)
}

// needIPMItool skips a test of bmclib's IPMI provider where it can't run.
func needIPMItool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ipmitool"); err != nil {
		t.Skip("bmclib's IPMI provider runs ipmitool, which is not installed here; make clients installs it")
	}
}

// What Rufio does to a machine that it installs: off, boot device, on, and later a
// restart; by IPMI and by Redfish.
func TestPowerAndBootDevice(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"ipmitool", "gofish"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			if provider == "ipmitool" {
				needIPMItool(t)
			}
			s := launch.StartStandalone(t, 1)
			client := open(t, s, provider)
			wantState(t, client, "off")
			for _, device := range []string{"pxe", "disk", "cdrom"} {
				for _, persistent := range []bool{false, true} {
					if ok, err := client.SetBootDevice(t.Context(), device, persistent, false); err != nil || !ok {
						t.Errorf("boot device %s, persistent %v: %v, %v", device, persistent, ok, err)
					}
				}
			}
			steps := []struct{ action, state string }{{"on", "on"}, {"on", "on"}, {"cycle", "on"}, {"reset", "on"}, {"off", "off"}, {"off", "off"}}
			for _, step := range steps {
				if ok, err := client.SetPowerState(t.Context(), step.action); err != nil || !ok {
					t.Errorf("%s: %v, %v", step.action, ok, err)
				}
				wantState(t, client, step.state)
			}
		})
	}
}

// The System Event Log and the users over IPMI.
func TestEventLogAndUsers(t *testing.T) {
	t.Parallel()
	needIPMItool(t)
	s := launch.StartStandalone(t, 1)
	client := open(t, s, "ipmitool")
	if _, err := client.SetPowerState(t.Context(), "on"); err != nil {
		t.Fatal(err)
	}
	wantState(t, client, "on")
	has := func() bool {
		entries, err := client.GetSystemEventLog(t.Context())
		if err != nil {
			t.Fatalf("event log: %v", err)
		}
		return slices.ContainsFunc(entries, func(entry []string) bool {
			return strings.Contains(strings.Join(entry, " "), "S0/G0: working")
		})
	}
	for end := time.Now().Add(patience); !has(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the event log does not tell that the machine is on")
		}
	}
	users, err := client.ReadUsers(t.Context())
	if err != nil || !slices.ContainsFunc(users, func(u map[string]string) bool { return u["Name"] == s.Username }) {
		t.Errorf("users %v, %v", users, err)
	}
	if err := client.ClearSystemEventLog(t.Context()); err != nil {
		t.Errorf("clear event log: %v", err)
	}
	if has() {
		t.Error("the event log was not cleared")
	}
	if ok, err := client.ResetBMC(t.Context(), "cold"); err != nil || !ok {
		t.Errorf("reset of the BMC: %v, %v", ok, err)
	}
	wantState(t, client, "on")
}
