// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"kubevirtbmc.dev/test/launch"
)

// python runs a script of testdata with Debian's interpreter, which has
// Debian's client libraries.
func python(t *testing.T, module, script string, args ...string) {
	t.Helper()
	interpreter := need(t, "/usr/bin/python3")
	if r := interpreter.run("-c", "import "+module); r.exit != 0 {
		t.Skipf("python3-%s is not installed (make clients)", module)
	}
	r := interpreter.run(append([]string{"testdata/" + script}, args...)...)
	t.Log(r.stdout)
	if r.exit != 0 {
		t.Errorf("%s: %v", script, r)
	}
}

func TestSushy(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	python(t, "sushy", "sushy_power.py", "https://"+s.Redfish(0), s.Username, s.Password)
}

func TestPyghmi(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	python(t, "pyghmi", "pyghmi_power.py", s.IPMIPort(0), s.Username, s.Password)
}

func TestGofish(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	for _, basic := range []bool{false, true} {
		c, err := gofish.Connect(gofish.ClientConfig{
			Endpoint: "https://" + s.Redfish(0), Username: s.Username, Password: s.Password, Insecure: true, BasicAuth: basic,
		})
		if err != nil {
			t.Fatal(err)
		}
		systems, err := c.Service.Systems()
		if err != nil || len(systems) != 1 {
			t.Fatalf("%d systems, %v; want one", len(systems), err)
		}
		system := systems[0]
		if system.PowerState != schemas.OffPowerState {
			t.Errorf("power state %s, want Off", system.PowerState)
		}
		if err := system.SetBoot(&schemas.Boot{BootSourceOverrideTarget: schemas.PxeBootSource, BootSourceOverrideEnabled: schemas.OnceBootSourceOverrideEnabled}); err != nil {
			t.Errorf("set boot: %v", err)
		}
		if got := api.override(); got.Target != "BOOT_TARGET_PXE" || got.Persistence != "BOOT_PERSISTENCE_ONCE" {
			t.Errorf("override %+v after SetBoot", got)
		}
		if _, err := system.Reset(schemas.OnResetType); err != nil {
			t.Errorf("reset On: %v", err)
		}
		api.waitPower("POWER_STATE_ON")
		if systems, err = c.Service.Systems(); err != nil || systems[0].PowerState != schemas.OnPowerState {
			t.Errorf("systems after On: %v", err)
		}
		managers, err := c.Service.Managers()
		if err != nil || len(managers) != 1 {
			t.Errorf("%d managers, %v; want one", len(managers), err)
		}
		chassis, err := c.Service.Chassis()
		if err != nil || len(chassis) != 1 {
			t.Errorf("%d chassis, %v; want one", len(chassis), err)
		}
		if _, err := system.Reset(schemas.ForceOffResetType); err != nil {
			t.Errorf("reset ForceOff: %v", err)
		}
		api.waitPower("POWER_STATE_OFF")
		c.Logout()
	}
	if _, err := gofish.Connect(gofish.ClientConfig{Endpoint: "https://" + s.Redfish(0), Username: s.Username, Password: "wrong", Insecure: true}); err == nil {
		t.Error("gofish logged in with a wrong password")
	}
}

func TestRedfishtool(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	for _, auth := range []string{"Basic", "Session"} {
		tool := need(t, "redfishtool", "-r", s.Redfish(0), "-S", "Always", "-A", auth, "-u", s.Username, "-p", s.Password, "Systems", "-F")
		tool.want(`"PowerState": "Off"`, "get")
		tool.want("", "setBootOverride", "Once", "Pxe")
		if got := api.override(); got.Target != "BOOT_TARGET_PXE" {
			t.Errorf("override %+v after setBootOverride", got)
		}
		tool.want("", "reset", "On")
		api.waitPower("POWER_STATE_ON")
		tool.want("", "reset", "ForceOff")
		api.waitPower("POWER_STATE_OFF")
	}
}

func TestCurl_redfish(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	base := "https://" + s.Redfish(0) + "/redfish/v1"
	anonymous := need(t, "curl", "-sS", "--cacert", s.CAFile, "-w", "\n%{http_code}")
	curl := need(t, "curl", "-sS", "--cacert", s.CAFile, "-w", "\n%{http_code}", "-u", s.Username+":"+s.Password)
	const asJSON = "Content-Type: application/json"

	anonymous.want("\n200", base+"/")
	anonymous.want("\n200", base)
	anonymous.want("\n401", base+"/Systems/1")
	need(t, "curl", "-sS", "--cacert", s.CAFile, "-w", "\n%{http_code}", "-u", s.Username+":wrong").want("\n401", base+"/Systems/1")
	need(t, "curl", "-sS", "--cacert", s.CAFile, "-w", "\n%{http_code}", "-u", "nobody:"+s.Password).want("\n401", base+"/Systems/1")
	curl.want(`"PowerState":"Off"`, base+"/Systems/1")
	curl.want("\n200", base+"/Systems/1/")
	curl.want("\n200", base+"/Managers/BMC")
	curl.want("\n200", base+"/Chassis/1")
	curl.want("\n404", base+"/Systems/2")

	reset := base + "/Systems/1/Actions/ComputerSystem.Reset"
	curl.want("\n204", "-H", asJSON, "-d", `{"ResetType":"On"}`, reset)
	api.waitPower("POWER_STATE_ON")
	curl.want(`"PowerState":"On"`, base+"/Systems/1")
	curl.want("\n204", "-H", asJSON, "-d", `{"ResetType":"On"}`, reset)
	curl.want("\n400", "-H", asJSON, "-d", `{"ResetType":"Explode"}`, reset)
	curl.want("\n400", "-H", asJSON, "-d", `{"ResetType":`, reset)
	curl.want("\n400", "-H", asJSON, "-d", `[]`, reset)
	large := filepath.Join(t.TempDir(), "large.json")
	if err := os.WriteFile(large, []byte(`{"ResetType":"`+strings.Repeat("x", 4<<20)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	curl.want("\n413", "-H", asJSON, "-H", "Expect:", "--data-binary", "@"+large, reset)
	curl.want("\n405", "-X", "DELETE", base+"/Systems/1")
	curl.want("\n204", "-H", asJSON, "-d", `{"ResetType":"ForceOff"}`, reset)
	api.waitPower("POWER_STATE_OFF")

	r := curl.run("-X", "PATCH", "-H", asJSON, "-d", `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Continuous"}}`, base+"/Systems/1")
	if !strings.HasSuffix(r.stdout, "200") && !strings.HasSuffix(r.stdout, "204") {
		t.Errorf("PATCH Boot: %v", r)
	}
	if got := api.override(); got.Target != "BOOT_TARGET_CD" || got.Persistence != "BOOT_PERSISTENCE_CONTINUOUS" {
		t.Errorf("override %+v after PATCH", got)
	}
	// The machine has UEFI firmware and keeps it.
	curl.want("\n400", "-X", "PATCH", "-H", asJSON, "-d", `{"Boot":{"BootSourceOverrideMode":"Legacy"}}`, base+"/Systems/1")
	if strings.Contains(s.Stderr(), s.Password) {
		t.Error("the log has a password in it")
	}
}

// A request id follows a call from the protocol to the backend's log.
func TestRequestID_followsTheCall(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	curl := need(t, "curl", "-sS", "--cacert", s.CAFile, "-o", "/dev/null", "-D", "-", "-u", s.Username+":"+s.Password)
	r := curl.want("", "-H", "Content-Type: application/json", "-d", `{"ResetType":"On"}`, "https://"+s.Redfish(0)+"/redfish/v1/Systems/1/Actions/ComputerSystem.Reset")
	var id string
	for line := range strings.Lines(r.stdout) {
		if name, value, ok := strings.Cut(line, ":"); ok && http.CanonicalHeaderKey(name) == "X-Request-Id" {
			id = strings.TrimSpace(value)
		}
	}
	if id == "" {
		t.Fatalf("no X-Request-Id in the answer: %v", r)
	}
	eventually(t, "audit line of the power service with the id "+id, func() bool {
		for line := range strings.Lines(s.Stderr()) {
			if strings.Contains(line, "audit=true") && strings.Contains(line, "request="+id) && strings.Contains(line, "user=admin") && strings.Contains(line, "protocol=redfish") {
				return true
			}
		}
		return false
	})
}
