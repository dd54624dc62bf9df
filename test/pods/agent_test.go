//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/api/v1beta1"
)

// mostAgentMemory is what an agent in use may have in memory, in bytes.
const mostAgentMemory = 40 << 20

// plain asks the BMC's Redfish for a resource over HTTP.
func (b *bmc) plain(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--fail-with-body", "--connect-timeout", "1", "--max-time", "2",
		"--user", username+":"+b.password, "http://"+b.address+path).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("curl: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// plainLoops are clients of one BMC over IPMI and HTTP.
func (b *bmc) plainLoops(t *testing.T) []*loop {
	list := []*loop{
		newLoop(t, "ipmitool", func(ctx context.Context) error {
			_, err := b.ipmitool(ctx, "power", "status")
			return err
		}),
		newLoop(t, "curl", func(ctx context.Context) error {
			_, err := b.plain(ctx, system1)
			return err
		}),
	}
	for _, l := range list {
		eventually(t, l.name+" has begun", func() error {
			if attempts := l.list(); len(attempts) > 0 {
				return attempts[len(attempts)-1].err
			}
			return context.DeadlineExceeded
		})
	}
	return list
}

// setMode changes what is to serve the BMC, and waits until that does.
func (b *bmc) setMode(t *testing.T, mode v1beta1.FrontendMode) {
	t.Helper()
	start := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"frontend":{"mode":%q}}}`, mode)
	if _, err := b.dynamic.Resource(bmcResource).Namespace(b.lab).Patch(t.Context(), b.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "mode "+string(mode), func() error {
		is, err := b.get(t.Context())
		if err == nil && is.Status.Frontend.Mode != mode {
			err = fmt.Errorf("is %s: %+v", is.Status.Frontend.Mode, is.Status.Conditions)
		}
		return err
	})
	b.waitReady(t, metav1.ConditionTrue)
	t.Logf("mode %s after %s", mode, time.Since(start).Round(100*time.Millisecond))
}

// wantRetry checks that no client had to try more than once more.
func wantRetry(t *testing.T, loops []*loop, when string) {
	t.Helper()
	for _, l := range loops {
		total, row := l.failures()
		t.Logf("%s: %s: %d of %d calls failed, %d in a row", when, l.name, total, len(l.list()), row)
		if row > 1 {
			t.Errorf("%s: %s failed %d times in a row:\n%s", when, l.name, row, l.errors())
		}
	}
}

// agentObjects names what a BMC has of an agent.
func (b *bmc) agentObjects(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "get", "deployment,serviceaccount,role,rolebinding,configmap,pod", "-n", b.lab, "-o", "name",
		"-l", "app.kubernetes.io/component=agent,kubevirt.io/virtualmachinebmc-name="+b.name)
}

// waitAgent waits until a pod of the agent, other than an earlier one, owns the BMC
// over both protocols, and returns its name.
func (b *bmc) waitAgent(t *testing.T, earlier string) (pod string) {
	t.Helper()
	eventually(t, "the agent's pod is the owner", func() error {
		owners := b.owners(t)
		pod = owners[frontendIPMI]
		if !strings.HasPrefix(pod, b.name+"-virtbmc-") || owners[frontendRedfish] != pod || pod == earlier {
			return fmt.Errorf("the owners are %v", owners)
		}
		return nil
	})
	return pod
}

func (b *bmc) wantNoAgent(t *testing.T) {
	t.Helper()
	eventually(t, "the agent is gone", func() error {
		if has := b.agentObjects(t); has != "" {
			return fmt.Errorf("there is %q", has)
		}
		return nil
	})
}

// overHTTP has Redfish over plain HTTP alone: the agent has no certificate of its
// own.
func overHTTP(object *unstructured.Unstructured) *unstructured.Unstructured {
	for scheme, on := range map[string]bool{"http": true, "https": false} {
		_ = unstructured.SetNestedField(object.Object, on, "spec", "redfish", scheme, "enabled")
	}
	return object
}

// testAgent: a BMC moves to an agent of its own, which is replaced, and back, and
// its clients, who stay at one address, have to try once more at most.
func testAgent(t *testing.T, s *site) {
	b := &bmc{site: s, name: "dedicated", ipmi: 623, https: 443, password: password}
	s.create(t, s.machine(b.name))
	s.create(t, s.secret(b.name, password))
	s.create(t, overHTTP(s.resource(b.name, b.name, b.name, "ClusterIP")))
	b.address = b.waitReady(t, metav1.ConditionTrue).Status.ClusterIP

	loops := b.plainLoops(t)
	b.setMode(t, v1beta1.FrontendModeDedicated)
	pod := b.waitAgent(t, "")
	time.Sleep(watchTime) // What comes later is seen too: the shared frontends stop.
	stopAll(loops)
	wantRetry(t, loops, "move to the agent")
	if out, err := b.ipmitool(t.Context(), "power", "on"); err != nil || !strings.Contains(out, "Up/On") {
		t.Errorf("power on: %s %v", out, err)
	}
	eventually(t, "On over Redfish", func() error {
		out, err := b.plain(t.Context(), system1)
		if err == nil && !strings.Contains(out, `"PowerState":"On"`) {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	b.wantMemory(t, pod)

	loops = b.plainLoops(t)
	b.kubectl(t, "rollout", "restart", "-n", b.lab, "deployment/"+b.name+"-virtbmc")
	b.kubectl(t, "rollout", "status", "-n", b.lab, "deployment/"+b.name+"-virtbmc", "--timeout="+patience.String())
	pod = b.waitAgent(t, pod)
	time.Sleep(watchTime)
	stopAll(loops)
	wantRetry(t, loops, "rollout of the agent")

	loops = b.plainLoops(t)
	b.kubectl(t, "delete", "pod", "-n", b.lab, pod, "--wait=false")
	b.waitAgent(t, pod)
	time.Sleep(watchTime)
	stopAll(loops)
	wantRetry(t, loops, "eviction of the agent's pod")

	loops = b.plainLoops(t)
	b.setMode(t, v1beta1.FrontendModeShared)
	b.wantNoAgent(t)
	stopAll(loops)
	wantRetry(t, loops, "move back")
	if now := b.waitReady(t, metav1.ConditionTrue).Status.ClusterIP; now != b.address {
		t.Errorf("the address was %s and is %s", b.address, now)
	}

	// All of an agent goes with its BMC.
	b.setMode(t, v1beta1.FrontendModeDedicated)
	if has := b.agentObjects(t); len(strings.Fields(has)) != 6 {
		t.Errorf("the agent has %q, want a Deployment, its pod, ServiceAccount, Role, RoleBinding and ConfigMap", has)
	}
	b.kubectl(t, "delete", "vmbmc", "-n", b.lab, b.name)
	b.wantNoAgent(t)
}

// wantMemory checks what an agent has in memory.
func (b *bmc) wantMemory(t *testing.T, pod string) {
	t.Helper()
	metrics := b.kubectl(t, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8081/proxy/metrics", b.lab, pod))
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, "process_resident_memory_bytes "); ok {
			memory, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the agent has %.1f MiB in memory", memory/(1<<20))
			if memory > mostAgentMemory {
				t.Errorf("the agent has %.0f bytes in memory, want at most %d", memory, mostAgentMemory)
			}
			return
		}
	}
	t.Error("the agent does not say what it has in memory")
}
