// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build integration || e2e

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// open returns a cluster for a test, and takes it down after it if it was
// brought up for it.
func open(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.Dir, o.Log = t.TempDir()+"/testbed", t.Output()
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && !c.External() {
			dumpState(t, c)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// dumpState logs what helps to understand a failure.
func dumpState(t *testing.T, c *Cluster) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "vm,vmi", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"}} {
		s, err := c.output(ctx, args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, lastLines(s, 40))
	}
}

// machine is a VirtualMachine of a test.
type machine struct {
	t         *testing.T
	c         *Cluster
	namespace string
	name      string
}

// newMachine makes a namespace with a VirtualMachine that has one disk, with
// the given run strategy, grace period and annotations of the template.
func newMachine(t *testing.T, c *Cluster, name, strategy, disk string, grace int, annotations string) machine {
	t.Helper()
	m := machine{t: t, c: c, namespace: fmt.Sprintf("cluster-test-%s-%d", name, time.Now().UnixNano()%1e6), name: name}
	manifests := fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  runStrategy: %[3]s
  template:
    metadata: {annotations: {%[4]s}}
    spec:
      terminationGracePeriodSeconds: %[5]d
      domain:
        memory: {guest: 64Mi}
        devices:
          disks: [{name: root, disk: {bus: virtio}, bootOrder: 1}]
          interfaces: [{name: default, masquerade: {}}]
      networks: [{name: default, pod: {}}]
      volumes: [{name: root, containerDisk: {image: "%[6]s", imagePullPolicy: IfNotPresent}}]
`, m.namespace, name, strategy, annotations, grace, disk)
	// virt-api's webhooks may need a moment after KubeVirt says Deployed.
	if err := poll(t.Context(), "VM to be accepted", time.Minute, time.Second, func(ctx context.Context) error {
		return c.Apply(ctx, []byte(manifests))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := c.output(ctx, "delete", "namespace", m.namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return m
}

// put calls a subresource of the VM or, if vmi is set, of its instance.
func (m machine) put(vmi bool, verb, body string) error {
	kind := "virtualmachines"
	if vmi {
		kind = "virtualmachineinstances"
	}
	cmd := m.c.Kubectl(m.t.Context(), "replace", "--raw", "/apis/subresources.kubevirt.io/v1/namespaces/"+m.namespace+"/"+kind+"/"+m.name+"/"+verb, "-f", "-")
	cmd.Stdin = strings.NewReader(body)
	_, err := output(cmd)
	return err
}

func (m machine) mustPut(vmi bool, verb, body string) {
	m.t.Helper()
	if err := m.put(vmi, verb, body); err != nil {
		m.t.Fatal(err)
	}
}

// status returns the instance's UID, phase and Paused condition, or an empty
// string if there is none.
func (m machine) status() (uid, phase, paused string) {
	m.t.Helper()
	s, err := m.c.output(m.t.Context(), "get", "vmi", "-n", m.namespace, m.name, "--ignore-not-found", "-o",
		`jsonpath={.metadata.uid} {.status.phase} {.status.conditions[?(@.type=="Paused")].status}`)
	if err != nil {
		m.t.Fatal(err)
	}
	f := append(strings.Split(strings.TrimSpace(s), " "), "", "", "")
	return f[0], f[1], f[2]
}

// wait waits until the instance is in a phase ("" is for no instance) and
// returns its UID and how long it took.
func (m machine) wait(phase string, limit time.Duration) (string, time.Duration) {
	m.t.Helper()
	start := time.Now()
	var id string
	if err := poll(m.t.Context(), fmt.Sprintf("%s to be in phase %q", m.name, phase), limit, 200*time.Millisecond, func(context.Context) error {
		uid, got, _ := m.status()
		if got != phase {
			return fmt.Errorf("it is in phase %q", got)
		}
		id = uid
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	took := time.Since(start)
	m.t.Logf("%s: phase %q after %s", m.name, phase, took.Round(100*time.Millisecond))
	return id, took
}

// node returns the node that the instance is on.
func (m machine) node() string {
	m.t.Helper()
	s, err := m.c.output(m.t.Context(), "get", "vmi", "-n", m.namespace, m.name, "-o", "jsonpath={.status.nodeName}")
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// waitPaused waits for the Paused condition to be "True" or "".
func (m machine) waitPaused(want string) {
	m.t.Helper()
	if err := poll(m.t.Context(), "Paused "+want, 30*time.Second, 200*time.Millisecond, func(context.Context) error {
		if _, _, p := m.status(); p != want {
			return fmt.Errorf("the condition is %q", p)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// readUntil reads from the console until text has come.
func readUntil(t *testing.T, con io.Reader, text string) {
	t.Helper()
	var got strings.Builder
	b := make([]byte, 256)
	for !strings.Contains(got.String(), text) {
		n, err := con.Read(b)
		got.Write(b[:n])
		if err != nil {
			t.Fatalf("console ended with %v before %q; it said %q", err, text, got.String())
		}
	}
}

// console opens the machine's console for at most a minute.
func (m machine) console() *Console {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	m.t.Cleanup(cancel)
	con, err := m.c.OpenConsole(ctx, m.namespace, m.name)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { con.Close() })
	return con
}

// testNetwork shows that the host reaches services, and that pods' DNS server
// knows them.
func testNetwork(t *testing.T, c *Cluster) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(c.NodeIP, "53"))
	}}
	want, err := c.output(t.Context(), "get", "service", "-n", "kubevirt", "virt-api", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		t.Fatal(err)
	}
	got, err := resolver.LookupHost(t.Context(), "virt-api.kubevirt.svc.cluster.local.")
	if err != nil || !slices.Equal(got, []string{want}) {
		t.Fatalf("virt-api is %q, %v, want %s", got, err, want)
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort(want, "443"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	// Each node has pods, which the host reaches.
	s, err := c.output(t.Context(), "get", "pods", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler", "-o", `jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} {.status.podIP}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	handlers := map[string][]string{}
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		handlers[f[0]] = f[1:]
	}
	for i := range c.NodePIDs {
		handler := handlers[nodeName(i)]
		if len(handler) != 2 {
			t.Errorf("virt-handler of %s is not among %v", nodeName(i), handlers)
			continue
		}
		if conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort(handler[1], "8443")); err != nil {
			t.Errorf("virt-handler of %s: %v", nodeName(i), err)
		} else {
			conn.Close()
		}
		// The API server reaches the kubelet by its node's name.
		if _, err := c.output(t.Context(), "logs", "-n", "kubevirt", handler[0]); err != nil {
			t.Error(err)
		}
	}
	// exec goes from the API server through kubelet and containerd; the
	// program prints its usage.
	b, err := c.Kubectl(t.Context(), "exec", "-n", "kubevirt", "deploy/virt-operator", "--", "/usr/bin/virt-operator", "--help").CombinedOutput()
	if !strings.Contains(string(b), "--listen") {
		t.Errorf("exec in a pod: %v: %s", err, b)
	}
}
