//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	is, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// labeled makes a machine with labels.
func (s *site) labeled(name string, labels map[string]string) *unstructured.Unstructured {
	s.Helper()
	machine := s.machine(name)
	machine.SetLabels(labels)
	s.create(machine)
	return machine
}

// bmcs are the names of the BMCs in the namespace.
func (s *site) bmcs() []string {
	s.Helper()
	var list v1beta1.VirtualMachineBMCList
	if err := s.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, bmc := range list.Items {
		names = append(names, bmc.Name)
	}
	return names
}

func (s *site) wantProvisioned(machine *unstructured.Unstructured) *v1beta1.VirtualMachineBMC {
	s.Helper()
	name := machine.GetName()
	bmc := &v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	s.eventually("BMC of "+name, func() error { return s.Get(s.Context(), client.ObjectKeyFromObject(bmc), bmc) })
	s.wantReady(bmc)
	secret := s.secret(name+"-bmc-credentials", nil)
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		s.Fatal(err)
	}
	if string(secret.Data["username"]) != "admin" || len(secret.Data["password"]) != 16 {
		s.Errorf("generated user %q, password of %d bytes", secret.Data["username"], len(secret.Data["password"]))
	}
	for _, object := range []client.Object{bmc, secret} {
		owners := object.GetOwnerReferences()
		if len(owners) != 1 || owners[0].UID != machine.GetUID() || owners[0].Kind != "VirtualMachine" {
			s.Errorf("%T %s belongs to %v", object, object.GetName(), owners)
		}
		if object.GetLabels()[v1beta1.LabelProvisioned] != "true" {
			s.Errorf("%T %s has labels %v", object, object.GetName(), object.GetLabels())
		}
	}
	return bmc
}

// wantNotProvisioned waits for the event that says that a machine gets no BMC.
func (s *site) wantNotProvisioned(machine *unstructured.Unstructured) {
	s.Helper()
	s.eventually("an event about the machine "+machine.GetName(), func() error {
		var list eventsv1.EventList
		if err := s.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == machine.GetUID() && e.Type == corev1.EventTypeWarning && e.Reason == "NotProvisioned" {
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// TestProvision: machines that a selector matches get a BMC where they have none.
func TestProvision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.labeled("before", map[string]string{"bmc": "please"})
	s.labeled("other", map[string]string{"bmc": "no"})
	own := s.bmc("served")
	own.Spec.AuthSecretRef.Name = "their-secret"
	s.labeled("served", map[string]string{"bmc": "please"})
	s.create(own)
	s.controller(func(config *reconciler.Config) { config.Provision.Machines = selector(t, "bmc=please") })
	f := s.frontend("frontend-0", "10.0.0.10")
	first := s.wantProvisioned(before)
	s.wantEvent(first, "Normal", "Provisioned")
	s.wantProvisioned(s.labeled("after", map[string]string{"bmc": "please"}))

	// One whose owner makes a BMC along with it keeps that.
	s.labeled("both", map[string]string{"bmc": "please"})
	both := s.bmc("both")
	s.create(both)
	// A name that is taken is said to be.
	taken := s.bmc("nothing")
	taken.Name = "taken"
	s.create(taken)
	machine := s.labeled("taken", map[string]string{"bmc": "please"})
	s.wantNotProvisioned(machine)
	// Names that make no Service are said to, and nothing is left of an attempt.
	for _, name := range []string{strings.Repeat("x", 56), "1st", "a.b"} {
		s.wantNotProvisioned(s.labeled(name, map[string]string{"bmc": "please"}))
		secret := s.secret(name+"-bmc-credentials", nil)
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); !apierrors.IsNotFound(err) {
			t.Errorf("Secret of a machine that can't have a BMC: %v", err)
		}
	}
	// By then those that get none would have one.
	if diff := cmp.Diff([]string{"after", "before", "both-bmc", "served-bmc", "taken"}, s.bmcs()); diff != "" {
		t.Errorf("BMCs (-want +got):\n%s", diff)
	}

	// What is removed comes again, with the same password, while it is selected, and
	// one that is selected no longer keeps what it has.
	password := f.get(redfish, "before").GetAccounts()[0].GetPassword()
	s.remove(first)
	s.eventually("the BMC is another", func() error {
		is := &v1beta1.VirtualMachineBMC{}
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(first), is); err != nil {
			return err
		}
		if is.UID == first.UID {
			return errors.New("it is the same")
		}
		return nil
	})
	s.collect(first)
	again := s.wantProvisioned(before)
	if got := f.get(redfish, "before").GetAccounts()[0].GetPassword(); got != password {
		t.Error("the BMC that came again has another password")
	}
	change(s, before, func(machine *unstructured.Unstructured) { machine.SetLabels(nil) })
	change(s, s.getMachine("other"), func(machine *unstructured.Unstructured) { machine.SetLabels(map[string]string{"bmc": "please"}) })
	s.wantProvisioned(s.getMachine("other"))
	s.wantReady(again)
	s.remove(again)
	s.collect(again)
	s.remove(s.getMachine("after"))
	// It goes with its machine where there is a garbage collector.
	after := &v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "after"}}
	s.eventually("the BMC of a machine that is gone", func() error {
		err := s.Get(t.Context(), client.ObjectKeyFromObject(after), after)
		if err == nil && meta.IsStatusConditionTrue(after.Status.Conditions, v1beta1.ConditionVirtualMachineAvailable) {
			return errors.New("it has its machine")
		}
		return client.IgnoreNotFound(err)
	})
	left := slices.DeleteFunc(s.bmcs(), func(name string) bool { return name == "after" })
	if diff := cmp.Diff([]string{"both-bmc", "other", "served-bmc", "taken"}, left); diff != "" {
		t.Errorf("BMCs (-want +got):\n%s", diff)
	}
}

func (s *site) getMachine(name string) *unstructured.Unstructured {
	s.Helper()
	machine := s.machine(name)
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(machine), machine); err != nil {
		s.Fatal(err)
	}
	return machine
}

// TestProvision_namespaces: a namespace is selected, then and when its labels
// change.
func TestProvision_namespaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller(func(config *reconciler.Config) {
		config.Provision.Namespaces = selector(t, "bmcs in (all)")
		config.Provision.Machines = selector(t, "!bare")
	})
	s.frontend("frontend-0", "10.0.0.10")
	machine := s.labeled("vm", nil)
	s.labeled("bare", map[string]string{"bare": ""})
	s.eventually("the machine is old enough", func() error {
		if age := time.Since(machine.GetCreationTimestamp().Time); age < 12*time.Second {
			return fmt.Errorf("it is %v old", age)
		}
		return nil
	})
	if got := s.bmcs(); len(got) > 0 {
		t.Errorf("in a namespace that is not selected there are BMCs %v", got)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	change(s, namespace, func(namespace *corev1.Namespace) { namespace.Labels["bmcs"] = "all" })
	s.wantProvisioned(machine)
	if diff := cmp.Diff([]string{"vm"}, s.bmcs()); diff != "" {
		t.Errorf("BMCs (-want +got):\n%s", diff)
	}
}
