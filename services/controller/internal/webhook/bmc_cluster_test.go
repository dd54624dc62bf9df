//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
)

// TestBMC_create: what is refused, and what is warned of. The controller serves
// IPMI where a BMC says nothing of it.
func TestBMC_create(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	for _, name := range []string{"vm", "other", "taken", "0-starts-with-a-digit", strings.Repeat("x", 60)} {
		s.machine(name)
	}
	long := strings.Repeat("x", 21)
	for name, data := range map[string]map[string]string{
		"good":    {"username": "admin", "password": "secret"},
		"empty":   {},
		"unnamed": {"password": "secret"},
		"line":    {"username": "admin", "password": "secret\n"},
		"colon":   {"username": "ad:min", "password": "secret"},
		"long":    {"username": "admin", "password": long},
		"both":    {"username": "admin", "password": long, "ipmi-password": "secret"},
		"kg":      {"username": "admin", "password": "secret", "ipmi-kg": long},
	} {
		s.secret(name, data)
	}
	s.create(s.bmc("first", "taken", "good"))
	ipmi := func(on bool) func(*v1beta1.VirtualMachineBMC) {
		return func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.IPMI = &v1beta1.IPMISpec{Enabled: &on} }
	}
	service := func(is v1beta1.ServiceSpec) func(*v1beta1.VirtualMachineBMC) {
		return func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.Service = &is }
	}
	for name, tc := range map[string]struct {
		machine, secret string
		edit            func(*v1beta1.VirtualMachineBMC)
		// refused and warned are of the answer; empty: there is no such.
		refused, warned string
	}{
		"all is well": {machine: "vm", secret: "good"},
		"no machine is named": {
			secret: "good", refused: "spec.virtualMachineRef.name: Required value: names the VirtualMachine that the BMC is for",
		},
		"a machine is not named at all": {
			secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.VirtualMachineRef = nil },
			refused: "spec.virtualMachineRef.name: Required value",
		},
		"the machine does not exist": {machine: "nobody", secret: "good", refused: `spec.virtualMachineRef.name: Not found: "nobody"`},
		"the machine has a BMC": {
			machine: "taken", secret: "good", refused: "the machine has a BMC already: VirtualMachineBMC first",
		},
		"the machine's name makes no Service": {
			machine: "0-starts-with-a-digit", secret: "good", refused: "the BMC's Service can't be named 0-starts-with-a-digit-virtbmc",
		},
		"the machine's name is too long for a Service": {
			machine: strings.Repeat("x", 60), secret: "good", refused: "must be no more than 63",
		},
		"no Secret is named": {
			machine: "vm", refused: "spec.authSecretRef.name: Required value: names the Secret with the BMC's account",
		},
		"the Secret does not exist":      {machine: "vm", secret: "nobody", refused: `spec.authSecretRef.name: Not found: "nobody"`},
		"the Secret is empty":            {machine: "vm", secret: "empty", refused: "key username is missing or empty"},
		"the Secret has no user name":    {machine: "vm", secret: "unnamed", refused: "key username is missing or empty"},
		"the password ends a line":       {machine: "vm", secret: "line", refused: "key password has a control character, as the end of a line"},
		"the user name has a colon":      {machine: "vm", secret: "colon", refused: "key username has a colon"},
		"IPMI has a password of its own": {machine: "vm", secret: "both", edit: ipmi(true)},
		"IPMI is asked for and can't carry the password": {
			machine: "vm", secret: "long", edit: ipmi(true), refused: "key password has 21 bytes, IPMI carries 20: add a key ipmi-password",
		},
		"IPMI is served by default and can't carry the password": {
			machine: "vm", secret: "long",
			warned: "spec.authSecretRef.name: nobody can log in over IPMI: key password has 21 bytes, IPMI carries 20: add a key ipmi-password",
		},
		"IPMI is not served":                        {machine: "vm", secret: "long", edit: ipmi(false)},
		"IPMI is asked for and can't carry the key": {machine: "vm", secret: "kg", edit: ipmi(true), refused: "key ipmi-kg has 21 bytes, IPMI carries 20"},
		"a label of the Service is none": {
			machine: "vm", secret: "good", edit: service(v1beta1.ServiceSpec{Labels: map[string]string{"a b": "c"}}),
			refused: `spec.service.labels: Invalid value: "a b"`,
		},
		"a label of the Service is ours": {
			machine: "vm", secret: "good", edit: service(v1beta1.ServiceSpec{Labels: map[string]string{v1beta1.LabelVMName: "x"}}),
			warned: "spec.service.labels[" + v1beta1.LabelVMName + "]: is set by the controller",
		},
		"an annotation of the Service is none": {
			machine: "vm", secret: "good", edit: service(v1beta1.ServiceSpec{Annotations: map[string]string{"/": "c"}}),
			refused: "spec.service.annotations: Invalid value",
		},
		"a network of another namespace": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.NetworkRef = ptr.To("kube-system/net") },
			refused: "network attachment kube-system/net is of another namespace",
		},
		"a network of its own namespace": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.NetworkRef = ptr.To("net@eth1") },
		},
		"a dedicated frontend's settings without one": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) {
				bmc.Spec.Frontend = &v1beta1.FrontendSpec{Dedicated: &v1beta1.DedicatedFrontendSpec{NodeSelector: map[string]string{"a": "b"}}}
			},
			warned: "spec.frontend.dedicated: does not count",
		},
		"a dedicated frontend's settings": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) {
				bmc.Spec.Frontend = &v1beta1.FrontendSpec{
					Mode: v1beta1.FrontendModeDedicated, Dedicated: &v1beta1.DedicatedFrontendSpec{NodeSelector: map[string]string{"a": "b"}},
				}
			},
		},
		"a node port of IPMI without IPMI": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) {
				ipmi(false)(bmc)
				service(v1beta1.ServiceSpec{Type: v1beta1.ServiceTypeNodePort, NodePorts: &v1beta1.ServicePorts{IPMI: ptr.To[int32](30623)}})(bmc)
			},
			warned: "spec.service.nodePorts.ipmi: does not count: IPMI is not served",
		},
		"the certificate's Secret does not exist": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) {
				bmc.Spec.Redfish = &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{CertificateSecretRef: &v1beta1.SecretReference{Name: "nobody"}}}
			},
			warned: "spec.redfish.https.certificateSecretRef.name: Secret nobody does not exist",
		},
		"the certificate's Secret has none": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) {
				bmc.Spec.Redfish = &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{CertificateSecretRef: &v1beta1.SecretReference{Name: "good"}}}
			},
			warned: "Secret good has no certificate with its key",
		},
		"several things are wrong": {
			machine: "taken", secret: "nobody", refused: "the machine has a BMC already: VirtualMachineBMC first, spec.authSecretRef.name: Not found",
		},
		"the BMC's own name is no label": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) { bmc.Name = strings.Repeat("b", 64) },
			refused: "metadata.name: Too long",
		},
		"the name is to be made": {
			machine: "vm", secret: "good", edit: func(bmc *v1beta1.VirtualMachineBMC) { bmc.Name, bmc.GenerateName = "", "made-" },
		},
	} {
		bmc := s.bmc("second", tc.machine, tc.secret)
		if tc.edit != nil {
			tc.edit(bmc)
		}
		s.warned()
		err := s.Create(t.Context(), bmc, client.DryRunAll)
		switch {
		case tc.refused == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case tc.refused != "" && (!apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), tc.refused)):
			t.Errorf("%s: got %v, want %q", name, err, tc.refused)
		}
		if got := s.warned(); (tc.warned == "") != (got == "") || !strings.Contains(got, tc.warned) {
			t.Errorf("%s: warned of %q, want %q", name, got, tc.warned)
		}
	}
	var all v1beta1.VirtualMachineBMCList
	if err := s.List(t.Context(), &all, client.InNamespace(s.namespace)); err != nil || len(all.Items) != 1 {
		t.Errorf("dry runs have left %d BMCs, %v", len(all.Items), err)
	}
}

// TestBMC_update: what changes is looked at, and nothing else.
func TestBMC_update(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	vm, other := s.machine("vm"), s.machine("other")
	s.machine("third")
	secret := s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.secret("long", map[string]string{"username": "admin", "password": strings.Repeat("x", 21)})
	bmc := s.bmc("bmc", "vm", "good")
	bmc.Spec.IPMI = &v1beta1.IPMISpec{Enabled: ptr.To(false)}
	s.create(bmc)
	s.create(s.bmc("another", "other", "good"))
	refused := func(what, want string, edit func(*v1beta1.VirtualMachineBMC)) {
		t.Helper()
		if err := change(s, bmc, edit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	allowed := func(what string, edit func(*v1beta1.VirtualMachineBMC)) {
		t.Helper()
		if err := change(s, bmc, edit); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	machine := func(name string) func(*v1beta1.VirtualMachineBMC) {
		return func(bmc *v1beta1.VirtualMachineBMC) {
			bmc.Spec.VirtualMachineRef = &v1beta1.LocalObjectReference{Name: name}
		}
	}
	refused("no machine any more", "Required value", machine(""))
	refused("another's machine", "the machine has a BMC already: VirtualMachineBMC another", machine("other"))
	refused("a machine that is not there", "Not found", machine("nobody"))
	allowed("another machine", machine("third"))
	allowed("the first machine", machine("vm"))
	account := func(name string) func(*v1beta1.VirtualMachineBMC) {
		return func(bmc *v1beta1.VirtualMachineBMC) {
			bmc.Spec.AuthSecretRef = &v1beta1.LocalObjectReference{Name: name}
		}
	}
	ipmi := func(on bool) func(*v1beta1.VirtualMachineBMC) {
		return func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.IPMI = &v1beta1.IPMISpec{Enabled: &on} }
	}
	refused("a Secret that is not there", "Not found", account("nobody"))
	allowed("a Secret that is for Redfish alone", account("long"))
	refused("IPMI, which can't carry it", "IPMI carries 20", ipmi(true))
	allowed("the first Secret", account("good"))
	allowed("IPMI", ipmi(true))
	refused("a Secret that IPMI can't carry", "IPMI carries 20", account("long"))

	// Machine and Secret go; the BMC goes on to be editable.
	s.remove(vm)
	s.remove(secret)
	allowed("a label", func(bmc *v1beta1.VirtualMachineBMC) { bmc.Labels = map[string]string{"orphan": "yes"} })
	allowed("how it is served", func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Service = &v1beta1.ServiceSpec{Type: v1beta1.ServiceTypeNodePort}
	})
	allowed("without IPMI and back", ipmi(false))
	allowed("IPMI of a Secret that has gone", ipmi(true))
	allowed("a finalizer", func(bmc *v1beta1.VirtualMachineBMC) { bmc.Finalizers = []string{"example.com/keep"} })
	bmc.Status.ClusterIP = "10.0.0.1"
	if err := s.Status().Update(t.Context(), bmc); err != nil {
		t.Errorf("status: %v", err)
	}
	if err := s.Delete(t.Context(), bmc); err != nil {
		t.Fatal(err)
	}
	// A machine that its BMC leaves can be given to another one.
	s.machine("vm")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	s.create(s.bmc("successor", "vm", "good"))
	allowed("nothing is looked at any more", machine("nobody"))
	allowed("no finalizer", func(bmc *v1beta1.VirtualMachineBMC) { bmc.Finalizers = nil })
	s.remove(other)
	if err := s.Delete(t.Context(), s.bmc("another", "", "")); err != nil {
		t.Errorf("an orphan's deletion: %v", err)
	}
}

// TestBMC_without_an_answer: while no controller answers, the services go on to
// keep their state, and a BMC can go.
func TestBMC_without_an_answer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.serve()
	vm := s.machine("vm")
	s.secret("good", map[string]string{"username": "admin", "password": "secret"})
	bmc := s.bmc("bmc", "vm", "good")
	bmc.Finalizers = []string{"example.com/keep"}
	s.create(bmc)
	s.eventually("the store has it", func() error {
		return s.store.SetState(t.Context(), ref(s, "vm"), string(vm.UID), nil, []byte(`{"a":1}`))
	})
	stop()
	if err := change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.NetworkRef = ptr.To("net") }); err == nil {
		t.Error("a change of the spec is accepted although nobody has looked at it")
	}
	for what, edit := range map[string]func(*v1beta1.VirtualMachineBMC){
		"state":   func(bmc *v1beta1.VirtualMachineBMC) { bmc.Annotations[v1beta1.AnnotationState] = `{"a":2}` },
		"a label": func(bmc *v1beta1.VirtualMachineBMC) { bmc.Labels = map[string]string{"a": "b"} },
	} {
		if err := change(s, bmc, edit); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	bmc.Status.ClusterIP = "10.0.0.1"
	if err := s.Status().Update(t.Context(), bmc); err != nil {
		t.Errorf("status: %v", err)
	}
	if err := s.Delete(t.Context(), bmc); err != nil {
		t.Fatal(err)
	}
	if err := change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Finalizers = nil }); err != nil {
		t.Errorf("without its finalizer: %v", err)
	}
	s.eventually("gone", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(bmc), bmc); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("still there"), err)
		}
		return nil
	})
}
