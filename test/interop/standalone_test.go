// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/launch"
)

// The commands that standalone mode prints are pasted as they stand, in order.
func TestStandalone_printedLines_workWhenPasted(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"ipmitool", "curl"} {
		need(t, program)
	}
	// Debian has no grpcurl: make test builds it.
	bin := filepath.Join(launch.Root(), "bin")
	path := "PATH=" + bin + ":" + os.Getenv("PATH")
	first := testport.FreeRow(t, 7)
	// Without credentials in the environment, which are then generated.
	s := launch.Start(t, []string{path}, launch.Build(t, "cmd/kubevirtbmc"), "standalone", "--simulate", "3",
		"--ipmi-port", fmt.Sprint(first), "--redfish-port", fmt.Sprint(first+3), "--api-port", fmt.Sprint(first+6),
		"--ca-out", filepath.Join(t.TempDir(), "ca.pem"))
	s.WaitStdout(t, "Ctrl-C ends it.")
	lines := regexp.MustCompile(`(?m)^  ((?:ipmitool|curl|grpcurl|go run) .*)$`).FindAllStringSubmatch(s.Stdout(), -1)
	programs := map[string]int{}
	for _, match := range lines {
		line := match[1]
		programs[strings.Fields(line)[0]]++
		if strings.HasPrefix(line, "go run ") {
			t.Skipf("grpcurl is not in bin (make bin/grpcurl): its line was not run")
		}
		cmd := exec.Command("sh", "-c", line)
		cmd.Env = append(os.Environ(), path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		// curl succeeds whatever the answer is.
		if strings.Contains(string(out), `"error"`) || strings.Contains(string(out), `"code":`) {
			t.Errorf("%s: %s", line, out)
		}
	}
	if programs["ipmitool"] == 0 || programs["curl"] == 0 || programs["grpcurl"] == 0 {
		t.Errorf("lines for each program: %v, want some for ipmitool, curl and grpcurl; printed:\n%s", programs, s.Stdout())
	}
	if s.Stderr() != "" && strings.Contains(s.Stderr(), "level=ERROR") {
		t.Errorf("errors in the log:\n%s", s.Stderr())
	}
}

func TestStandalone_badStart_saysWhyItCanNotStart(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	program := client{t: t, path: launch.Build(t, "cmd/kubevirtbmc")}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no machines":         {[]string{"standalone"}, "no machines"},
		"missing file":        {[]string{"standalone", "--simulate", "1", "--config", "/nonexistent"}, "no such file"},
		"API port in use":     {[]string{"standalone", "--simulate", "1", "--api-port", strings.TrimPrefix(s.API(), "127.0.0.1:")}, "address already in use"},
		"VM is not simulated": {[]string{"standalone", "--simulate", "1", "--config", writeConfig(t, "bmcs: [{vm: sim-7}]")}, "VM default/sim-7 is not one of the 1 simulated"},
		"ports overlap":       {[]string{"standalone", "--simulate", "3", "--redfish-port", "7442", "--api-port", "7443"}, "--api-port 7443 is among"},
		"too many":            {[]string{"standalone", "--simulate", "1000000"}, "--simulate 1000000"},
		"ports run out":       {[]string{"standalone", "--simulate", "10", "--ipmi-port", "65530"}, "65530 to 65539"},
		"password too long":   {[]string{"standalone", "--simulate", "1"}, "IPMI carries 20"},
		"unknown command":     {[]string{"explode"}, `unknown command "explode"`},
		"certificate alone":   {[]string{"standalone", "--simulate", "1", "--tls-cert-file", "x"}, "go together"},
		"IPMI port in use":    {[]string{"standalone", "--simulate", "1", "--ipmi-port", s.IPMIPort(0), "--redfish-port", fmt.Sprint(testport.Free(t)), "--api-port", fmt.Sprint(testport.Free(t))}, "can't be served"},
		"no simulator there":  {[]string{"standalone", "--simulator-address", "127.0.0.1:1"}, "--simulator-ca-file"},
	} {
		t.Run(name, func(t *testing.T) {
			c := program
			c.t = t
			if name == "password too long" {
				c.env = []string{"BMC_PASSWORD=" + strings.Repeat("x", 21)}
			}
			c.wantFailure(tc.want, tc.args...)
		})
	}
}

// Generated clients read answers by the names in the OpenAPI document.
func TestREST_answers_haveTheNamesOfOpenAPI(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(launch.Root(), "proto", "gen", "openapi", "bmc.swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Definitions map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	api.want("POWER_STATE_ON", "-d", `{"action":"POWER_ACTION_ON","wait":"30s"}`, api.base+"/power")
	for path, tc := range map[string]struct{ field, definition string }{
		"/power":     {"status", "PowerStatus"},
		"/boot":      {"status", "BootStatus"},
		"/inventory": {"inventory", "Inventory"},
	} {
		var answer map[string]map[string]any
		api.get(path, &answer)
		if len(answer[tc.field]) < 3 {
			t.Errorf("%s: answer %v has hardly any fields", path, answer)
		}
		for name := range answer[tc.field] {
			if _, ok := document.Definitions[tc.definition].Properties[name]; !ok {
				t.Errorf("%s: field %q is not in the document's %s", path, name, tc.definition)
			}
		}
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bmcs.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestREST(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 2)
	api := newREST(t, s, "sim-1")
	status := need(t, "curl", "-sS", "--cacert", s.CAFile, "-o", "/dev/null", "-w", "%{http_code}")
	bearer := "Authorization: Bearer " + s.Token
	power := api.base + "/power"
	for name, tc := range map[string]struct {
		want string
		args []string
	}{
		"no token":          {"401", []string{power}},
		"wrong token":       {"401", []string{"-H", "Authorization: Bearer nope", power}},
		"right token":       {"200", []string{"-H", bearer, power}},
		"unknown BMC":       {"404", []string{"-H", bearer, strings.Replace(power, "sim-1", "sim-9", 1)}},
		"bad name":          {"400", []string{"-H", bearer, strings.Replace(power, "sim-1", "Sim_1", 1)}},
		"malformed JSON":    {"400", []string{"-H", bearer, "-d", "{", power}},
		"no action":         {"400", []string{"-H", bearer, "-d", "{}", power}},
		"unknown action":    {"400", []string{"-H", bearer, "-d", `{"action":"EXPLODE"}`, power}},
		"unknown field":     {"400", []string{"-H", bearer, "-d", `{"actoin":"POWER_ACTION_ON"}`, power}},
		"not in this state": {"400", []string{"-H", bearer, "-d", `{"action":"POWER_ACTION_POWER_CYCLE"}`, power}},
		"unknown path":      {"404", []string{"-H", bearer, api.base + "/nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := status
			c.t = t
			c.want(tc.want, tc.args...)
		})
	}
	api.want(`"POWER_STATE_ON"`, "-d", `{"action":"POWER_ACTION_ON","wait":"30s"}`, power)
	api.want(`"BOOT_TARGET_HDD"`, "-X", "PUT", "-d", `{"persistence":"BOOT_PERSISTENCE_ONCE","target":"BOOT_TARGET_HDD"}`, api.base+"/boot/override")
	api.want(`"sim-1"`, api.base+"/inventory")
	api.want(`"CD1"`, api.base+"/media")
	// A watch says at once what is, and goes on.
	watch := api.run("--max-time", "2", api.base+"/power:watch")
	if !strings.Contains(watch.stdout, "POWER_STATE_ON") || watch.exit != 28 {
		t.Errorf("watch: %v, want the present state and then the time-out (28)", watch)
	}
	// Refusals are HTTP's own.
	headers := need(t, "curl", "-sS", "--cacert", s.CAFile, "-o", "/dev/null", "-D", "-")
	headers.want(`www-authenticate: Bearer realm="KubeVirtBMC"`, power)
	headers.want("HTTP/2 405", "-X", "DELETE", "-H", bearer, power)
	headers.want("allow: GET, POST", "-X", "DELETE", "-H", bearer, power)
	headers.want("x-request-id: mine", "-H", bearer, "-H", "X-Request-Id: mine", power)
	api.want(`"INVALID_REQUEST"`, "-d", "x", power)
	large := filepath.Join(t.TempDir(), "large.json")
	if err := os.WriteFile(large, []byte(`{"action":"`+strings.Repeat("x", 6<<20)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	api.want("longer than 1 MiB", "--data-binary", "@"+large, power)
	if other := newREST(t, s, "sim-0").power(); other.State != "POWER_STATE_OFF" {
		t.Errorf("sim-0 is %s after sim-1 was switched on", other.State)
	}
}

// Streams don't hold up the end, and the registry, which tells passwords, is
// not for holders of the API token.
func TestStandalone_openWatch_doesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api := newREST(t, s, "sim-0")
	watch := exec.CommandContext(t.Context(), api.path, append(api.args, "-N", api.base+"/power:watch")...)
	var out launch.Output
	watch.Stdout = &out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "present state on the watch", func() bool { return strings.Contains(out.String(), "POWER_STATE_OFF") })
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("the watch was cut off: %v", err)
	}
	if !strings.Contains(out.String(), "the service is stopping") {
		t.Errorf("the watch does not say why it ended:\n%s", out.String())
	}
	if strings.Contains(s.Stderr(), "cut off") {
		t.Errorf("calls were cut off:\n%s", s.Stderr())
	}
}

func TestStandalone_registry_isForFrontendsAlone(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	path := filepath.Join(launch.Root(), "bin", "grpcurl")
	if _, err := os.Stat(path); err != nil {
		t.Skip("grpcurl is not in bin (make bin/grpcurl)")
	}
	need(t, path).wantFailure("PermissionDenied", "-cacert", s.CAFile, "-H", "authorization: Bearer "+s.Token,
		"-d", `{"hello":{"replica":"stranger","protocol":"PROTOCOL_REDFISH"}}`, s.API(), "bmc.registry.v1.RegistryService/Subscribe")
}

// Both protocols and the API tell the same, whoever made the change.
func TestProtocols_agree(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	api, tool := newREST(t, s, "sim-0"), ipmitool(t, s, 0)
	curl := need(t, "curl", "-sS", "--cacert", s.CAFile, "-u", s.Username+":"+s.Password)
	system := "https://" + s.Redfish(0) + "/redfish/v1/Systems/1"
	check := func(ipmi, redfish string) {
		t.Helper()
		tool.want("Chassis Power is "+ipmi, "power", "status")
		curl.want(`"PowerState":"`+redfish+`"`, system)
	}
	check("off", "Off")
	tool.want("Up/On", "power", "on")
	api.waitPower("POWER_STATE_ON")
	check("on", "On")
	curl.want("", "-H", "Content-Type: application/json", "-d", `{"ResetType":"ForceOff"}`, system+"/Actions/ComputerSystem.Reset")
	check("off", "Off")

	tool.want("Set Boot Device to disk", "chassis", "bootdev", "disk", "options=persistent")
	curl.want(`"BootSourceOverrideTarget":"Hdd"`, system)
	curl.want(`"BootSourceOverrideEnabled":"Continuous"`, system)
	curl.want("", "-X", "PATCH", "-H", "Content-Type: application/json", "-d", `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`, system)
	tool.want("Force PXE", "chassis", "bootparam", "get", "5")
	tool.want("Options apply to only next boot", "chassis", "bootparam", "get", "5")
}
