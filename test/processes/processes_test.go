// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes_test runs each service as a process of its own, over TLS,
// with the machines in a simulator process, and ends them in turn.
package processes_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/launch"
)

const (
	patience = 60 * time.Second

	username = "admin"
	password = "password-of-test"
	token    = "token-of-the-test"
)

func TestMain(m *testing.M) {
	status := rbactest.RunPart(m, "controller")
	launch.CleanUp()
	os.Exit(status)
}

// system is all services of KubeVirtBMC, each a process.
type system struct {
	t             *testing.T
	caFile        string
	rest          string // address of the power service's REST
	ipmi, redfish int    // ports
	services      map[string]*service
}

type service struct {
	program string
	args    []string
	health  string // address
	process *launch.Process
}

// needClients skips a test whose clients are not there: not every machine can
// install them.
func needClients(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (make clients)", program)
		}
	}
}

func start(t *testing.T) *system {
	t.Helper()
	needClients(t, "ipmitool", "curl")
	c := newCredentials(t)
	first := testport.FreeRow(t, 13)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	simulator, power, media, registry := address(0), address(1), address(2), address(3)
	s := &system{t: t, rest: address(4), ipmi: first + 5, redfish: first + 6, services: map[string]*service{}}

	s.caFile = c.ca
	config := c.write(t, "bmcs.yaml", []byte("username: "+username+"\npassword: "+password+"\nbmcs: [{vm: sim-0}]\n"))

	kubevirtbmc := launch.Build(t, "cmd/kubevirtbmc")
	serve := c.serve
	machines := []string{"--hypervisor", "simulator", "--simulator-address", simulator, "--simulator-ca-file", c.ca, "--simulator-token-file", c.token}
	frontend := []string{"--listen", "127.0.0.1", "--registry", registry, "--power", power, "--ca-file", c.ca, "--token-file", c.token}
	for i, p := range []struct {
		name, program string
		args          [][]string
	}{
		{"simulator", kubevirtbmc, [][]string{{"simulator", "--machines", "1"}, serve(simulator)}},
		{"power", launch.Build(t, "services/power"), [][]string{serve(power), {"--rest-listen", s.rest, "--replica", "power-0"}, machines}},
		{"media", launch.Build(t, "services/media"), [][]string{serve(media), machines}},
		{"registry", kubevirtbmc, [][]string{{"registry", "--config", config, "--ipmi-port", fmt.Sprint(s.ipmi), "--redfish-port", fmt.Sprint(s.redfish)}, serve(registry)}},
		{"frontend-ipmi", launch.Build(t, "services/frontend-ipmi"), [][]string{{"--replica", "ipmi-0"}, frontend}},
		{"frontend-redfish", launch.Build(t, "services/frontend-redfish"), [][]string{{"--replica", "redfish-0", "--media", media, "--tls-cert-file", c.cert, "--tls-key-file", c.key}, frontend}},
	} {
		sv := &service{program: p.program, health: address(7 + i)}
		for _, args := range p.args {
			sv.args = append(sv.args, args...)
		}
		sv.args = append(sv.args, "--health-listen", sv.health)
		s.services[p.name] = sv
		s.start(p.name)
	}
	for name := range s.services {
		s.waitReady(name)
	}
	return s
}

func (s *system) start(name string) {
	s.t.Helper()
	sv := s.services[name]
	sv.process = launch.Start(s.t, nil, sv.program, sv.args...)
}

// get returns the HTTP status and text of a health path of a service; status 0
// when it does not answer.
func (s *system) get(name, path string) (int, string) {
	resp, err := http.Get("http://" + s.services[name].health + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func (s *system) waitReady(name string) {
	s.t.Helper()
	s.eventually(name+" ready", func() bool {
		status, _ := s.get(name, "/readyz")
		return status == http.StatusOK
	})
}

func (s *system) eventually(what string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			for name, sv := range s.services {
				s.t.Logf("%s:\n%s", name, sv.process.Stderr())
			}
			s.t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// ipmitool returns what ipmitool prints, and whether it succeeds.
func (s *system) ipmitool(args ...string) (string, bool) {
	cmd := exec.CommandContext(s.t.Context(), "ipmitool", append([]string{
		"-I", "lanplus", "-H", "127.0.0.1", "-p", fmt.Sprint(s.ipmi),
		"-U", username, "-P", password, "-N", "2", "-R", "2",
	}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func (s *system) want(text string, args ...string) {
	s.t.Helper()
	if out, ok := s.ipmitool(args...); !ok || !strings.Contains(out, text) {
		s.t.Errorf("ipmitool %q: %s, want %q", args, out, text)
	}
}

func (s *system) curl(args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "curl", append([]string{"-sS", "--cacert", s.caFile}, args...)...).CombinedOutput()
	if err != nil {
		return err.Error() + ": " + string(out)
	}
	return string(out)
}

// system1 returns what Redfish says of the machine, with the HTTP status.
func (s *system) system1() string {
	return s.curl("-u", username+":"+password, "-w", "%{http_code}", fmt.Sprintf("https://127.0.0.1:%d/redfish/v1/Systems/1", s.redfish))
}

func (s *system) powerURL() string {
	return "https://" + s.rest + "/v1/namespaces/default/bmcs/sim-0/power"
}

type power struct {
	State      string
	InstanceID string `json:"instance_id"`
}

// power asks the power service itself.
func (s *system) power() power {
	s.t.Helper()
	var answer struct{ Status power }
	_ = json.Unmarshal([]byte(s.curl("-H", "Authorization: Bearer "+token, s.powerURL())), &answer)
	return answer.Status
}

func (s *system) switchOn() power {
	s.t.Helper()
	s.want("Up/On", "power", "on")
	s.eventually("power on", func() bool { return s.power().State == "POWER_STATE_ON" })
	return s.power()
}

func TestServices_asProcesses(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name := range s.services {
		for path, text := range map[string]string{"/healthz": "ok", "/metrics": "go_goroutines"} {
			if status, got := s.get(name, path); status != http.StatusOK || !strings.Contains(got, text) {
				t.Errorf("%s%s: %d %.100s", name, path, status, got)
			}
		}
	}
	s.want("Chassis Power is off", "power", "status")
	s.switchOn()
	s.want("Chassis Power is on", "power", "status")
	if got := s.system1(); !strings.Contains(got, `"PowerState":"On"`) {
		t.Errorf("Redfish: %s", got)
	}
	// The request id of the IPMI command is in the logs of both ends.
	ids := 0
	for line := range strings.Lines(s.services["frontend-ipmi"].process.Stderr()) {
		var entry struct{ Request, Action string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Action == "chassis_control" {
			ids++
			if !strings.Contains(s.services["power"].process.Stderr(), entry.Request) {
				t.Errorf("request id %s of the IPMI frontend is not in the power service's log", entry.Request)
			}
		}
	}
	if ids != 1 {
		t.Errorf("%d chassis controls in the IPMI frontend's log, want 1:\n%s", ids, s.services["frontend-ipmi"].process.Stderr())
	}
}

// A power service that is killed in the middle of a power cycle finishes it when
// it is back: the machine ends on, in one new instance.
func TestPower_killedInTheMiddle_finishes(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.switchOn()
	s.want("Cycle", "power", "cycle")
	s.services["power"].process.Kill()
	if got := s.system1(); !strings.HasSuffix(got, "503") {
		t.Errorf("Redfish without the power service: %s, want 503", got)
	}
	if out, ok := s.ipmitool("power", "status"); ok {
		t.Errorf("ipmitool without the power service: %s", out)
	}
	s.start("power")
	s.waitReady("power")
	s.eventually("a new instance that is on", func() bool {
		p := s.power()
		return p.State == "POWER_STATE_ON" && p.InstanceID != first.InstanceID
	})
	second := s.power()
	time.Sleep(3 * time.Second) // A cycle done twice would have made a third by now.
	if third := s.power(); third != second {
		t.Errorf("%+v became %+v: the cycle was done twice", second, third)
	}
	s.eventually("IPMI back", func() bool { out, _ := s.ipmitool("power", "status"); return strings.Contains(out, "is on") })
}

// Frontends go on without the registry, and a frontend that is killed comes
// back.
func TestFrontends_registryGone_thenKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.services["registry"].process.Kill()
	s.want("Chassis Power is off", "power", "status")
	if got := s.system1(); !strings.Contains(got, `"PowerState":"Off"`) {
		t.Errorf("Redfish without the registry: %s", got)
	}
	s.start("registry")
	s.waitReady("registry")
	for _, name := range []string{"frontend-ipmi", "frontend-redfish"} {
		s.services[name].process.Kill()
		s.start(name)
		s.waitReady(name)
	}
	s.eventually("IPMI", func() bool { out, _ := s.ipmitool("power", "status"); return strings.Contains(out, "is off") })
	s.eventually("Redfish", func() bool { return strings.Contains(s.system1(), `"PowerState":"Off"`) })
}

// A wrong token gets nobody in, and no log has a secret.
func TestServices_refuseStrangers(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, header := range map[string]string{"no token": "Accept: */*", "wrong token": "Authorization: Bearer wrong"} {
		if got := s.curl("-o", "/dev/null", "-w", "%{http_code}", "-H", header, s.powerURL()); got != "401" {
			t.Errorf("%s: %s, want 401", name, got)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "curl", "-sS", s.powerURL()).CombinedOutput(); err == nil {
		t.Errorf("a server of an unknown CA was trusted: %s", out)
	}
	s.switchOn()
	for name, sv := range s.services {
		for _, secret := range []string{password, token} {
			if strings.Contains(sv.process.Stderr(), secret) {
				t.Errorf("%s logs a secret", name)
			}
		}
	}
}
