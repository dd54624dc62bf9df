//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// Resources of the cluster.
var (
	kubeVirts   = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	policies    = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	bindings    = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
)

// terminal is a guest's serial console, through the BMC.
type terminal struct {
	*guest
	stream grpc.BidiStreamingClient[consolev1.ConnectRequest, consolev1.ConnectResponse]
	// output has not been looked at yet.
	output string
}

func (g *guest) terminal() *terminal {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), machinePatience)
	g.Cleanup(cancel)
	stream, err := g.console.Connect(ctx)
	if err != nil {
		g.Fatal(err)
	}
	if err := stream.Send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: g.reference()}}}); err != nil {
		g.Fatal(err)
	}
	return &terminal{guest: g, stream: stream}
}

// next takes in what comes next and returns the console's state if that is it.
func (t *terminal) next() consolev1.ConsoleState {
	t.Helper()
	response, err := t.stream.Recv()
	if err != nil {
		t.Fatalf("%s: console: %v; after %q", t.name, err, t.output)
	}
	t.output += string(response.GetOutput())
	return response.GetState()
}

// enter types a command once the console is there.
func (t *terminal) enter(command string) {
	t.Helper()
	for t.next() != consolev1.ConsoleState_CONSOLE_STATE_CONNECTED {
	}
	t.output = ""
	if err := t.stream.Send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte(command + "\r")}}); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(t.output, command+"\r\n") {
		t.next()
	}
	_, t.output, _ = strings.Cut(t.output, command+"\r\n")
}

// booted waits until the guest says what it has booted from.
func (t *terminal) booted() string {
	t.Helper()
	for {
		if _, after, ok := strings.Cut(t.output, "Guest booted from "); ok {
			if from, rest, ok := strings.Cut(after, "\r\n"); ok {
				t.output = rest
				return from
			}
		}
		t.next()
	}
}

// wantBooted: the guest of the machine that runs says so itself.
func (g *guest) wantBooted(what, want string) {
	g.Helper()
	if got := g.terminal().booted(); got != want {
		g.Errorf("%s: %s: the guest has booted from %s, want %s", g.name, what, got, want)
	}
}

const (
	fromCD   = "cdrom cd (boot order 1)"
	fromDisk = "disk root (boot order 1)"
)

// hasRebootPolicy tells whether KubeVirt can be told to end an instance when its
// guest reboots.
func (l *lab) hasRebootPolicy() bool {
	l.Helper()
	list, err := l.client.Resource(kubeVirts).List(l.Context(), metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	gated := slices.ContainsFunc(list.Items, func(k unstructured.Unstructured) bool {
		gates, _, _ := unstructured.NestedStringSlice(k.Object, "spec", "configuration", "developerConfiguration", "featureGates")
		return slices.Contains(gates, "RebootPolicy")
	})
	crd, err := l.client.Resource(definitions).Get(l.Context(), "virtualmachineinstances.kubevirt.io", metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	return gated && slices.ContainsFunc(versions, func(version any) bool {
		_, ok, _ := unstructured.NestedMap(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "domain", "properties", "rebootPolicy")
		return ok
	})
}

// runsAnother waits until the machine runs as another instance.
func (g *guest) runsAnother(before types.UID) {
	g.Helper()
	g.eventually(g.name+" runs anew", func() error {
		vmi, err := g.client.Resource(vmis).Namespace(g.namespace).Get(g.Context(), g.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(vmi.Object, "status", "phase"); vmi.GetUID() == before || phase != "Running" {
			return fmt.Errorf("instance %s is %s", vmi.GetUID(), phase)
		}
		return nil
	})
}

// An instance with an override ends when its guest reboots where KubeVirt then makes
// another one. Elsewhere it would stay off, so it goes on and boots by the override
// again, until the BMC makes another one or the guest goes off.
func TestBootOverride_guestRebootsOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	terminates := l.hasRebootPolicy()
	for _, strategy := range []string{"Halted", "Always", "Manual", "RerunOnFailure"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			l := *l
			l.T = t
			g := l.add("vm-"+strings.ToLower(strategy), strategy)
			overridden := func(action powerv1.PowerAction) types.UID {
				t.Helper()
				id := g.arm(toCD, anyMode)
				g.do(action)
				g.wantBoots("armed", "root=2 cd=1 nic=3 by "+id)
				g.wantBooted("armed", fromCD)
				g.wantDisarmed()
				return g.instance().GetUID()
			}
			start := turnOn
			if g.startsByItself(strategy) {
				start = cycle
			}
			first := overridden(start)
			ends := terminates && strategy == "Always"
			policy, _, _ := unstructured.NestedString(g.instance().Object, "spec", "domain", "rebootPolicy")
			if (policy == "Terminate") != ends {
				t.Errorf("the instance has reboot policy %q", policy)
			}
			terminal := g.terminal()
			terminal.enter("reboot")
			if ends {
				g.runsAnother(first)
			} else {
				if got := terminal.booted(); got != fromCD {
					t.Errorf("after its reboot the guest has booted from %s, want %s", got, fromCD)
				}
				if got := g.instance().GetUID(); got != first {
					t.Errorf("the guest's reboot has made instance %s of %s", got, first)
				}
				g.do(reset)
			}
			g.wantBoots("the next instance", ownOrder)
			g.wantBooted("the next instance", fromDisk)
			second := g.instance().GetUID()
			if second == first {
				t.Error("it is the same instance")
			}
			// Nothing waits for another instance any more.
			g.do(reset)
			if got := g.instance().GetUID(); got != second {
				t.Errorf("a reset without an override has made instance %s of %s", got, second)
			}

			third := overridden(cycle)
			g.terminal().enter("poweroff")
			if strategy == "Always" {
				g.runsAnother(third)
			} else {
				g.wantOff()
				g.do(turnOn)
			}
			g.wantBoots("after the guest has gone off", ownOrder)
			g.wantBooted("after the guest has gone off", fromDisk)
			g.wantUntouched()
		})
	}
}

// wantOff waits until the machine is off, which it then stays.
func (g *guest) wantOff() {
	g.Helper()
	off := func() error {
		response, err := g.power.GetPower(g.Context(), &powerv1.GetPowerRequest{Bmc: g.reference()})
		if err != nil {
			return err
		}
		if state := response.GetStatus().GetState(); state != powerv1.PowerState_POWER_STATE_OFF {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	}
	g.eventually(g.name+" is off", off)
	for end := time.Now().Add(quiet / 2); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if err := off(); err != nil {
			g.Fatalf("%s did not stay off: %v", g.name, err)
		}
	}
}

// An instance that something else refuses uses nothing up, however often KubeVirt
// tries again.
func TestBootOverride_refusedInstanceOnKubeVirt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	g := l.add("vm", "Manual")
	id := g.arm(toCD, anyMode)
	allow := l.refuseInstances()
	g.request(turnOn)
	const applied = `vbmc_controller_instance_admissions_total{result="applied"}`
	g.eventually("KubeVirt has tried again", func() error {
		if got := metric(t, l.metrics("controller"), applied); got < 3 {
			return fmt.Errorf("%v instances were to have the override", got)
		}
		return nil
	})
	if _, err := l.client.Resource(vmis).Namespace(l.namespace).Get(t.Context(), g.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is an instance, %v", err)
	}
	response, err := g.boot.GetBoot(t.Context(), &bootv1.GetBootRequest{Bmc: g.reference()})
	if err != nil || response.GetStatus().GetOverrideId() != id {
		t.Errorf("after refused instances: %v, %v", response, err)
	}
	allow()
	g.do(turnOn) // It waits until the machine runs.
	g.wantBoots("allowed at last", "root=2 cd=1 nic=3 by "+id)
	g.wantDisarmed()
	g.do(cycle)
	g.wantBoots("the start after that", ownOrder)
	if got := metric(t, l.metrics("power"), bypasses); got != 0 {
		t.Errorf("%v instances came without their override", got)
	}
	g.wantUntouched()
}

// refuseInstances has the API server refuse the namespace's instances until allow is
// called.
func (l *lab) refuseInstances() (allow func()) {
	l.Helper()
	const text = "no instances at the moment"
	name := "refuse-" + l.namespace
	l.apply(policies, "", map[string]any{
		"apiVersion": policies.GroupVersion().String(), "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"failurePolicy": "Fail",
			"matchConstraints": map[string]any{
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": l.namespace}},
				"resourceRules": []any{map[string]any{
					"apiGroups": []any{"kubevirt.io"}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"virtualmachineinstances"},
				}},
			},
			"validations": []any{map[string]any{"expression": "false", "message": text}},
		},
	})
	l.apply(bindings, "", map[string]any{
		"apiVersion": bindings.GroupVersion().String(), "kind": "ValidatingAdmissionPolicyBinding", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"policyName": name, "validationActions": []any{"Deny"}},
	})
	allow = func() {
		for _, resource := range []schema.GroupVersionResource{bindings, policies} {
			_ = l.client.Resource(resource).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	}
	l.Cleanup(allow)
	l.eventually("instances are refused", func() error {
		vmi := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": map[string]any{"name": "probe"},
			"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}}},
		}}
		_, err := l.client.Resource(vmis).Namespace(l.namespace).Create(l.Context(), vmi, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), text) {
			return errors.Join(errors.New("not yet"), err)
		}
		return nil
	})
	return allow
}
