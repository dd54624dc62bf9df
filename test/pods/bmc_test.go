//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/api/v1beta1"
)

const (
	username = "admin"
	password = "Pass-word 20 chars!!"
)

// callTime is how long one call of a client may take.
const callTime = 5 * time.Second

// bmc is a VirtualMachineBMC, its machine and Secret, all of one name.
type bmc struct {
	*site
	name string
	// address is where clients reach it, and ports which.
	address     string
	ipmi, https int32
	password    string
}

// machine is a VirtualMachine that is off.
func (s *site) machine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
		"metadata": map[string]any{"name": name, "namespace": s.lab},
		"spec": map[string]any{
			"runStrategy": "Halted",
			"template": map[string]any{"spec": map[string]any{
				"terminationGracePeriodSeconds": int64(5),
				"domain": map[string]any{
					"memory":  map[string]any{"guest": "64Mi"},
					"devices": map[string]any{"disks": []any{map[string]any{"name": "root", "disk": map[string]any{"bus": "virtio"}}}},
				},
				"volumes": []any{map[string]any{"name": "root", "containerDisk": map[string]any{"image": registry + "/guest-disk:1"}}},
			}},
		},
	}}
}

func (s *site) secret(name, password string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata":   map[string]any{"name": name, "namespace": s.lab},
		"stringData": map[string]any{"username": username, "password": password},
	}}
}

// resource is a VirtualMachineBMC with both protocols.
func (s *site) resource(name, machine, secret, serviceType string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bmc.kubevirt.io/v1beta1", "kind": "VirtualMachineBMC",
		"metadata": map[string]any{"name": name, "namespace": s.lab},
		"spec": map[string]any{
			"virtualMachineRef": map[string]any{"name": machine},
			"authSecretRef":     map[string]any{"name": secret},
			"ipmi":              map[string]any{"enabled": true},
			"service":           map[string]any{"type": serviceType},
		},
	}}
}

// newBMC makes a machine with a BMC, and waits until it is Ready.
func (s *site) newBMC(t *testing.T, name, serviceType string) *bmc {
	t.Helper()
	b := &bmc{site: s, name: name, ipmi: 623, https: 443, password: password}
	for _, object := range []*unstructured.Unstructured{s.machine(name), s.secret(name, password), s.resource(name, name, name, serviceType)} {
		s.create(t, object)
	}
	status := b.waitReady(t, metav1.ConditionTrue).Status
	b.address = status.ClusterIP
	return b
}

// create makes an object of the machines' namespace.
func (s *site) create(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	text, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, text)
}

// get reads the VirtualMachineBMC.
func (b *bmc) get(ctx context.Context) (*v1beta1.VirtualMachineBMC, error) {
	object, err := b.dynamic.Resource(bmcResource).Namespace(b.lab).Get(ctx, b.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	is := &v1beta1.VirtualMachineBMC{}
	return is, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, is)
}

// waitReady waits until the condition Ready has a status.
func (b *bmc) waitReady(t *testing.T, want metav1.ConditionStatus) *v1beta1.VirtualMachineBMC {
	t.Helper()
	var is *v1beta1.VirtualMachineBMC
	eventually(t, fmt.Sprintf("%s is Ready=%s", b.name, want), func() error {
		var err error
		if is, err = b.get(t.Context()); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(is.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != want || ready.ObservedGeneration != is.Generation {
			return fmt.Errorf("conditions are %+v", is.Status.Conditions)
		}
		return nil
	})
	return is
}

// owners are the pods that serve the BMC.
func (b *bmc) owners(t *testing.T) map[string]string {
	t.Helper()
	is, err := b.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	frontend := is.Status.Frontend
	if frontend == nil || frontend.IPMI == nil || frontend.Redfish == nil {
		t.Fatalf("status has no owners: %+v", is.Status)
	}
	return map[string]string{frontendIPMI: frontend.IPMI.Replica, frontendRedfish: frontend.Redfish.Replica}
}

// ipmitool runs ipmitool against the BMC.
func (b *bmc) ipmitool(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	args = append([]string{"-I", "lanplus", "-H", b.address, "-p", fmt.Sprint(b.ipmi), "-U", username, "-P", b.password, "-N", "1", "-R", "1"}, args...)
	out, err := exec.CommandContext(ctx, "ipmitool", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ipmitool: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// host is a name in the BMC's certificate, that of its Service.
func (b *bmc) host() string { return b.name + "-virtbmc." + b.lab + ".svc" }

// curl asks the BMC's Redfish for a resource, or posts to it where there is a body.
func (b *bmc) curl(ctx context.Context, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	args := []string{
		"--silent", "--show-error", "--fail-with-body", "--connect-timeout", "1", "--max-time", "2", "--cacert", b.caFile,
		"--resolve", fmt.Sprintf("%s:%d:%s", b.host(), b.https, b.address), "--user", username + ":" + b.password,
	}
	if body != "" {
		args = append(args, "--header", "Content-Type: application/json", "--data", body)
	}
	out, err := exec.CommandContext(ctx, "curl", append(args, fmt.Sprintf("https://%s:%d%s", b.host(), b.https, path))...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("curl: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

const system1 = "/redfish/v1/Systems/1"

// state asks both protocols for the power state, and fails when one of them does
// not know it.
func (b *bmc) state(ctx context.Context) (ipmi, redfish string, err error) {
	ipmi, err1 := b.ipmitool(ctx, "power", "status")
	redfish, err2 := b.curl(ctx, system1, "")
	return strings.TrimSpace(ipmi), redfish, errors.Join(err1, err2)
}

// wantState waits until both protocols tell a power state, On or Off.
func (b *bmc) wantState(t *testing.T, want string) {
	t.Helper()
	eventually(t, b.name+" is "+want, func() error {
		ipmi, redfish, err := b.state(t.Context())
		if err == nil && (ipmi != "Chassis Power is "+strings.ToLower(want) || !strings.Contains(redfish, `"PowerState":"`+want+`"`)) {
			err = fmt.Errorf("IPMI says %s, Redfish %s", ipmi, redfish)
		}
		return err
	})
}

// login tells whether clients can log in over both protocols.
func (b *bmc) login(ctx context.Context) error {
	_, _, err := b.state(ctx)
	return err
}

// setPassword changes the Secret.
func (b *bmc) setPassword(t *testing.T, password string) {
	t.Helper()
	b.create(t, b.secret(b.name, password))
}

// testPower is what clients do with a machine, through the addresses of its Service.
func testPower(t *testing.T, b *bmc) {
	t.Helper()
	b.wantState(t, "Off")
	if out, err := b.ipmitool(t.Context(), "power", "on"); err != nil || !strings.Contains(out, "Up/On") {
		t.Fatalf("power on: %s %v", out, err)
	}
	b.wantState(t, "On")
	if out, err := b.curl(t.Context(), system1+"/Actions/ComputerSystem.Reset", `{"ResetType":"ForceOff"}`); err != nil {
		t.Fatalf("ForceOff: %s %v", out, err)
	}
	b.wantState(t, "Off")
}

// testReady: the condition Ready is true exactly when clients can log in, whatever
// happens to the Secret, and nothing is started anew for it.
func testReady(t *testing.T, s *site) {
	b := &bmc{site: s, name: "ready", ipmi: 623, https: 443, password: "first"}
	before := s.restarts(t)
	s.create(t, s.resource(b.name, b.name, b.name, "ClusterIP"))
	b.waitReady(t, metav1.ConditionFalse)
	s.create(t, s.machine(b.name))
	s.create(t, s.secret(b.name, b.password))
	b.address = b.waitReady(t, metav1.ConditionTrue).Status.ClusterIP
	if err := b.login(t.Context()); err != nil {
		t.Errorf("Ready, but %v", err)
	}

	b.setPassword(t, "second")
	start := time.Now()
	b.password = "second"
	eventually(t, "login with the new password", func() error { return b.login(t.Context()) })
	t.Logf("a new password counts after %s", time.Since(start).Round(10*time.Millisecond))
	old := *b
	old.password = "first"
	if out, err := old.ipmitool(t.Context(), "power", "status"); err == nil {
		t.Errorf("the old password logs in over IPMI: %s", out)
	}
	if out, err := old.curl(t.Context(), system1, ""); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("the old password over Redfish: %s %v, want 401", out, err)
	}
	b.waitReady(t, metav1.ConditionTrue)

	if err := s.client.CoreV1().Secrets(s.lab).Delete(t.Context(), b.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.waitReady(t, metav1.ConditionFalse)
	if out, err := b.ipmitool(t.Context(), "power", "status"); err == nil {
		t.Errorf("not Ready, but IPMI logs in: %s", out)
	}
	if out, err := b.curl(t.Context(), system1, ""); err == nil {
		t.Errorf("not Ready, but Redfish logs in: %s", out)
	}
	b.setPassword(t, "second")
	b.waitReady(t, metav1.ConditionTrue)
	if err := b.login(t.Context()); err != nil {
		t.Errorf("Ready again, but %v", err)
	}
	if after := s.restarts(t); before != after {
		t.Errorf("pods were started anew:\n%s\nwere\n%s", after, before)
	}

	// Its Service goes with it.
	resources := s.dynamic.Resource(bmcResource).Namespace(s.lab)
	if err := resources.Delete(t.Context(), b.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service is gone", func() error {
		_, err := s.client.CoreV1().Services(s.lab).Get(t.Context(), b.name+"-virtbmc", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", errors.Join(err))
	})
}

// restarts names the pods and how often each of their programs was started.
func (s *site) restarts(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "get", "pods", "-n", s.system, "--sort-by=.metadata.name",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
}

// testNodePort: clients outside of the cluster reach a BMC at the ports of a node.
func testNodePort(t *testing.T, s *site) {
	b := s.newBMC(t, "node-port", "NodePort")
	is, err := b.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ports := is.Status.NodePorts
	if ports == nil || ports.IPMI == nil || ports.HTTPS == nil {
		t.Fatalf("the status has no node ports: %+v", is.Status)
	}
	b.address, b.ipmi, b.https = s.cluster.NodeIP, *ports.IPMI, *ports.HTTPS
	testPower(t, b)
	patch := []byte(`{"spec":{"service":{"type":"ClusterIP"}}}`)
	if _, err := s.dynamic.Resource(bmcResource).Namespace(s.lab).Patch(t.Context(), b.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	clusterIP := &bmc{site: s, name: b.name, address: b.waitReady(t, metav1.ConditionTrue).Status.ClusterIP, ipmi: 623, https: 443, password: b.password}
	clusterIP.wantState(t, "Off")
}
