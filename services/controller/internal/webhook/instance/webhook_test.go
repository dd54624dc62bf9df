// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// cluster is an API server with one machine, its UID machineUID, and its BMC.
type cluster struct {
	vm  kvv1.VirtualMachine
	err error
}

const machineUID = "machine-uid"

var machine = hypervisor.Ref{Namespace: "lab", Name: "vm"}

func bmcOf(name string) *v1beta1.VirtualMachineBMC {
	return &v1beta1.VirtualMachineBMC{
		ObjectMeta: metav1.ObjectMeta{Namespace: machine.Namespace, Name: "bmc", Annotations: map[string]string{
			v1beta1.AnnotationState:             `{"armed":{"id":"` + id + `","device":"cdrom"}}`,
			"bmc.kubevirt.io/state-machine-uid": machineUID,
		}},
		Spec: v1beta1.VirtualMachineBMCSpec{VirtualMachineRef: &v1beta1.LocalObjectReference{Name: name}},
	}
}

func (c *cluster) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	switch is := object.(type) {
	case *v1beta1.VirtualMachineBMC:
		*is = *bmcOf(machine.Name)
	case *kvv1.VirtualMachine:
		*is = c.vm
	default:
		return errors.New("there is no such thing")
	}
	return c.err
}

func (c *cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1beta1.VirtualMachineBMCList).Items = []v1beta1.VirtualMachineBMC{*bmcOf("another"), *bmcOf(machine.Name)}
	return c.err
}

// cache is what is known of BMCs without a question.
type cache struct {
	ready bool
	bmc   *v1beta1.VirtualMachineBMC
}

func (c cache) Ready() bool { return c.ready }
func (c cache) Of(of hypervisor.Ref) *v1beta1.VirtualMachineBMC {
	if of != machine {
		return nil
	}
	return c.bmc
}

func newWebhook(tb testing.TB, live client.Reader, bmcs BMCs, policy bool) *Webhook {
	tb.Helper()
	w, err := New(Config{
		BMCs: bmcs, Live: live, RebootPolicy: func() bool { return policy }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func request(raw []byte) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Namespace: machine.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
	}}
}

const owned = `{"metadata":{"name":"vm","ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"vm","uid":"` + machineUID +
	`","controller":true}]},"spec":{"domain":{"devices":{"disks":[{"name":"root","bootOrder":1,"disk":{}},{"name":"cd","cdrom":{}}]}}}}`

// after returns the instance as an answer leaves it.
func after(t *testing.T, raw []byte, answer admission.Response) []byte {
	t.Helper()
	if !answer.Allowed {
		t.Fatalf("refused: %v", answer.Result)
	}
	if len(answer.Patches) == 0 {
		return raw
	}
	document, err := json.Marshal(answer.Patches)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(document)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("apply %s to %s: %v", document, raw, err)
	}
	return changed
}

// TestWebhook_reads: the override is there or not, and the instance starts anyway.
func TestWebhook_reads(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cache   cache
		err     error
		changed bool
		warned  bool
	}{
		"a BMC that is known":            {cache{true, bmcOf(machine.Name)}, nil, true, false},
		"no BMC":                         {cache{true, nil}, nil, false, false},
		"BMCs are not known yet":         {cache{false, nil}, nil, true, false},
		"the API server does not answer": {cache{true, bmcOf(machine.Name)}, context.DeadlineExceeded, false, true},
		"nor for all of them":            {cache{false, nil}, context.DeadlineExceeded, false, true},
	} {
		answer := newWebhook(t, &cluster{err: test.err}, test.cache, false).Handle(t.Context(), request([]byte(owned)))
		var vmi kvv1.VirtualMachineInstance
		if err := json.Unmarshal(after(t, []byte(owned), answer), &vmi); err != nil {
			t.Fatal(err)
		}
		if changed := vmi.Annotations[bootoverride.InstanceAnnotation] == id; changed != test.changed {
			t.Errorf("%s: changed %t, want %t", name, changed, test.changed)
		}
		if warned := len(answer.Warnings) > 0; warned != test.warned {
			t.Errorf("%s: warned of %q", name, answer.Warnings)
		}
	}
}

// TestWebhook_terminates: a guest's reboot ends the instance where KubeVirt makes
// another one then, and has the field.
func TestWebhook_terminates(t *testing.T) {
	t.Parallel()
	strategy := func(is kvv1.VirtualMachineRunStrategy) kvv1.VirtualMachineSpec {
		return kvv1.VirtualMachineSpec{RunStrategy: &is}
	}
	running := func(is bool) kvv1.VirtualMachineSpec { return kvv1.VirtualMachineSpec{Running: &is} }
	for name, test := range map[string]struct {
		spec   kvv1.VirtualMachineSpec
		uid    string
		policy bool
		want   bool
		warned bool
	}{
		"Always":                 {strategy(kvv1.RunStrategyAlways), machineUID, true, true, false},
		"running":                {running(true), machineUID, true, true, false},
		"not running":            {running(false), machineUID, true, false, false},
		"RerunOnFailure":         {strategy(kvv1.RunStrategyRerunOnFailure), machineUID, true, false, false},
		"Manual":                 {strategy(kvv1.RunStrategyManual), machineUID, true, false, false},
		"Once":                   {strategy(kvv1.RunStrategyOnce), machineUID, true, false, false},
		"nothing said":           {kvv1.VirtualMachineSpec{}, machineUID, true, false, false},
		"Always, without it":     {strategy(kvv1.RunStrategyAlways), machineUID, false, false, false},
		"a machine made anew":    {strategy(kvv1.RunStrategyAlways), "another", true, false, true},
		"one that nobody is for": {strategy(kvv1.RunStrategyAlways), "another", false, false, false},
	} {
		vm := kvv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{UID: "another"}, Spec: test.spec}
		if test.uid == machineUID {
			vm.UID = machineUID
		}
		answer := newWebhook(t, &cluster{vm: vm}, cache{true, bmcOf(machine.Name)}, test.policy).Handle(t.Context(), request([]byte(owned)))
		var vmi kvv1.VirtualMachineInstance
		if err := json.Unmarshal(after(t, []byte(owned), answer), &vmi); err != nil {
			t.Fatal(err)
		}
		policy := vmi.Spec.Domain.RebootPolicy
		if got := policy != nil && *policy == kvv1.RebootPolicyTerminate; got != test.want {
			t.Errorf("%s: terminates %t, want %t", name, got, test.want)
		}
		if warned := len(answer.Warnings) > 0; warned != test.warned {
			t.Errorf("%s: warned of %q", name, answer.Warnings)
		}
	}
}

// FuzzWebhook: whatever the API server sends, the instance is not refused, and the
// patch applies to what was sent.
func FuzzWebhook(f *testing.F) {
	for _, seed := range []string{
		owned, `{}`, `null`, `[]`, `{"metadata":{"ownerReferences":[{}]}}`, `{"spec":{"domain":7}}`,
		`{"metadata":{"annotations":null,"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"vm","uid":"` + machineUID + `","controller":true}]}}`,
		`{"metadata":{"annotations":{"bmc.kubevirt.io/boot-override":"forged"},"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"other","uid":"x","controller":true}]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"vm","uid":"` + machineUID +
			`","controller":true}]},"spec":{"domain":{"firmware":null,"devices":{"disks":[{"bootOrder":18446744073709551615},{"cdrom":{},"bootOrder":null}],"interfaces":[{"bootOrder":1}]}}}}`,
	} {
		f.Add([]byte(seed))
	}
	vm := kvv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{UID: machineUID}, Spec: kvv1.VirtualMachineSpec{Running: new(true)}}
	w := newWebhook(f, &cluster{vm: vm}, cache{true, bmcOf(machine.Name)}, true)
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer := w.Handle(t.Context(), request(raw))
		changed := after(t, raw, answer)
		var vmi kvv1.VirtualMachineInstance
		if len(answer.Warnings) > 0 || json.Unmarshal(changed, &vmi) != nil {
			return
		}
		owner := metav1.GetControllerOf(&vmi)
		if owner == nil || owner.Kind != "VirtualMachine" || owner.APIVersion != "kubevirt.io/v1" {
			return
		}
		if got, ok := vmi.Annotations[bootoverride.InstanceAnnotation]; ok && got != id {
			t.Errorf("an ID that nobody has armed stays: %s", changed)
		}
	})
}
