// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build integration

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestAPI(t *testing.T) {
	if os.Getenv("KUBECONFIG") != "" {
		t.Skip("the cluster of KUBECONFIG is there already")
	}
	c := open(t, Options{Level: LevelAPI})
	s, err := c.output(t.Context(), "get", "crd", "-o", `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Established")].status}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubevirts", "virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations"} {
		if want := name + ".kubevirt.io=True\n"; !strings.Contains(s, want) {
			t.Errorf("definitions are %q, want %q among them", s, want)
		}
	}
	// The real schema decides what is a VM.
	vm := `{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a", "namespace": "default"}, "spec": {"runStrategy": "Manual", "template": {"spec": {"domain": {"devices": {}}}}}}`
	if err := c.Apply(t.Context(), []byte(vm)); err != nil {
		t.Error(err)
	}
	if err := c.Apply(t.Context(), []byte(strings.Replace(vm, `"template"`, `"pattern"`, 1))); err == nil {
		t.Error("a VM without a template was accepted")
	}
	same, err := Attach(t.Context(), c.Dir)
	if err != nil || same.Level != LevelAPI {
		t.Errorf("Attach() = %+v, %v, want the cluster", same, err)
	}
}

// versions are what the test brings up: all, or the one that is asked for.
func versions() []string {
	if v := os.Getenv("KUBEVIRT_VERSION"); v != "" {
		return []string{v}
	}
	return KubeVirtVersions()[:1]
}

func TestKubeVirt(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			o := Options{Level: LevelKubeVirt, KubeVirtVersion: version}
			if version == "v1.8.4" { // the first one that has it
				o.FeatureGates = []string{"RebootPolicy"}
			}
			c := open(t, o)
			if c.NodeIP != "" {
				t.Run("network", func(t *testing.T) { testNetwork(t, c) })
			}
			t.Run("power", func(t *testing.T) { testPower(t, c) })
			if c.Level == LevelKubeVirt {
				t.Run("guests", func(t *testing.T) { testGuests(t, c) })
				if o.FeatureGates != nil {
					t.Run("reboot policy", func(t *testing.T) { testRebootPolicy(t, c) })
				}
			}
		})
	}
}

// testPower runs what a BMC does through KubeVirt's own API.
func testPower(t *testing.T, c *Cluster) {
	m := newMachine(t, c, "power", "Manual", GuestDiskImage, 30, "")
	if err := m.put(false, "stop", "{}"); err == nil || !strings.Contains(err.Error(), "VM is not running") {
		t.Errorf("stop of a stopped VM: %v, want the complaint that it is not running", err)
	}
	m.mustPut(false, "start", "{}")
	uid, _ := m.wait("Running", 40*time.Second)
	if err := m.put(false, "start", "{}"); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("start of a running VM: %v, want the complaint that it is running", err)
	}
	readUntil(t, m.console(), "root")

	m.mustPut(true, "pause", "{}")
	m.waitPaused("True")
	m.mustPut(true, "unpause", "{}")
	m.waitPaused("")
	m.mustPut(true, "reset", "{}")
	m.mustPut(true, "softreboot", "{}")
	if got, _ := m.wait("Running", 10*time.Second); got != uid {
		t.Errorf("the instance is %s after a reset and a soft reboot, want still %s", got, uid)
	}
	m.mustPut(false, "stop", "{}")
	m.wait("", time.Minute)
}

// testGuests runs guests of several habits at the same time, under the real
// virt-controller.
func testGuests(t *testing.T, c *Cluster) {
	const guest = "guest.kubevirtbmc.dev/"
	t.Run("a graceful stop ends as Succeeded and goes", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "graceful", "Manual", GuestDiskImage, 30, "")
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		m.mustPut(false, "stop", "{}")
		if _, took := m.wait("", time.Minute); took > 25*time.Second {
			t.Errorf("took %s, as if the guest had not reacted", took)
		}
	})
	t.Run("a guest that ignores ACPI is destroyed when its grace period is over", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "stubborn", "Manual", GuestDiskImage, 12, guest+`ignore-acpi: "true"`)
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		m.mustPut(false, "stop", "{}")
		if _, took := m.wait("Failed", time.Minute); took < 8*time.Second {
			t.Errorf("took %s, want the grace period of 12s", took)
		}
		m.wait("", time.Minute)
	})
	t.Run("a stop without grace is fast", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "forced", "Manual", GuestDiskImage, 180, guest+`ignore-acpi: "true"`)
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		m.mustPut(false, "stop", `{"gracePeriod": 0}`)
		m.wait("", 30*time.Second)
	})
	t.Run("a guest under Manual that powers itself off leaves a Succeeded instance", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "poweroff", "Manual", GuestDiskImage, 30, "")
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		con := m.console()
		if _, err := con.Write([]byte("poweroff\r")); err != nil {
			t.Fatal(err)
		}
		m.wait("Succeeded", 30*time.Second)
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
	})
	t.Run("a guest under Always that powers itself off comes back as another instance", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "always", "Always", GuestDiskImage, 30, "")
		first, _ := m.wait("Running", 40*time.Second)
		if _, err := m.console().Write([]byte("poweroff\r")); err != nil {
			t.Fatal(err)
		}
		second := first
		for start := time.Now(); second == first && time.Since(start) < time.Minute; time.Sleep(time.Second) {
			second, _ = m.wait("Running", 40*time.Second)
		}
		if second == first {
			t.Errorf("the instance is still %s", first)
		}
	})
	t.Run("a crash ends as Failed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "crash", "Manual", GuestDiskImage, 30, guest+`crash-after: "4s"`)
		m.mustPut(false, "start", "{}")
		m.wait("Failed", time.Minute)
	})
	t.Run("the guest agent is known where the guest has one", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "agent", "Manual", GuestDiskImage, 30, guest+`agent: "true"`)
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		s, err := c.output(t.Context(), "get", "--raw", "/apis/subresources.kubevirt.io/v1/namespaces/"+m.namespace+"/virtualmachineinstances/"+m.name+"/guestosinfo")
		if err != nil {
			t.Fatal(err)
		}
		if want := `"hostname":"agent"`; !strings.Contains(strings.ReplaceAll(s, " ", ""), want) {
			t.Errorf("guestosinfo is %s, want %s in it", s, want)
		}
		// The pod's address, not the one behind masquerade. Up to 1.7 a link-local
		// one follows, which 1.8 leaves out behind masquerade.
		s, err = c.output(t.Context(), "get", "vmi", "-n", m.namespace, m.name, "-o", `jsonpath={.status.interfaces[0].infoSource}/{.status.interfaces[0].interfaceName}/{.status.interfaces[0].ipAddress} {.status.interfaces[0].ipAddresses} {.status.volumeStatus[0].target}`)
		if err != nil {
			t.Fatal(err)
		}
		ip, err := c.output(t.Context(), "get", "pod", "-n", m.namespace, "-l", "kubevirt.io=virt-launcher", "-o", "jsonpath={.items[0].status.podIP}")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"domain, guest-agent/eth0/" + ip + " ", `["` + ip + `"`, "] vda"} {
			if !strings.Contains(s, want) {
				t.Errorf("interface and volume are %s, want %q among it", s, want)
			}
		}
	})
	t.Run("a guest runs on where it migrates to", func(t *testing.T) {
		t.Parallel()
		testMigration(t, c)
	})
	t.Run("the console echoes and belongs to who came last", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, c, "console", "Manual", GuestDiskImage, 30, "")
		m.mustPut(false, "start", "{}")
		m.wait("Running", 40*time.Second)
		first := m.console()
		readUntil(t, first, "Guest booted from disk root (boot order 1)")
		second := m.console()
		b := make([]byte, 256)
		for n, err := 0, error(nil); err == nil; n, err = first.Read(b) {
			_ = n
		}
		if _, err := second.Write([]byte("hello\r")); err != nil {
			t.Fatal(err)
		}
		readUntil(t, second, "hello\r\n")
	})
}

// testMigration moves a guest to the other node and back. It has a container
// disk, which the pod that it moves to has to find by its digest.
func testMigration(t *testing.T, c *Cluster) {
	m := newMachine(t, c, "migration", "Manual", GuestDiskImage, 30, "")
	m.mustPut(false, "start", "{}")
	uid, _ := m.wait("Running", 40*time.Second)
	first := m.node()
	for _, name := range []string{"there", "back"} {
		from, con := m.node(), m.console()
		if _, err := con.Write([]byte("bo")); err != nil {
			t.Fatal(err)
		}
		readUntil(t, con, "bo")
		migration := fmt.Sprintf(`{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": {"name": %q, "namespace": %q}, "spec": {"vmiName": %q}}`, name, m.namespace, m.name)
		if err := c.Apply(t.Context(), []byte(migration)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := c.output(t.Context(), "wait", "-n", m.namespace, "vmim/"+name, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"); err != nil {
			t.Fatal(err)
		}
		t.Logf("moved from %s to %s in %s", from, m.node(), time.Since(start).Round(100*time.Millisecond))
		if _, err := io.Copy(io.Discard, con); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the console ended with %v, want it to be hung up", err)
		}
		if m.node() == from {
			t.Errorf("it is still on %s", from)
		}
		// The guest remembers what was typed before the move: had it booted again
		// it would not know the command.
		con = m.console()
		if _, err := con.Write([]byte("ot\r")); err != nil {
			t.Fatal(err)
		}
		readUntil(t, con, "ot\r\nGuest booted from disk root")
	}
	if got, _ := m.wait("Running", 10*time.Second); got != uid || m.node() != first {
		t.Errorf("instance %s on %s, want still %s and back on %s", got, m.node(), uid, first)
	}
	m.mustPut(false, "stop", "{}")
	m.wait("", time.Minute)
}

// testRebootPolicy shows that a reboot by the guest ends the instance where
// the reboot policy says so.
func testRebootPolicy(t *testing.T, c *Cluster) {
	m := newMachine(t, c, "policy", "Always", GuestDiskImage, 30, "")
	if _, err := c.output(t.Context(), "patch", "vm", "-n", m.namespace, m.name, "--type=merge", "-p", `{"spec":{"template":{"spec":{"domain":{"rebootPolicy":"Terminate"}}}}}`); err != nil {
		t.Fatal(err)
	}
	m.mustPut(false, "stop", `{"gracePeriod": 0}`)
	m.wait("", time.Minute)
	m.mustPut(false, "start", "{}")
	first, _ := m.wait("Running", 40*time.Second)
	if _, err := m.console().Write([]byte("reboot\r")); err != nil {
		t.Fatal(err)
	}
	second := first
	for start := time.Now(); second == first && time.Since(start) < time.Minute; time.Sleep(time.Second) {
		second, _ = m.wait("Running", 40*time.Second)
	}
	if second == first {
		t.Errorf("the instance is still %s after a reboot by the guest", first)
	}
}
