// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/launch"
)

// mostAgentMemory is what an agent with clients may use, in bytes: upstream's
// needs 46 MiB.
const mostAgentMemory = 40 << 20

// An agent serves its BMC over both protocols, and no other of the registry's.
func TestAgent_servesItsBMCAlone(t *testing.T) {
	t.Parallel()
	needClients(t, "ipmitool", "curl")
	c := newCredentials(t)
	first := testport.FreeRow(t, 12)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", first+i) }
	simulator, power, media, registry := address(0), address(1), address(2), address(3)
	// The second of each pair is the other BMC's.
	s := &system{t: t, caFile: c.ca, ipmi: first + 4, redfish: first + 6, services: map[string]*service{}}
	bmcs := c.write(t, "bmcs.yaml", []byte("username: "+username+"\npassword: "+password+"\nbmcs: [{vm: sim-0}, {vm: sim-1}]\n"))
	kubevirtbmc := launch.Build(t, "cmd/kubevirtbmc")
	machines := []string{"--hypervisor", "simulator", "--simulator-address", simulator, "--simulator-ca-file", c.ca, "--simulator-token-file", c.token}
	for i, p := range []struct {
		name, program string
		args          [][]string
	}{
		{"simulator", kubevirtbmc, [][]string{{"simulator", "--machines", "2"}, c.serve(simulator)}},
		{"power", launch.Build(t, "services/power"), [][]string{c.serve(power), machines}},
		{"registry", kubevirtbmc, [][]string{{"registry", "--config", bmcs, "--ipmi-port", fmt.Sprint(s.ipmi), "--redfish-port", fmt.Sprint(s.redfish)}, c.serve(registry)}},
		{"virtbmc", launch.Build(t, "cmd/virtbmc"), [][]string{{
			"--bmc", "default/sim-0", "--listen", "127.0.0.1", "--registry", registry, "--power", power, "--media", media, "--replica", "agent-0",
			"--ca-file", c.ca, "--token-file", c.token, "--tls-cert-file", c.cert, "--tls-key-file", c.key,
		}}},
	} {
		sv := &service{program: p.program, health: address(8 + i)}
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

	s.want("Chassis Power is off", "power", "status")
	s.want("Up/On", "power", "on")
	s.eventually("On over Redfish", func() bool { return strings.Contains(s.system1(), `"PowerState":"On"`) })
	if conn, err := net.Dial("tcp", address(7)); err == nil {
		conn.Close()
		t.Error("the other BMC's Redfish is served")
	}
	s.ipmi++
	if out, ok := s.ipmitool("power", "status"); ok {
		t.Errorf("the other BMC's IPMI is served: %s", out)
	}
	s.ipmi--
	if log := s.services["virtbmc"].process.Stderr(); strings.Count(log, "this frontend serves BMC default/sim-0 alone") != 2 {
		t.Errorf("the other BMC is not refused once for each protocol:\n%s", log)
	}

	_, metrics := s.get("virtbmc", "/metrics")
	memory := metric(t, metrics, "process_resident_memory_bytes")
	t.Logf("the agent has %.1f MiB in memory, of which Go's heap has %.1f MiB", memory/(1<<20), metric(t, metrics, "go_memstats_heap_inuse_bytes")/(1<<20))
	if memory > mostAgentMemory {
		t.Errorf("the agent has %.0f bytes in memory, want at most %d", memory, mostAgentMemory)
	}

	// It goes on without the registry, and ends well on its own.
	s.services["registry"].process.Kill()
	s.want("Chassis Power is on", "power", "status")
	if err := s.services["virtbmc"].process.Stop(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if status, _ := s.get("virtbmc", "/readyz"); status == http.StatusOK {
		t.Error("it is ready after its end")
	}
	for _, secret := range []string{password, token} {
		if strings.Contains(s.services["virtbmc"].process.Stderr(), secret) {
			t.Error("the agent logs a secret")
		}
	}
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, text, name string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
