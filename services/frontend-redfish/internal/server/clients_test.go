// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stmcginnis/gofish"
	gofishschemas "github.com/stmcginnis/gofish/schemas"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// run runs a client program and returns its output.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	// python-requests would check certificates in spite of verify=False.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}, key) || strings.HasSuffix(strings.ToLower(key), "_proxy")
	})
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

func TestClient_gofish(t *testing.T) {
	t.Parallel()
	for _, basic := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("basic %v, connections kept %v", basic, keep), func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				client, err := gofish.ConnectContext(t.Context(), gofish.ClientConfig{
					Endpoint: b.base, Username: admin, Password: password, Insecure: true, BasicAuth: basic, ReuseConnections: keep,
				})
				if err != nil {
					t.Fatal(err)
				}
				gofishScenario(t, b, client)
				if !basic && len(b.server.bmcs[keyOf(b.entry.GetBmc())].sessions.List()) != 1 {
					t.Error("there is not one session")
				}
				client.Logout()
				if n := len(b.server.bmcs[keyOf(b.entry.GetBmc())].sessions.List()); n != 0 {
					t.Errorf("%d sessions are left after the logout", n)
				}
			})
		}
	}
}

func gofishScenario(t *testing.T, b *bench, client *gofish.APIClient) {
	t.Helper()
	fatal := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	systems, err := client.Service.Systems()
	fatal("systems", err)
	if len(systems) != 1 {
		t.Fatalf("%d systems, want 1", len(systems))
	}
	system := systems[0]
	if system.Name != "lab/vm-1" || system.PowerState != gofishschemas.OnPowerState {
		t.Errorf("system %q is %q", system.Name, system.PowerState)
	}
	for _, reset := range []gofishschemas.ResetType{
		gofishschemas.ForceOffResetType, gofishschemas.OnResetType, gofishschemas.GracefulShutdownResetType, gofishschemas.ForceOnResetType,
		gofishschemas.ForceRestartResetType, gofishschemas.PowerCycleResetType, gofishschemas.PauseResetType, gofishschemas.ResumeResetType,
	} {
		_, err := system.Reset(reset)
		fatal(string(reset), err)
	}
	fatal("boot once", system.SetBoot(&gofishschemas.Boot{
		BootSourceOverrideTarget: gofishschemas.PxeBootSource, BootSourceOverrideEnabled: gofishschemas.OnceBootSourceOverrideEnabled,
	}))
	if err := system.SetBoot(&gofishschemas.Boot{
		BootSourceOverrideTarget: gofishschemas.PxeBootSource, BootSourceOverrideEnabled: gofishschemas.OnceBootSourceOverrideEnabled,
		BootSourceOverrideMode: gofishschemas.LegacyBootSourceOverrideMode,
	}); err == nil {
		t.Error("Legacy on a UEFI machine is accepted")
	}
	systems, err = client.Service.Systems()
	fatal("systems again", err)
	if got := systems[0].Boot; got.BootSourceOverrideTarget != gofishschemas.PxeBootSource || got.BootSourceOverrideEnabled != gofishschemas.OnceBootSourceOverrideEnabled {
		t.Errorf("boot = %+v", got)
	}
	managers, err := client.Service.Managers()
	fatal("managers", err)
	if len(managers) != 1 || managers[0].ID != "BMC" {
		t.Errorf("managers = %v", managers)
	}
	_, err = managers[0].Reset(gofishschemas.GracefulRestartResetType)
	fatal("manager reset", err)
	of, err := system.ManagedBy()
	fatal("managed by", err)
	if len(of) != 1 {
		t.Errorf("the system has %d managers", len(of))
	}
	chassis, err := client.Service.Chassis()
	fatal("chassis", err)
	if len(chassis) != 1 {
		t.Errorf("%d chassis", len(chassis))
	}
	processors, err := system.Processors()
	fatal("processors", err)
	memory, err := system.Memory()
	fatal("memory", err)
	interfaces, err := system.EthernetInterfaces()
	fatal("interfaces", err)
	simple, err := system.SimpleStorage()
	fatal("simple storage", err)
	storage, err := system.Storage()
	fatal("storage", err)
	drives, err := storage[0].Drives()
	fatal("drives", err)
	if got := []int{len(processors), len(memory), len(interfaces), len(simple), len(storage), len(drives)}; !slices.Equal(got, []int{2, 1, 2, 1, 1, 2}) {
		t.Errorf("processors, memory, interfaces, simple storage, storage, drives = %v", got)
	}
	_, err = client.Service.Registries()
	fatal("registries", err)
}

func TestClient_sushy(t *testing.T) {
	t.Parallel()
	if out, err := run(t, "/usr/bin/python3", "-c", "import sushy"); err != nil {
		t.Skipf("python3-sushy is not installed: %s", out)
	}
	for _, mode := range []string{"session", "basic"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			out, err := run(t, "/usr/bin/python3", filepath.Join("testdata", "sushy_client.py"), b.base, mode)
			if err != nil || !strings.HasSuffix(strings.TrimSpace(out), "ok") {
				t.Errorf("sushy: %v\n%s", err, out)
			}
		})
	}
}

func TestClient_redfishtool(t *testing.T) {
	t.Parallel()
	for _, auth := range []string{"Session", "Basic"} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			tool := func(args ...string) string {
				t.Helper()
				out, err := run(t, "redfishtool", append([]string{
					"-r", strings.TrimPrefix(b.base, "https://"), "-S", "Always", "-A", auth, "-u", admin, "-p", password,
				}, args...)...)
				if err != nil {
					t.Errorf("redfishtool %v: %v\n%s", args, err, out)
				}
				return out
			}
			if out := tool("Systems", "-F", "get"); !strings.Contains(out, `"lab/vm-1"`) {
				t.Errorf("Systems get: %s", out)
			}
			tool("Systems", "-F", "reset", "ForceOff")
			tool("Systems", "-F", "setBootOverride", "Once", "Pxe")
			if out := tool("Systems", "-F", "-P", "Boot", "get"); !strings.Contains(out, `"Pxe"`) {
				t.Errorf("Boot: %s", out)
			}
			tool("Systems", "-F", "reset", "On")
			tool("Managers", "-F", "get")
			tool("Chassis", "-F", "get")
			tool("Systems", "-I", "1", "Processors", "list")
			want := []powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_FORCE_OFF, powerv1.PowerAction_POWER_ACTION_ON}
			if diff := cmp.Diff(want, b.backend.Actions()); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if n := len(b.server.bmcs[keyOf(b.entry.GetBmc())].sessions.List()); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

func TestClient_curl(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, b.entry.GetRedfish().GetCertificate().GetChainPem(), 0o600); err != nil {
		t.Fatal(err)
	}
	curl := func(args ...string) string {
		t.Helper()
		out, err := run(t, "curl", append([]string{"-sS", "--fail-with-body", "--cacert", ca}, args...)...)
		if err != nil {
			t.Errorf("curl %v: %v\n%s", args, err, out)
		}
		return out
	}
	login := admin + ":" + password
	if out := curl(b.base + "/redfish/v1"); !strings.Contains(out, `"RedfishVersion"`) {
		t.Errorf("root: %s", out)
	}
	curl("-u", login, "-H", "Content-Type: application/json", "-d", `{"ResetType":"ForceOff"}`, b.base+resetPath)
	curl("-u", login, "-X", "PATCH", "-H", "Content-Type: application/json", "-d",
		`{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once"}}`, b.base+systemPath)
	var system struct {
		PowerState string
		Boot       struct{ BootSourceOverrideTarget string }
	}
	if err := json.Unmarshal([]byte(curl("-u", login, b.base+systemPath+"/")), &system); err != nil {
		t.Fatal(err)
	}
	if system.PowerState != "Off" || system.Boot.BootSourceOverrideTarget != "Cd" {
		t.Errorf("system = %+v", system)
	}
	headers := curl("-D", "-", "-o", os.DevNull, "-H", "Content-Type: application/json", "-d",
		`{"UserName":"admin","Password":"correct horse"}`, b.base+sessionPath)
	if !strings.Contains(headers, "201 Created") || !strings.Contains(headers, "X-Auth-Token: ") {
		t.Errorf("login: %s", headers)
	}
}

// MAAS asks for a fixed list of things with Basic authentication, and takes the
// tag from the body.
func TestClient_maas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.get("/redfish/v1/Systems/")
	first, _ := a.at("Members").([]any)[0].(map[string]any)
	path, _ := first["@odata.id"].(string)
	if path != systemPath {
		t.Fatalf("first system = %q", path)
	}
	etag, _ := b.get(path).at("@odata.etag").(string)
	steps := []request{
		{method: "PATCH", path: path, body: `{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe"}}`, header: map[string][]string{"If-Match": {etag}}},
		{method: "POST", path: path + "/Actions/ComputerSystem.Reset", body: `{"ResetType":"ForceOff"}`},
		{method: "POST", path: path + "/Actions/ComputerSystem.Reset", body: `{"ResetType":"On"}`},
		{method: "POST", path: path + "/Actions/ComputerSystem.Reset", body: `{"ResetType":"GracefulRestart"}`},
	}
	for _, r := range steps {
		if a := b.do(r); a.status > 299 {
			t.Errorf("%s %s = %d %s", r.method, r.path, a.status, a.raw)
		}
	}
	if got := b.get(path).at("PowerState"); got != "On" {
		t.Errorf("PowerState = %v", got)
	}
}
