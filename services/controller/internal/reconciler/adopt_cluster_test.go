//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// legacy is what the controller of an earlier line makes of a BMC, and Kubernetes
// of that.
type legacy struct {
	service *corev1.Service
	// agent are objects that are to go; selected are the endpoints of the agent's
	// pod.
	agent, selected []client.Object
}

// legacy makes what an earlier line has of a BMC of the machine vm: an agent that
// is a Pod or a Deployment, and a Service with these ports.
func (s *site) legacy(bmc *v1beta1.VirtualMachineBMC, agent client.Object, ports ...corev1.ServicePort) *legacy {
	s.Helper()
	const name = "vm-virtbmc"
	labels := map[string]string{v1beta1.LabelVirtualMachineBMCName: bmc.Name, v1beta1.LabelVMName: "vm"}
	yes := true
	owned := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMC", Name: bmc.Name, UID: bmc.UID,
			Controller: &yes, BlockOwnerDeletion: &yes,
		}}}
	}
	pod := corev1.PodSpec{
		SchedulerName: "nobody", Containers: []corev1.Container{{Name: "virtbmc", Image: "none"}},
	}
	switch agent := agent.(type) {
	case *corev1.Pod:
		agent.ObjectMeta, agent.Spec = owned(name, labels), pod
	case *appsv1.Deployment:
		agent.ObjectMeta = owned(name, labels)
		agent.Spec = appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		}
	}
	l := &legacy{agent: []client.Object{
		&corev1.ServiceAccount{ObjectMeta: owned(name, nil)},
		&rbacv1.RoleBinding{
			ObjectMeta: owned(name+"-rolebinding", nil),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kubevirtbmc-virtbmc-role"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: name}},
		},
		agent,
	}}
	for _, object := range l.agent {
		s.create(object)
	}
	if pod, ok := agent.(*corev1.Pod); ok {
		pod.Status.PodIP, pod.Status.PodIPs = "10.0.0.99", []corev1.PodIP{{IP: "10.0.0.99"}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := s.Status().Update(s.Context(), pod); err != nil {
			s.Fatal(err)
		}
	}
	l.service = &corev1.Service{ObjectMeta: owned(name, labels), Spec: corev1.ServiceSpec{
		Selector: map[string]string{v1beta1.LabelVirtualMachineBMCName: bmc.Name}, Ports: ports,
	}}
	s.create(l.service)

	// As the controllers of Endpoints and EndpointSlices do, which a cluster of level
	// api does not have.
	served := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: labels}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: name + "-x7k2p",
			Labels: map[string]string{
				v1beta1.LabelVirtualMachineBMCName: bmc.Name, v1beta1.LabelVMName: "vm",
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: l.service.UID, Controller: &yes}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.99"}}},
	}
	endpoints := &corev1.Endpoints{ //nolint:staticcheck // Kubernetes makes them of a selector still.
		ObjectMeta: served(name),
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // The same.
			Addresses: []corev1.EndpointAddress{{IP: "10.0.0.99"}},
		}},
	}
	l.selected = []client.Object{slice, endpoints}
	for _, object := range l.selected {
		if err := s.Create(s.Context(), object); client.IgnoreAlreadyExists(err) != nil {
			s.Fatal(err)
		}
	}
	return l
}

// status writes a status as the controller of an earlier line does.
func (s *site) status(bmc *v1beta1.VirtualMachineBMC, edit func(*v1beta1.VirtualMachineBMCStatus)) {
	s.Helper()
	s.eventually("status of an earlier line", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		edit(&bmc.Status)
		return s.Status().Update(s.Context(), bmc, client.FieldOwner("manager"))
	})
}

var (
	legacyHTTP = corev1.ServicePort{Name: "redfish", Port: 80, TargetPort: intstr.FromString("redfish"), Protocol: corev1.ProtocolTCP}
	legacyIPMI = corev1.ServicePort{Name: "ipmi", Port: 623, TargetPort: intstr.FromString("ipmi"), Protocol: corev1.ProtocolUDP}
)

// TestAdopt: what earlier lines have of a BMC becomes ours or goes, and the
// address stays.
func TestAdopt(t *testing.T) {
	t.Parallel()
	on := true
	for name, tc := range map[string]struct {
		agent client.Object
		ports []corev1.ServicePort
		ipmi  *v1beta1.IPMISpec
		lost  bool
	}{
		"0.4.1, which always serves IPMI": {&corev1.Pod{}, []corev1.ServicePort{legacyHTTP, legacyIPMI}, nil, true},
		"0.6.0 with IPMI":                 {&corev1.Pod{}, []corev1.ServicePort{legacyHTTP, legacyIPMI}, &v1beta1.IPMISpec{Enabled: &on}, false},
		"main without IPMI":               {&appsv1.Deployment{}, []corev1.ServicePort{legacyHTTP}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.create(s.machine("vm"))
			s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
			bmc := s.bmc("vm")
			bmc.Spec.IPMI = tc.ipmi
			s.create(bmc)
			l := s.legacy(bmc, tc.agent, tc.ports...)
			s.status(bmc, func(status *v1beta1.VirtualMachineBMCStatus) {
				status.ClusterIP = l.service.Spec.ClusterIP
				status.Conditions = []metav1.Condition{{
					Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonServiceReady,
					LastTransitionTime: metav1.Now(), Message: "ClusterIP assigned to the Service",
				}}
				status.BootOverride = &v1beta1.BootOverrideStatus{Mode: v1beta1.BootOverrideModeOneshot, VMIUID: "i", BootOrders: map[string]int64{"disk:root": 1}}
			})

			began := time.Now()
			s.controller()
			s.wantCondition(bmc, v1beta1.ConditionFrontendReady, metav1.ConditionFalse, v1beta1.ReasonFrontendAbsent)
			is := s.get("vm-virtbmc")
			var early error
			if len(is.Spec.Selector) == 0 {
				early = errors.New("the Service has no selector")
			}
			for _, object := range l.agent {
				early = errors.Join(early, s.Get(t.Context(), client.ObjectKeyFromObject(object), object))
			}
			if took := time.Since(began); early != nil && took < 10*time.Second { // It waits 12 s for frontends.
				t.Errorf("%v after a controller's start and before a frontend serves: %v", took, early)
			}

			s.frontend("frontend-0", "10.0.0.10")
			s.wantReady(bmc)
			for _, object := range append(l.agent, l.selected...) {
				if pod, ok := object.(*corev1.Pod); ok {
					s.end(pod)
				}
				s.wantGone(object)
			}
			s.eventually("the Service is ours", func() error {
				is = s.get("vm-virtbmc")
				want := 1
				if tc.ipmi != nil {
					want = 2
				}
				var slices discoveryv1.EndpointSliceList
				if err := s.List(t.Context(), &slices, client.InNamespace(s.namespace), client.MatchingLabels{discoveryv1.LabelServiceName: "vm-virtbmc"}); err != nil {
					return err
				}
				return errors.Join(equal(len(is.Spec.Selector), 0), equal(len(is.Spec.Ports), want), equal(len(slices.Items), want))
			})
			if is.UID != l.service.UID || is.Spec.ClusterIP != l.service.Spec.ClusterIP {
				t.Errorf("the Service is another, at %s, want %s", is.Spec.ClusterIP, l.service.Spec.ClusterIP)
			}
			s.wantReady(bmc)
			s.wantRoute("vm-virtbmc-redfish", "10.0.0.10", fmt.Sprintf("redfish-https TCP %d", *bmc.Status.Frontend.Redfish.HTTPSPort))
			if bmc.Status.BootOverride != nil || bmc.Status.ClusterIP != l.service.Spec.ClusterIP {
				t.Errorf("the status is %+v", bmc.Status)
			}
			s.wantEvent(bmc, "Normal", "BootOverrideCarriedOver")
			machine := s.machine("vm")
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(machine), machine); err != nil {
				t.Fatal(err)
			}
			state := string(bmcresource.State(bmc, string(machine.GetUID())))
			if !strings.HasPrefix(state, `{"leftover":{"id":"`) || !strings.HasSuffix(state, `","instanceUID":"i","orders":{"disk:root":1}}}`) {
				t.Errorf("the power service finds state %s", state)
			}
			lost := meta.IsStatusConditionTrue(bmc.Status.Conditions, v1beta1.ConditionIPMIDisabledByUpgrade)
			if lost != tc.lost {
				t.Errorf("IPMI is said to be lost: %v, want %v", lost, tc.lost)
			}
			if !tc.lost {
				return
			}
			s.wantEvent(bmc, "Warning", v1beta1.ReasonDefaultChanged)
			// Until its owner says what is to be.
			change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.IPMI = &v1beta1.IPMISpec{Enabled: &on} })
			s.wantReady(bmc)
			if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionIPMIDisabledByUpgrade); c != nil {
				t.Errorf("with IPMI: %+v", c)
			}
			change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.IPMI = nil })
			s.wantReady(bmc)
			if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionIPMIDisabledByUpgrade); c != nil {
				t.Errorf("its owner has taken IPMI out: %+v", c)
			}
		})
	}
}

// end ends a pod as its node does.
func (s *site) end(pod *corev1.Pod) {
	s.Helper()
	s.eventually("pod is to end", func() error {
		err := s.Get(s.Context(), client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return client.IgnoreNotFound(err)
	})
	if err := s.Delete(s.Context(), pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
}

// TestAdopt_orphan: an object of an earlier line without its machine loses what
// the line has left, and its address, and knows that it lost IPMI.
func TestAdopt_orphan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bmc := s.bmc("vm")
	bmc.Spec.IPMI = nil
	s.create(bmc)
	l := s.legacy(bmc, &appsv1.Deployment{}, legacyHTTP, legacyIPMI)
	s.status(bmc, func(status *v1beta1.VirtualMachineBMCStatus) { status.ClusterIP = l.service.Spec.ClusterIP })
	s.controller()
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonVirtualMachineNotFound)
	s.wantCondition(bmc, v1beta1.ConditionIPMIDisabledByUpgrade, metav1.ConditionTrue, v1beta1.ReasonDefaultChanged)
	for _, object := range append(l.agent, l.service) {
		s.wantGone(object)
	}
	if bmc.Status.ClusterIP != "" {
		t.Errorf("the status has address %s", bmc.Status.ClusterIP)
	}
}

// TestAdopt_again: the controller of an earlier line that runs on makes its agent
// anew. It goes again, at the next look.
func TestAdopt_again(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller(func(config *reconciler.Config) { config.LeftTime = time.Second })
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	yes := true
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: s.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMC", Name: bmc.Name, UID: bmc.UID, Controller: &yes,
		}}}
	}
	labels := map[string]string{v1beta1.LabelVirtualMachineBMCName: bmc.Name}
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: of("vm-virtbmc")},
		&rbacv1.RoleBinding{ObjectMeta: of("vm-virtbmc-rolebinding"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}},
		&appsv1.Deployment{ObjectMeta: of("vm-virtbmc"), Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "virtbmc", Image: "none"}}}},
		}},
	} {
		s.create(object)
		s.wantGone(object)
	}
	s.wantReady(bmc)
}

// TestAdopt_foreign: objects of those names that are somebody else's stay.
func TestAdopt_foreign(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	theirs := []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc"}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc-rolebinding"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc"},
			Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "theirs", Image: "none"}}},
		},
	}
	for _, object := range theirs {
		s.create(object)
	}
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	for _, object := range theirs {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil || object.GetDeletionTimestamp() != nil {
			t.Errorf("%T is to go (%v)", object, err)
		}
	}
}

// TestSelector: a selector that somebody puts into a Service is taken out, with
// the endpoints that Kubernetes made of it.
func TestSelector(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.without = []string{"adoption"} // The BMC is ours.
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	stop := s.watchReady()
	change(s, s.service("vm-virtbmc"), func(is *corev1.Service) { is.Spec.Selector = map[string]string{"app": "theirs"} })
	slice := s.slice("vm-virtbmc-abcde")
	slice.Labels = map[string]string{
		v1beta1.LabelVirtualMachineBMCName: bmc.Name, discoveryv1.LabelServiceName: "vm-virtbmc",
		discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
	}
	slice.AddressType = discoveryv1.AddressTypeIPv4
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.98"}}}
	s.create(slice)
	own := s.slice("vm-virtbmc-by-hand")
	own.Labels = map[string]string{
		v1beta1.LabelVirtualMachineBMCName: bmc.Name, discoveryv1.LabelServiceName: "vm-virtbmc", discoveryv1.LabelManagedBy: "people",
	}
	own.AddressType = discoveryv1.AddressTypeIPv4
	s.create(own)
	s.wantGone(slice)
	s.eventually("no selector", func() error { return equal(len(s.get("vm-virtbmc").Spec.Selector), 0) })
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
		t.Errorf("what people have made: %v", err)
	}
	s.wantReady(bmc)
	if seen := stop(); len(seen) > 0 {
		t.Errorf("the BMC was not ready: %v", seen)
	}
}
