//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// wantLack waits until a controller says by its metric whether it lacks a role.
func (c *controller) wantLack(s *site, role string, want float64) {
	s.Helper()
	s.eventually("vbmc_controller_role_lacking of "+role, func() error {
		got, err := c.gauge("vbmc_controller_role_lacking", "bmc.kubevirt.io:controller:"+role)
		return errors.Join(err, equal(got, want))
	})
}

// TestWithout_dedicated: without the role of dedicated agents those are refused with
// a reason, all else works, and they are run when there is the role.
func TestWithout_dedicated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.without = []string{"dedicated"}
	c := s.controller(s.withAgents())
	s.frontend("frontend-0", "10.0.0.10")
	shared := s.complete("shared")
	own := s.bmc("own")
	mode(v1beta1.FrontendModeDedicated)(own)
	s.create(s.machine("own"))
	s.create(s.secret("own-secret", map[string]string{"username": "admin", "password": "first"}))
	s.create(own)
	s.wantReady(shared)
	s.wantCondition(own, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonAgentRefused)
	message := meta.FindStatusCondition(own.Status.Conditions, v1beta1.ConditionReady).Message
	for _, part := range []string{"may not list deployments.apps in namespace " + s.namespace, "bmc.kubevirt.io:controller:dedicated"} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition lacks %q: %s", part, message)
		}
	}
	s.wantEvent(own, corev1.EventTypeWarning, v1beta1.ReasonAgentRefused)
	c.wantLack(s, "dedicated", 1)

	// One that is served stays so when it is to get an agent that can't be.
	change(s, shared, mode(v1beta1.FrontendModeDedicated))
	s.wantReady(shared)
	s.wantMode(shared, v1beta1.FrontendModeShared)

	s.last.Give("dedicated")
	for _, bmc := range []*v1beta1.VirtualMachineBMC{own, shared} {
		s.wantAgent(bmc)
	}
	c.wantLack(s, "dedicated", 0)
	d := s.deployment("own", func(*appsv1.Deployment) error { return nil })
	s.pod(d, "a", "10.0.0.20")
	s.wantReady(own)
	s.wantRoute("own-virtbmc-ipmi", "10.0.0.20", "ipmi UDP 10623")

	// A controller that starts without the role again leaves the agent's clients
	// where they are.
	c.stop()
	s.controller(s.withAgents())
	s.wantCondition(own, v1beta1.ConditionFrontendReady, metav1.ConditionTrue, v1beta1.ReasonFrontendServing)
	s.eventually("the lack is said", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(own.Status.Conditions, v1beta1.ConditionFrontendReady); !strings.Contains(c.Message, "controller:dedicated") {
			return fmt.Errorf("the condition is %s %s", c.Status, c.Message)
		}
		return nil
	})
	s.wantRoute("own-virtbmc-ipmi", "10.0.0.20", "ipmi UDP 10623")
}

// TestWithout_adoption: without the role of adoption a BMC of an earlier line is left
// to its agent, others are served, and it is adopted when there is the role.
func TestWithout_adoption(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.without = []string{"adoption"}
	bmc := s.bmc("vm")
	s.create(s.machine("vm"))
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
	s.create(bmc)
	l := s.legacy(bmc, &corev1.Pod{}, legacyHTTP, legacyIPMI)
	left := &v1beta1.BootOverrideStatus{Mode: v1beta1.BootOverrideModeOneshot, BootOrders: map[string]int64{"disk:root": 1}}
	s.status(bmc, func(status *v1beta1.VirtualMachineBMCStatus) {
		status.ClusterIP, status.BootOverride = l.service.Spec.ClusterIP, left
	})
	c := s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	s.wantReady(s.complete("other"))
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonAdoptionForbidden)
	s.wantEvent(bmc, corev1.EventTypeWarning, v1beta1.ReasonAdoptionForbidden)
	c.wantLack(s, "adoption", 1)
	if diff := cmp.Diff(left, bmc.Status.BootOverride); diff != "" {
		t.Errorf("the agent finds its boot override changed (-want +got):\n%s", diff)
	}
	for _, object := range l.agent {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil || object.GetDeletionTimestamp() != nil {
			t.Errorf("%T is to go (%v)", object, err)
		}
	}
	// Kubernetes' own controller, where it runs, may put its slices in the place of
	// this test's.
	s.eventually("the selector's EndpointSlice", func() error {
		var slices discoveryv1.EndpointSliceList
		if err := s.List(t.Context(), &slices, client.InNamespace(s.namespace), client.MatchingLabels{
			discoveryv1.LabelServiceName: "vm-virtbmc", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}); err != nil {
			return err
		}
		if len(slices.Items) == 0 {
			return errors.New("it is gone")
		}
		return nil
	})
	if is := s.get("vm-virtbmc"); len(is.Spec.Selector) == 0 || is.UID != l.service.UID {
		t.Errorf("the Service leads to others: %v", is.Spec)
	}
	s.wantGone(s.slice("vm-virtbmc-redfish"))

	s.last.Give("adoption")
	// It is looked again every half minute, and at a change.
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Service = &v1beta1.ServiceSpec{Labels: map[string]string{"a": "b"}}
	})
	s.eventually("the agent's pod is to end", func() error {
		pod := l.agent[2]
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		if pod.GetDeletionTimestamp() == nil {
			return errors.New("it is not")
		}
		return nil
	})
	s.wantReady(bmc)
	s.wantOverride(bmc, nil)
	s.wantEvent(bmc, corev1.EventTypeNormal, "BootOverrideCarriedOver")
	for _, object := range l.selected {
		s.wantGone(object)
	}
	if is := s.get("vm-virtbmc"); len(is.Spec.Selector) != 0 || is.Spec.ClusterIP != l.service.Spec.ClusterIP {
		t.Errorf("the Service is %v", is.Spec)
	}
}

// TestWithout_provisioning: without the roles of provisioning machines get no BMC,
// and are told so where they are known to be meant; they get one when there are the
// roles.
func TestWithout_provisioning(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.without = []string{"provisioning", "provisioning:cluster"}
	change(s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, func(namespace *corev1.Namespace) {
		namespace.Labels["bmcs"] = "all"
	})
	c := s.controller(func(config *reconciler.Config) { config.Provision.Namespaces = selector(t, "bmcs in (all)") })
	s.frontend("frontend-0", "10.0.0.10")
	s.wantReady(s.complete("other"))
	machine := s.labeled("vm", nil)
	c.wantLack(s, "provisioning:cluster", 1)

	s.last.Give("provisioning:cluster")
	c.wantLack(s, "provisioning:cluster", 0)
	s.eventually("event", func() error {
		var list eventsv1.EventList
		if err := s.List(t.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == "vm" && e.Reason == "NotProvisioned" && strings.Contains(e.Note, "bmc.kubevirt.io:controller:provisioning") {
				return nil
			}
		}
		return errors.New("not there")
	})
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "vm-bmc-credentials"}, &corev1.Secret{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("there is a Secret that nobody needs (%v)", err)
	}
	s.last.Give("provisioning")
	s.wantProvisioned(machine)
}
