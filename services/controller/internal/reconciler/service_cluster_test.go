//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
)

// get reads a Service.
func (s *site) get(name string) *corev1.Service {
	s.Helper()
	is := s.service(name)
	if err := s.Get(s.Context(), client.ObjectKeyFromObject(is), is); err != nil {
		s.Fatal(err)
	}
	return is
}

func ptrTo[T any](value T) *T { return &value }

// TestService_drift: whatever somebody changes of a Service or an EndpointSlice
// is repaired, and what is theirs is left to them.
func TestService_drift(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	s.create(s.machine("vm"))
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
	bmc := s.bmc("vm")
	bmc.Spec.Service = &v1beta1.ServiceSpec{
		Type: v1beta1.ServiceTypeNodePort, Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"},
	}
	s.create(bmc)
	s.wantReady(bmc)
	made := s.get("vm-virtbmc")

	for name, tc := range map[string]struct {
		edit func(*corev1.Service)
		// repaired tells what is still wrong.
		repaired func(*corev1.Service) error
	}{
		"a label": {
			func(is *corev1.Service) { is.Labels["team"] = "b" },
			func(is *corev1.Service) error { return equal(is.Labels["team"], "a") },
		},
		"the labels by which it is found": {
			func(is *corev1.Service) {
				delete(is.Labels, v1beta1.LabelVirtualMachineBMCName)
				delete(is.Labels, v1beta1.LabelVMName)
			},
			func(is *corev1.Service) error {
				return errors.Join(equal(is.Labels[v1beta1.LabelVirtualMachineBMCName], "vm-bmc"), equal(is.Labels[v1beta1.LabelVMName], "vm"))
			},
		},
		"an annotation": {
			func(is *corev1.Service) { delete(is.Annotations, "note") },
			func(is *corev1.Service) error { return equal(is.Annotations["note"], "b") },
		},
		"the type": {
			func(is *corev1.Service) { is.Spec.Type = corev1.ServiceTypeClusterIP },
			func(is *corev1.Service) error { return equal(is.Spec.Type, corev1.ServiceTypeNodePort) },
		},
		"a selector": {
			func(is *corev1.Service) { is.Spec.Selector = map[string]string{"app": "other"} },
			func(is *corev1.Service) error { return equal(len(is.Spec.Selector), 0) },
		},
		"one port more": {
			func(is *corev1.Service) {
				is.Spec.Ports = append(is.Spec.Ports, corev1.ServicePort{Name: "ssh", Port: 22, Protocol: corev1.ProtocolTCP})
			},
			func(is *corev1.Service) error { return equal(len(is.Spec.Ports), 2) },
		},
		"one port less": {
			func(is *corev1.Service) { is.Spec.Ports = is.Spec.Ports[:1] },
			func(is *corev1.Service) error { return equal(len(is.Spec.Ports), 2) },
		},
		"a port's number": {
			func(is *corev1.Service) { is.Spec.Ports[0].Port = 8080 },
			func(is *corev1.Service) error {
				var sum int32
				for _, port := range is.Spec.Ports {
					sum += port.Port
				}
				return errors.Join(equal(len(is.Spec.Ports), 2), equal(sum, 443+623))
			},
		},
		"addresses of others": {
			func(is *corev1.Service) { is.Spec.ExternalIPs = []string{"198.51.100.7"} },
			func(is *corev1.Service) error { return equal(len(is.Spec.ExternalIPs), 0) },
		},
		"the traffic policy": {
			func(is *corev1.Service) { is.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			func(is *corev1.Service) error {
				return equal(is.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
			},
		},
	} {
		is := s.get("vm-virtbmc")
		change(s, is, func(is *corev1.Service) {
			tc.edit(is)
			is.Annotations = maps.Clone(is.Annotations)
			is.Annotations["their"] = name
		})
		s.eventually(name, func() error { return tc.repaired(s.get("vm-virtbmc")) })
		is = s.get("vm-virtbmc")
		if is.UID != made.UID || is.Spec.ClusterIP != made.Spec.ClusterIP {
			t.Errorf("after %s the Service is another, at %s", name, is.Spec.ClusterIP)
		}
		if is.Annotations["their"] != name {
			t.Errorf("after %s somebody's annotation is %q", name, is.Annotations["their"])
		}
	}
	s.wantReady(bmc)

	udp := fmt.Sprintf("ipmi UDP %d", *bmc.Status.Frontend.IPMI.Port)
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"the address": func(is *discoveryv1.EndpointSlice) { is.Endpoints[0].Addresses = []string{"10.0.0.66"} },
		"the port":    func(is *discoveryv1.EndpointSlice) { is.Ports[0].Port = ptrTo(int32(66)) },
		"no endpoint": func(is *discoveryv1.EndpointSlice) { is.Endpoints = nil },
		"its Service": func(is *discoveryv1.EndpointSlice) { is.Labels[discoveryv1.LabelServiceName] = "other" },
		"its manager": func(is *discoveryv1.EndpointSlice) { delete(is.Labels, discoveryv1.LabelManagedBy) },
	} {
		change(s, s.slice("vm-virtbmc-ipmi"), edit)
		s.eventually(name, func() error {
			is := s.slice("vm-virtbmc-ipmi")
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(is), is); err != nil {
				return err
			}
			return errors.Join(routed(is, "10.0.0.10", udp), equal(is.Labels[discoveryv1.LabelServiceName], "vm-virtbmc"))
		})
	}
	s.remove(s.slice("vm-virtbmc-ipmi"))
	s.wantRoute("vm-virtbmc-ipmi", "10.0.0.10", udp)
	s.remove(s.service("vm-virtbmc"))
	s.eventually("the Service is made again", func() error {
		is := s.service("vm-virtbmc")
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(is), is); err != nil {
			return err
		}
		if is.UID == made.UID {
			return errors.New("it is the old one")
		}
		return nil
	})
	s.wantReady(bmc)
}

func equal[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("%v, want %v", got, want)
	}
	return nil
}

// TestService_types: a Service follows its BMC from one type to the others, at
// the same address, and the status and the frontends follow the Service.
func TestService_types(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	address := bmc.Status.ClusterIP
	if address == "" || bmc.Status.NodePorts != nil {
		t.Errorf("status of ClusterIP: %q, %v", address, bmc.Status.NodePorts)
	}
	edit := func(spec v1beta1.ServiceSpec) {
		t.Helper()
		change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.Service = &spec })
	}

	edit(v1beta1.ServiceSpec{Type: v1beta1.ServiceTypeNodePort, Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"}})
	s.wantReady(bmc)
	if bmc.Status.NodePorts == nil || bmc.Status.NodePorts.IPMI == nil || bmc.Status.NodePorts.HTTPS == nil || bmc.Status.NodePorts.HTTP != nil {
		t.Fatalf("node ports: %+v", bmc.Status.NodePorts)
	}
	s.eventually("frontends know the node port", func() error {
		return errors.Join(
			equal(f.get(ipmi, "vm-bmc").GetIpmi().GetUdp().GetClientPort(), uint32(*bmc.Status.NodePorts.IPMI)),
			equal(f.get(redfish, "vm-bmc").GetRedfish().GetHttps().GetClientPort(), uint32(*bmc.Status.NodePorts.HTTPS)),
		)
	})
	if is := s.get("vm-virtbmc"); is.Labels["team"] != "a" || is.Annotations["note"] != "b" {
		t.Errorf("labels %v, annotations %v", is.Labels, is.Annotations)
	}

	edit(v1beta1.ServiceSpec{
		Type: v1beta1.ServiceTypeLoadBalancer, LoadBalancerClass: ptrTo("lab/lb"), LoadBalancerSourceRanges: []string{"10.0.0.0/8"},
		ExternalTrafficPolicy: v1beta1.ExternalTrafficPolicyLocal,
	})
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonServiceNotReady)
	is := s.get("vm-virtbmc")
	if is.Labels["team"] != "" || is.Annotations["note"] != "" {
		t.Errorf("what is no longer wanted is there: labels %v, annotations %v", is.Labels, is.Annotations)
	}
	if *is.Spec.LoadBalancerClass != "lab/lb" || is.Spec.ExternalTrafficPolicy != "Local" || is.Spec.LoadBalancerSourceRanges[0] != "10.0.0.0/8" {
		t.Errorf("load balancer: %+v", is.Spec)
	}
	is.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
	if err := s.Status().Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	s.wantReady(bmc)
	if bmc.Status.LoadBalancerHostname != "lb.example" || bmc.Status.LoadBalancerIP != "" {
		t.Errorf("load balancer at %q, %q", bmc.Status.LoadBalancerHostname, bmc.Status.LoadBalancerIP)
	}
	s.eventually("frontends know the Service's port", func() error {
		return equal(f.get(ipmi, "vm-bmc").GetIpmi().GetUdp().GetClientPort(), uint32(623))
	})
	is = s.get("vm-virtbmc")
	is.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
	if err := s.Status().Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	s.eventually("the load balancer's address", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		return errors.Join(equal(bmc.Status.LoadBalancerIP, "192.0.2.7"), equal(bmc.Status.LoadBalancerHostname, ""))
	})

	edit(v1beta1.ServiceSpec{})
	s.wantReady(bmc)
	is = s.get("vm-virtbmc")
	if is.Spec.Type != corev1.ServiceTypeClusterIP || is.Spec.ClusterIP != address || is.Spec.LoadBalancerClass != nil || len(is.Spec.LoadBalancerSourceRanges) > 0 {
		t.Errorf("the Service is %+v, want type ClusterIP at %s", is.Spec, address)
	}
	if bmc.Status.LoadBalancerIP != "" || bmc.Status.NodePorts != nil || bmc.Status.ClusterIP != address {
		t.Errorf("the status is %+v", bmc.Status)
	}

	off := false
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.IPMI.Enabled = &off })
	s.wantReady(bmc)
	s.wantGone(s.slice("vm-virtbmc-ipmi"))
	if ports := s.get("vm-virtbmc").Spec.Ports; len(ports) != 1 || ports[0].Port != 443 {
		t.Errorf("without IPMI the ports are %v", ports)
	}
	if got := f.has(ipmi); len(got) > 0 {
		t.Errorf("without IPMI the frontend serves %v", got)
	}
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Redfish = &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{Enabled: &off}}
	})
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonNothingEnabled)
	s.wantGone(s.service("vm-virtbmc"))
}

// TestService_of_somebody_else: a Service of the BMC's name that was there before
// is left alone.
func TestService_of_somebody_else(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	other := s.service("vm-virtbmc")
	other.Labels = map[string]string{"app": "theirs"}
	other.Spec = corev1.ServiceSpec{Selector: map[string]string{"app": "theirs"}, Ports: []corev1.ServicePort{{Port: 22}}}
	s.create(other)
	bmc := s.complete("vm")
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonServiceNotOwned)
	s.wantCondition(bmc, v1beta1.ConditionServiceReady, metav1.ConditionFalse, v1beta1.ReasonServiceNotOwned)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonServiceNotOwned)
	is := s.get("vm-virtbmc")
	if is.ResourceVersion != other.ResourceVersion {
		t.Errorf("the Service has become %+v", is)
	}
	if bmc.Status.ClusterIP != "" {
		t.Errorf("the status has its address, %s", bmc.Status.ClusterIP)
	}
	s.remove(other)
	// Looked for again by anything that happens to the BMC, else after 30 s.
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Labels = map[string]string{"look": "again"} })
	s.wantReady(bmc)
}

// TestService_sliceOfSomebodyElse: an EndpointSlice of the name that one of the BMC's
// is to have is left alone, whatever labels it has and whoever else's it is.
func TestService_sliceOfSomebodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	theirs := func(name string, labels map[string]string) *discoveryv1.EndpointSlice {
		is := s.slice(name)
		is.Labels, is.AddressType = labels, discoveryv1.AddressTypeIPv4
		is.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.66"}}}
		s.create(is)
		return is
	}
	plain := theirs("vm-virtbmc-ipmi", map[string]string{"app": "theirs"})
	labeled := theirs("vm-virtbmc-redfish", map[string]string{
		v1beta1.LabelVirtualMachineBMCName: "vm-bmc", v1beta1.LabelVMName: "vm",
		discoveryv1.LabelServiceName: "vm-virtbmc", discoveryv1.LabelManagedBy: "theirs",
	})
	further := theirs("theirs", map[string]string{discoveryv1.LabelServiceName: "vm-virtbmc", discoveryv1.LabelManagedBy: "theirs"})
	bmc := s.complete("vm")
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonEndpointSliceNotOwned)
	s.wantCondition(bmc, v1beta1.ConditionFrontendReady, metav1.ConditionFalse, v1beta1.ReasonEndpointSliceNotOwned)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonEndpointSliceNotOwned)
	for _, is := range []*discoveryv1.EndpointSlice{plain, labeled, further} {
		now := s.slice(is.Name)
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
			t.Fatal(err)
		}
		if now.ResourceVersion != is.ResourceVersion {
			t.Errorf("EndpointSlice %s has become %+v", is.Name, now)
		}
	}
	s.remove(plain)
	// One without the BMC's labels is not watched: looked for again by anything that
	// happens to the BMC, else after 30 s.
	s.remove(labeled)
	s.wantRoute("vm-virtbmc-ipmi", "10.0.0.10")
	s.wantRoute("vm-virtbmc-redfish", "10.0.0.10")
	s.wantReady(bmc)

	// That of another BMC, which has no Service of its own to hold against it.
	second := s.bmc("second")
	s.create(s.machine("second"))
	s.create(s.secret("second-secret", map[string]string{"username": "admin", "password": "first"}))
	held := s.slice("second-virtbmc-ipmi")
	held.AddressType = discoveryv1.AddressTypeIPv4
	held.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMC", Name: bmc.Name, UID: bmc.UID, Controller: ptrTo(true),
	}}
	s.create(held)
	s.create(second)
	s.wantCondition(second, v1beta1.ConditionFrontendReady, metav1.ConditionFalse, v1beta1.ReasonFrontendPending)
	s.wantRoute("second-virtbmc-redfish", "10.0.0.10")
	now := s.slice(held.Name)
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(now), now); err != nil {
		t.Fatal(err)
	}
	if now.ResourceVersion != held.ResourceVersion {
		t.Errorf("EndpointSlice %s has become %+v", held.Name, now)
	}
}

// TestService_refused: what the API server says is the condition's message.
func TestService_refused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Service = &v1beta1.ServiceSpec{Type: v1beta1.ServiceTypeNodePort, NodePorts: &v1beta1.ServicePorts{IPMI: ptrTo(int32(623))}}
	})
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonServiceRefused)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonServiceRefused)
	if bmc.Status.ClusterIP == "" {
		t.Error("the Service that there is, and that clients reach, has gone from the status")
	}
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.Service = nil })
	s.wantReady(bmc)
}

// TestService_ofNamespaceThatEnds: a namespace that is being deleted takes no new
// Service, which nobody is to blame for and nobody has to be told of.
func TestService_ofNamespaceThatEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	// Pods go before all else that is in a namespace.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "last", Finalizers: []string{"lab.example/stay"}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "last", Image: "none"}}},
	}
	s.create(pod)
	t.Cleanup(func() { s.letGo(pod) })
	s.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	s.remove(s.service("vm-virtbmc"))
	s.wantCondition(bmc, v1beta1.ConditionServiceReady, metav1.ConditionFalse, v1beta1.ReasonServiceNotReady)
	if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionReady); c == nil || c.Message != "namespace "+s.namespace+" is being deleted" {
		t.Errorf("Ready is %+v", c)
	}
}

// TestService_of_another_machine: a BMC that is given another machine leaves
// nothing behind.
func TestService_of_another_machine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	port := *bmc.Status.Frontend.IPMI.Port
	s.create(s.machine("vm-2"))
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.VirtualMachineRef.Name = "vm-2" })
	s.wantReady(bmc)
	s.wantGone(s.service("vm-virtbmc"))
	s.wantGone(s.slice("vm-virtbmc-ipmi"))
	s.wantGone(s.slice("vm-virtbmc-redfish"))
	s.wantRoute("vm-2-virtbmc-ipmi", "10.0.0.10", fmt.Sprintf("ipmi UDP %d", port))
}
