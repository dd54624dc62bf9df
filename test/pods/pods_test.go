//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// mostOutage is how long the clients of a BMC may be without it when the pod that
// serves it is gone (design decision 1).
const mostOutage = 5 * time.Second

// watchTime is how long clients are watched after a pod has gone, so that what
// comes later is seen too: the pod's successor, to which BMCs go back.
const watchTime = 12 * time.Second

// clientsAtOnce is how many clients call over each protocol, each on its own.
const clientsAtOnce = 3

// TestPods runs one deployment of the product through what befalls it. The parts
// follow one another, for each disturbs what all share.
func TestPods(t *testing.T) {
	s := newSite(t)
	t.Run("power through the cluster address", func(t *testing.T) {
		testPower(t, s.newBMC(t, "machine", "ClusterIP"))
	})
	b := &bmc{site: s, name: "machine", ipmi: 623, https: 443, password: password}
	is, err := b.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.address = is.Status.ClusterIP
	t.Run("power through a node's ports", func(t *testing.T) { testNodePort(t, s) })
	t.Run("ready means that clients can log in", func(t *testing.T) { testReady(t, s) })
	t.Run("a dedicated agent", func(t *testing.T) { testAgent(t, s) })
	t.Run("the owner", func(t *testing.T) {
		t.Run("is killed", func(t *testing.T) { testOwner(t, b, s.kill) })
		t.Run("is deleted", func(t *testing.T) { testOwner(t, b, s.deleteAtOnce) })
		t.Run("falls silent", func(t *testing.T) { testOwner(t, b, s.freeze) })
	})
	t.Run("a planned rollout", func(t *testing.T) { testRollout(t, b) })
	t.Run("the leading controller is killed", func(t *testing.T) { testLeader(t, b) })
	t.Run("no controller is there", func(t *testing.T) { testNoController(t, b) })
	t.Run("a replica with many BMCs", func(t *testing.T) { testScale(t, s) })
}

// processes are those of a pod's containers, as the host sees them.
func (s *site) processes(t *testing.T, pod string) []int {
	t.Helper()
	is, err := s.client.CoreV1().Pods(s.system).Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	program := "/" + is.Spec.Containers[0].Name + "\x00"
	var found []int
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		cgroup, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(cgroup), "/pod"+string(is.UID)) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || !strings.HasPrefix(string(command), program) {
			continue // What keeps the pod's namespaces.
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	if len(found) == 0 {
		t.Fatalf("no process of pod %s", pod)
	}
	return found
}

func (s *site) signal(t *testing.T, pod string, signal syscall.Signal) {
	t.Helper()
	for _, pid := range s.processes(t, pod) {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
}

// kill ends a pod's process as a crash does; it is started again in the same pod.
func (s *site) kill(t *testing.T, pod string) { s.signal(t, pod, syscall.SIGKILL) }

// deleteAtOnce removes a pod without grace; another takes its place.
func (s *site) deleteAtOnce(t *testing.T, pod string) {
	if err := s.client.CoreV1().Pods(s.system).Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
}

// freeze makes a pod fall silent for the length of the test, as one does whose node
// is cut off: its connections stay.
func (s *site) freeze(t *testing.T, pod string) {
	pids := s.processes(t, pod)
	t.Cleanup(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	s.signal(t, pod, syscall.SIGSTOP)
}

// testOwner: a BMC whose frontend pods are gone is soon served by others.
func testOwner(t *testing.T, b *bmc, end func(t *testing.T, pod string)) {
	b.waitRolledOut(t, frontendIPMI, frontendRedfish)
	b.waitReady(t, metav1.ConditionTrue)
	owners := b.owners(t)
	clients := map[string][]*loop{}
	for range clientsAtOnce {
		for _, l := range b.loops(t) {
			clients[l.name] = append(clients[l.name], l)
		}
	}
	load := loadAverage(t)
	start := time.Now()
	for _, pod := range owners {
		end(t, pod)
	}
	time.Sleep(watchTime)
	for _, loops := range clients {
		stopAll(loops)
		l := merged(loops)
		total, _ := l.failures()
		outage := l.outage(start)
		t.Logf("%s: outage %s, %d of %d calls failed; load %.1f before", l.name, outage.Round(10*time.Millisecond), total, len(l.list()), load)
		if outage >= mostOutage {
			t.Errorf("%s was without the BMC for %s, want less than %s:\n%s", l.name, outage, mostOutage, l.errors())
		}
	}
}

// testRollout: pods are replaced one by one, and no client has to try more than
// once more.
func testRollout(t *testing.T, b *bmc) {
	b.waitRolledOut(t, controller, power, frontendIPMI, frontendRedfish)
	b.waitReady(t, metav1.ConditionTrue)
	loops := b.loops(t)
	for _, name := range []string{frontendIPMI, frontendRedfish, power, controller} {
		start := time.Now()
		b.kubectl(t, "rollout", "restart", "-n", b.system, "deployment/"+name)
		b.waitRolledOut(t, name)
		t.Logf("%s was replaced within %s", name, time.Since(start).Round(100*time.Millisecond))
	}
	stopAll(loops)
	for _, l := range loops {
		total, row := l.failures()
		t.Logf("%s: %d of %d calls failed, %d in a row", l.name, total, len(l.list()), row)
		if row > 1 {
			t.Errorf("%s failed %d times in a row:\n%s", l.name, row, l.errors())
		}
	}
}

// leader is the pod of the controller that leads; empty: none does.
func (s *site) leader(t *testing.T) string {
	t.Helper()
	lease, err := s.client.CoordinationV1().Leases(s.system).Get(t.Context(), "controller.bmc.kubevirt.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return name
}

// testLeader: another controller takes over, and no client sees it.
func testLeader(t *testing.T, b *bmc) {
	b.waitRolledOut(t, controller)
	before, err := b.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	loops := b.loops(t)
	var old string
	eventually(t, "a controller leads", func() error {
		if old = b.leader(t); old == "" {
			return errors.New("none does")
		}
		return nil
	})
	start := time.Now()
	b.deleteAtOnce(t, old)
	eventually(t, "another controller leads", func() error {
		if now := b.leader(t); now == old || now == "" {
			return fmt.Errorf("%q leads", now)
		}
		return nil
	})
	t.Logf("another controller leads after %s", time.Since(start).Round(100*time.Millisecond))
	b.changeCounts(t)
	t.Logf("a new password counts %s after the leader's end", time.Since(start).Round(100*time.Millisecond))
	stopAll(loops)
	wantNoFailure(t, loops)
	after := b.waitReady(t, metav1.ConditionTrue)
	if b, a := before.Status.Frontend, after.Status.Frontend; *b.IPMI.Port != *a.IPMI.Port || *b.Redfish.HTTPSPort != *a.Redfish.HTTPSPort {
		t.Errorf("ports were %+v, are %+v", b, a)
	}
}

// testNoController: frontends serve from memory, and go on when controllers are
// back.
func testNoController(t *testing.T, b *bmc) {
	b.scale(t, controller, 0)
	eventually(t, "no controller is there", func() error {
		pods, err := b.pods(t.Context(), controller)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d are", len(pods))
		}
		return err
	})
	loops := b.loops(t)
	time.Sleep(watchTime)
	start := time.Now()
	b.scale(t, controller, 2)
	b.waitRolledOut(t, controller)
	b.changeCounts(t)
	t.Logf("a new password counts %s after the first controller was started", time.Since(start).Round(100*time.Millisecond))
	stopAll(loops)
	wantNoFailure(t, loops)
	b.waitReady(t, metav1.ConditionTrue)
}

func (s *site) scale(t *testing.T, service string, replicas int) {
	t.Helper()
	s.kubectl(t, "scale", "-n", s.system, "deployment/"+service, fmt.Sprintf("--replicas=%d", replicas))
}

func wantNoFailure(t *testing.T, loops []*loop) {
	t.Helper()
	for _, l := range loops {
		if total, _ := l.failures(); total > 0 || len(l.list()) == 0 {
			t.Errorf("%s failed %d of %d times:\n%s", l.name, total, len(l.list()), l.errors())
		}
	}
}

// changeCounts changes another BMC's password and waits until it counts, which
// takes a controller that leads and frontends that listen to it.
func (b *bmc) changeCounts(t *testing.T) {
	t.Helper()
	other := &bmc{site: b.site, name: "other", ipmi: 623, https: 443, password: "before"}
	b.create(t, b.machine(other.name))
	b.create(t, b.secret(other.name, other.password))
	b.create(t, b.resource(other.name, other.name, other.name, "ClusterIP"))
	other.address = other.waitReady(t, metav1.ConditionTrue).Status.ClusterIP
	other.setPassword(t, "after")
	other.password = "after"
	eventually(t, "login with a new password", func() error { return other.login(t.Context()) })
}
