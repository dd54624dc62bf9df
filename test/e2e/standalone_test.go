// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"
	"time"

	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/test/cluster"
	"kubevirtbmc.dev/test/launch"
)

// patience is how long a machine may take for a step.
const patience = 4 * time.Minute

const (
	username = "admin"
	password = "Pass-word 20 chars!!"
	token    = "token-of-the-e2e-test"
)

// manifest is a namespace with a machine that boots from its disk and has a
// filled CD-ROM drive and a network interface beside it.
var manifest = template.Must(template.New("machine").Parse(`
apiVersion: v1
kind: Namespace
metadata:
  name: {{.Namespace}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: {{.Name}}
  namespace: {{.Namespace}}
spec:
  runStrategy: Halted
  template:
    spec:
      terminationGracePeriodSeconds: 5
      domain:
        memory:
          guest: 64Mi
        firmware:
          bootloader:
            bios:
              useSerial: true # The console shows what it tries to boot from.
        resources:
          requests:
            cpu: 50m
        devices:
          disks:
          - name: root
            bootOrder: 1
            disk:
              bus: virtio
          - name: installer
            cdrom:
              bus: sata
          interfaces:
          - name: default
            masquerade: {}
      networks:
      - name: default
        pod: {}
      volumes:
      - name: root
        containerDisk:
          image: {{.Disk}}
          imagePullPolicy: IfNotPresent
      - name: installer
        containerDisk:
          image: {{.CD}}
          imagePullPolicy: IfNotPresent
`))

// bed is a machine with its BMC, seen from three sides.
type bed struct {
	*testing.T
	cluster         *cluster.Cluster
	namespace, name string
	ipmiPort        int
	system          string
	caFile          string
	step            int
}

func TestStandalone(t *testing.T) {
	for _, program := range []string{"ipmitool", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: make clients installs it", err)
		}
	}
	b := newBed(t)

	b.begin("the machine is off")
	b.agreesOff()
	console := b.console()
	console.connections("DISCONNECTED")

	b.begin("ipmitool switches it on")
	b.ipmi("chassis", "power", "on")
	first := b.agreesOn("")
	b.equal("run strategy", b.vm().strategy(), "RerunOnFailure")
	b.equal("boot order of the instance", first.orders(), map[string]int{"root": 1})
	console.connections("DISCONNECTED", "CONNECTED")
	console.says(disk)

	b.begin("ipmitool resets it: the same instance")
	b.ipmi("chassis", "power", "reset")
	console.says(firmware)
	console.says(disk)
	b.equal("instance", b.agreesOn("").UID, first.UID)

	b.begin("curl chooses the CD for the next boot")
	b.redfish("PATCH", "", `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once"}}`)
	b.equal("override in Redfish", b.override(), "Once Cd")
	b.contains("override in IPMI", b.ipmi("chassis", "bootparam", "get", "5"), "Force Boot from CD/DVD")
	b.equal("boot order of the running instance", b.vmi().orders(), map[string]int{"root": 1})

	b.begin("ipmitool cycles it: a new instance boots from the CD, once")
	console.forget()
	b.ipmi("chassis", "power", "cycle")
	second := b.agreesOn(first.UID)
	console.connections("DISCONNECTED", "CONNECTED")
	console.says(cd)
	b.equal("first device of the instance", second.first(), "installer")
	b.eventually("override used up in Redfish", func() bool { return b.override() == "Disabled None" })
	b.eventually("template as it was", func() bool {
		return reflect.DeepEqual(b.vm().orders(), map[string]int{"root": 1})
	})

	b.begin("curl restarts it: back to the disk, in a new instance")
	b.redfish("POST", "/Actions/ComputerSystem.Reset", `{"ResetType":"ForceRestart"}`)
	third := b.agreesOn(second.UID)
	b.equal("boot order of the instance", third.orders(), map[string]int{"root": 1})
	console.says(disk)

	b.begin("ipmitool chooses the CD from now on")
	b.ipmi("chassis", "bootdev", "cdrom", "options=persistent")
	b.equal("override in Redfish", b.override(), "Continuous Cd")
	b.equal("first device of the template", b.vm().first(), "installer")
	b.ipmi("chassis", "power", "cycle")
	fourth := b.agreesOn(third.UID)
	b.equal("first device of the instance", fourth.first(), "installer")
	b.equal("override in Redfish", b.override(), "Continuous Cd")

	b.begin("ipmitool resets it: the firmware tries the CD first")
	console.forget()
	b.ipmi("chassis", "power", "reset")
	console.says(firmware)
	console.says(cd)
	b.equal("instance", b.agreesOn("").UID, fourth.UID)

	b.begin("ipmitool takes the choice back")
	b.ipmi("chassis", "bootdev", "none")
	b.equal("override in Redfish", b.override(), "Disabled None")
	b.eventually("template as it was", func() bool {
		return reflect.DeepEqual(b.vm().orders(), map[string]int{"root": 1})
	})

	b.begin("ipmitool asks the guest to shut down")
	b.ipmi("chassis", "power", "soft")
	b.agreesOff()

	b.begin("curl switches it on")
	b.redfish("POST", "/Actions/ComputerSystem.Reset", `{"ResetType":"On"}`)
	fifth := b.agreesOn(fourth.UID)
	b.equal("boot order of the instance", fifth.orders(), map[string]int{"root": 1})
	console.says(disk)
	b.equal("run strategy", b.vm().strategy(), "RerunOnFailure")

	b.begin("ipmitool switches it off")
	b.ipmi("chassis", "power", "off")
	b.agreesOff()
}

func newBed(t *testing.T) *bed {
	t.Helper()
	level := cluster.LevelReal
	if name := os.Getenv("LEVEL"); name != "" {
		var err error
		if level, err = cluster.ParseLevel(name); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	c, err := cluster.Open(ctx, cluster.Options{Level: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(context.Background()); err != nil {
			t.Errorf("cluster: %v", err)
		}
	})
	b := &bed{T: t, cluster: c, namespace: "e2e-" + strings.ToLower(rand.Text()[:8]), name: "node-1"}
	var objects bytes.Buffer
	if err := manifest.Execute(&objects, map[string]string{
		"Namespace": b.namespace, "Name": b.name, "Disk": cluster.GuestDiskImage, "CD": cluster.GuestCDImage,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := c.Kubectl(context.Background(), "delete", "namespace", b.namespace, "--wait=false").CombinedOutput(); err != nil {
			t.Logf("delete namespace: %v\n%s", err, out)
		}
	})
	if err := c.Apply(ctx, objects.Bytes()); err != nil {
		t.Fatal(err)
	}
	b.startBMC()
	return b
}

// startBMC starts standalone mode on the cluster.
func (b *bed) startBMC() {
	b.Helper()
	program := os.Getenv("KUBEVIRTBMC")
	if program == "" {
		program = launch.Build(b, "cmd/kubevirtbmc")
		b.Cleanup(launch.CleanUp)
	}
	dir := b.TempDir()
	config := filepath.Join(dir, "bmcs.yaml")
	text := fmt.Sprintf("bmcs:\n- vm: %s\n  namespace: %s\n", b.name, b.namespace)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ipmiPort = testport.FreeRow(b, 3)
	b.system = fmt.Sprintf("https://127.0.0.1:%d/redfish/v1/Systems/1", b.ipmiPort+1)
	b.caFile = filepath.Join(dir, "ca.pem")
	standalone := launch.Start(b, []string{"BMC_USERNAME=" + username, "BMC_PASSWORD=" + password, "KUBEVIRTBMC_TOKEN=" + token}, program,
		"standalone", "--kubeconfig", b.cluster.Kubeconfig, "--config", config, "--ca-out", b.caFile,
		"--ipmi-port", fmt.Sprint(b.ipmiPort), "--redfish-port", fmt.Sprint(b.ipmiPort+1), "--api-port", fmt.Sprint(b.ipmiPort+2))
	standalone.WaitStdout(b, "Ctrl-C ends it.")
	b.Cleanup(func() {
		if b.Failed() {
			b.Logf("log of standalone:\n%s", standalone.Stderr())
		}
	})
	b.eventually("machine known to its BMC", func() bool {
		_, err := b.tryIPMI("chassis", "power", "status")
		return err == nil
	})
}

// begin says what the next step is.
func (b *bed) begin(what string) {
	b.step++
	b.Logf("== %d. %s", b.step, what)
}

// tryIPMI runs ipmitool against the BMC.
func (b *bed) tryIPMI(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ipmitool", append([]string{
		"-I", "lanplus", "-H", "127.0.0.1", "-p", fmt.Sprint(b.ipmiPort), "-U", username, "-E",
	}, args...)...)
	cmd.Env = append(os.Environ(), "IPMI_PASSWORD="+password)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (b *bed) ipmi(args ...string) string {
	b.Helper()
	out, err := b.tryIPMI(args...)
	if err != nil {
		b.Fatalf("ipmitool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	b.Logf("ipmitool %s: %s", strings.Join(args, " "), firstLine(out))
	return out
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// redfish runs curl against the system.
func (b *bed) redfish(method, path, body string) []byte {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"-sS", "--fail-with-body", "--cacert", b.caFile, "-X", method, "-K", "-", b.system + path}
	if body != "" {
		args = append(args, "-H", "Content-Type: application/json", "-d", body)
	}
	cmd := exec.CommandContext(ctx, "curl", args...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("user = %q\n", username+":"+password))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("curl %s %s %s: %v\n%s%s", method, path, body, err, stderr.String(), out)
	}
	if method != "GET" {
		b.Logf("curl %s /redfish/v1/Systems/1%s %s: accepted", method, path, body)
	}
	return out
}

// systemResource is what the test reads of the Redfish system.
type systemResource struct {
	PowerState string
	Boot       struct {
		BootSourceOverrideTarget, BootSourceOverrideEnabled string
	}
}

func (b *bed) readSystem() systemResource {
	b.Helper()
	var s systemResource
	if out := b.redfish("GET", "", ""); json.Unmarshal(out, &s) != nil {
		b.Fatalf("Redfish system: %s", out)
	}
	return s
}

func (b *bed) override() string {
	b.Helper()
	boot := b.readSystem().Boot
	return boot.BootSourceOverrideEnabled + " " + boot.BootSourceOverrideTarget
}

// devices are the boot devices of a machine or an instance.
type devices struct {
	Disks, Interfaces []struct {
		Name      string
		BootOrder int
	}
}

func (d devices) orders() map[string]int {
	orders := map[string]int{}
	for _, device := range append(d.Disks, d.Interfaces...) {
		if device.BootOrder > 0 {
			orders[device.Name] = device.BootOrder
		}
	}
	return orders
}

// first is the device with order 1.
func (d devices) first() string {
	for name, order := range d.orders() {
		if order == 1 {
			return name
		}
	}
	return ""
}

// machine is KubeVirt's own view of a VirtualMachine.
type machine struct {
	Spec struct {
		RunStrategy string
		Template    struct {
			Spec struct{ Domain struct{ Devices devices } }
		}
	}
}

func (m machine) strategy() string       { return m.Spec.RunStrategy }
func (m machine) orders() map[string]int { return m.Spec.Template.Spec.Domain.Devices.orders() }
func (m machine) first() string          { return m.Spec.Template.Spec.Domain.Devices.first() }

// instance is KubeVirt's own view of a VirtualMachineInstance.
type instance struct {
	UID   string
	phase string
	devices
}

// get reads an object with kubectl; false when there is none.
func (b *bed) get(resource string, object any) bool {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	cmd := b.cluster.Kubectl(ctx, "get", resource, b.name, "-n", b.namespace, "--ignore-not-found", "-o", "json")
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			b.Logf("%s", failed.Stderr)
		}
		b.Fatalf("kubectl get %s: %v", resource, err)
	}
	if len(bytes.TrimSpace(out)) == 0 {
		return false
	}
	if err := json.Unmarshal(out, object); err != nil {
		b.Fatalf("kubectl get %s: %v", resource, err)
	}
	return true
}

func (b *bed) vm() machine {
	b.Helper()
	var m machine
	if !b.get("vm", &m) {
		b.Fatal("the machine is gone")
	}
	return m
}

// vmi returns the instance; one without UID when there is none.
func (b *bed) vmi() instance {
	b.Helper()
	var object struct {
		Metadata struct{ UID string }
		Spec     struct{ Domain struct{ Devices devices } }
		Status   struct{ Phase string }
	}
	b.get("vmi", &object)
	return instance{object.Metadata.UID, object.Status.Phase, object.Spec.Domain.Devices}
}

// agreesOn waits until KubeVirt has a running instance other than that one, and
// IPMI and Redfish say so too.
func (b *bed) agreesOn(other string) instance {
	b.Helper()
	var i instance
	var ipmi, redfish string
	b.eventually("on", func() bool {
		i = b.vmi()
		if i.phase != "Running" || i.UID == other {
			return false
		}
		ipmi, _ = b.tryIPMI("chassis", "power", "status")
		redfish = b.readSystem().PowerState
		return ipmi == "Chassis Power is on" && redfish == "On"
	})
	b.Logf("kubectl: instance %s %s, boot order %v; template %v, %s | ipmitool: %s | curl: PowerState %s",
		i.UID, i.phase, i.orders(), b.vm().orders(), b.vm().strategy(), ipmi, redfish)
	return i
}

// agreesOff waits until KubeVirt has no instance, and IPMI and Redfish say so
// too.
func (b *bed) agreesOff() {
	b.Helper()
	var ipmi, redfish string
	b.eventually("off", func() bool {
		if b.vmi().UID != "" {
			return false
		}
		ipmi, _ = b.tryIPMI("chassis", "power", "status")
		redfish = b.readSystem().PowerState
		return ipmi == "Chassis Power is off" && redfish == "Off"
	})
	b.Logf("kubectl: no instance; template %v, %s | ipmitool: %s | curl: PowerState %s", b.vm().orders(), b.vm().strategy(), ipmi, redfish)
}

func (b *bed) equal(what string, got, want any) {
	b.Helper()
	if !reflect.DeepEqual(got, want) {
		b.Fatalf("%s is %v, want %v", what, got, want)
	}
	b.Logf("%s: %v", what, got)
}

func (b *bed) contains(what, got, want string) {
	b.Helper()
	if !strings.Contains(got, want) {
		b.Fatalf("%s is\n%s\nwant %q in it", what, got, want)
	}
}

func (b *bed) eventually(what string, is func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(250 * time.Millisecond) {
		if time.Now().After(end) {
			i := b.vmi()
			b.Fatalf("not %s after %s: instance %q %s, template %+v", what, patience, i.UID, i.phase, b.vm())
		}
	}
}
