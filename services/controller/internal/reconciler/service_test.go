// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

func wantedVM(spec v1beta1.ServiceSpec) wanted {
	return wanted{
		ref: registry.Ref{Namespace: "lab", Name: "vm-bmc"}, uid: "uid-1", machine: "vm",
		mode: v1beta1.FrontendModeShared, ipmi: true, https: true, service: spec,
	}
}

// made is the Service that an API server makes of what is applied.
func made(t *testing.T, s service) *corev1.Service {
	t.Helper()
	var is corev1.Service
	if err := convert(s.apply("service-uid"), &is); err != nil {
		t.Fatal(err)
	}
	return &is
}

func ptrTo[T any](value T) *T { return &value }

func TestServiceOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec v1beta1.ServiceSpec
		want string
	}{
		"nothing is said": {v1beta1.ServiceSpec{}, `{"type": "ClusterIP", "ports": [
			{"name": "ipmi", "protocol": "UDP", "port": 623, "targetPort": 0}, {"name": "redfish-https", "protocol": "TCP", "port": 443, "targetPort": 0}]}`},
		"node ports": {v1beta1.ServiceSpec{Type: "NodePort", NodePorts: &v1beta1.ServicePorts{IPMI: ptrTo(int32(30623))}}, `{"type": "NodePort", "externalTrafficPolicy": "Cluster", "ports": [
			{"name": "ipmi", "protocol": "UDP", "port": 623, "targetPort": 0, "nodePort": 30623}, {"name": "redfish-https", "protocol": "TCP", "port": 443, "targetPort": 0}]}`},
		"a load balancer": {v1beta1.ServiceSpec{
			Type: "LoadBalancer", ExternalTrafficPolicy: "Local", LoadBalancerClass: ptrTo("lab/lb"), LoadBalancerSourceRanges: []string{"10.0.0.0/8"},
		}, `{"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "lab/lb", "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": [
			{"name": "ipmi", "protocol": "UDP", "port": 623, "targetPort": 0}, {"name": "redfish-https", "protocol": "TCP", "port": 443, "targetPort": 0}]}`},
		"what is for other types is left out": {v1beta1.ServiceSpec{
			Type: "ClusterIP", NodePorts: &v1beta1.ServicePorts{IPMI: ptrTo(int32(30623))}, LoadBalancerClass: ptrTo("lab/lb"), LoadBalancerSourceRanges: []string{"10.0.0.0/8"},
		}, `{"type": "ClusterIP", "ports": [
			{"name": "ipmi", "protocol": "UDP", "port": 623, "targetPort": 0}, {"name": "redfish-https", "protocol": "TCP", "port": 443, "targetPort": 0}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.spec.Labels = map[string]string{"team": "a", v1beta1.LabelVMName: "another"}
			tc.spec.Annotations = map[string]string{"note": "b"}
			s := serviceOf(wantedVM(tc.spec))
			is := made(t, s)
			var want corev1.ServiceSpec
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, is.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			wantMeta := metav1.ObjectMeta{
				Namespace: "lab", Name: "vm-virtbmc", UID: "service-uid",
				Labels:      map[string]string{"team": "a", v1beta1.LabelVirtualMachineBMCName: "vm-bmc", v1beta1.LabelVMName: "vm"},
				Annotations: map[string]string{"note": "b"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "bmc.kubevirt.io/v1beta1", Kind: "VirtualMachineBMC", Name: "vm-bmc", UID: "uid-1",
					Controller: ptrTo(true), BlockOwnerDeletion: ptrTo(false),
				}},
			}
			if diff := cmp.Diff(wantMeta, is.ObjectMeta); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
			if !s.inSync(is) {
				t.Error("what was applied is not in sync")
			}
		})
	}
}

func TestService_inSync(t *testing.T) {
	t.Parallel()
	spec := v1beta1.ServiceSpec{
		Type: "LoadBalancer", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"},
		NodePorts: &v1beta1.ServicePorts{IPMI: ptrTo(int32(30623))}, LoadBalancerClass: ptrTo("lab/lb"), LoadBalancerSourceRanges: []string{"10.0.0.0/8", "192.0.2.0/24"},
	}
	for name, tc := range map[string]struct {
		edit func(*corev1.Service)
		want bool
	}{
		"as it was made":            {func(*corev1.Service) {}, true},
		"a label was added":         {func(s *corev1.Service) { s.Labels["x"] = "y" }, true},
		"an annotation was added":   {func(s *corev1.Service) { s.Annotations["x"] = "y" }, true},
		"it has its address":        {func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.1" }, true},
		"it has its node ports":     {func(s *corev1.Service) { s.Spec.Ports[1].NodePort = 30443 }, true},
		"ranges in another order":   {func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "10.0.0.0/8"} }, true},
		"affinity was set":          {func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, true},
		"a label changed":           {func(s *corev1.Service) { s.Labels["team"] = "c" }, false},
		"a label went":              {func(s *corev1.Service) { delete(s.Labels, v1beta1.LabelVMName) }, false},
		"an annotation went":        {func(s *corev1.Service) { s.Annotations = nil }, false},
		"the owner went":            {func(s *corev1.Service) { s.OwnerReferences = nil }, false},
		"the owner is another":      {func(s *corev1.Service) { s.OwnerReferences[0].UID = "uid-2" }, false},
		"the type changed":          {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, false},
		"a port went":               {func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }, false},
		"a port was added":          {func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 22}) }, false},
		"a port has another name":   {func(s *corev1.Service) { s.Spec.Ports[0].Name = "x" }, false},
		"a node port changed":       {func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30624 }, false},
		"a selector was set":        {func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }, false},
		"the traffic policy":        {func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, false},
		"the load balancer's class": {func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil }, false},
		"an external address":       {func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"10.96.200.200"} }, false},
		"a source range went":       {func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = s.Spec.LoadBalancerSourceRanges[:1] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serviceOf(wantedVM(spec))
			is := made(t, s)
			tc.edit(is)
			if got := s.inSync(is); got != tc.want {
				t.Errorf("in sync: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestService_alien(t *testing.T) {
	t.Parallel()
	s := serviceOf(wantedVM(v1beta1.ServiceSpec{}))
	is := made(t, s)
	if got := s.alien(is); got != nil {
		t.Errorf("in what was made there is alien %s", got)
	}
	is.Spec.Selector = map[string]string{"a": "b"}
	is.Spec.Ports = append(is.Spec.Ports, corev1.ServicePort{Name: "ssh", Port: 22, Protocol: corev1.ProtocolTCP})
	is.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	is.Spec.ExternalIPs = []string{"10.96.200.200"}
	want := `{"metadata":{"uid":"service-uid"},"spec":{"externalIPs":null,"loadBalancerSourceRanges":null,"ports":[` +
		`{"name":"ipmi","protocol":"UDP","port":623,"targetPort":0},{"name":"redfish-https","protocol":"TCP","port":443,"targetPort":0}],"selector":null}}`
	if diff := cmp.Diff(want, string(s.alien(is))); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}

func TestPromised(t *testing.T) {
	t.Parallel()
	ports := func(nodePorts ...int32) (list []corev1.ServicePort) {
		for _, n := range nodePorts {
			list = append(list, corev1.ServicePort{Name: nameIPMI, NodePort: n})
		}
		return list
	}
	for name, tc := range map[string]struct {
		spec    corev1.ServiceSpec
		ingress []corev1.LoadBalancerIngress
		want    bool
	}{
		"no address yet":             {corev1.ServiceSpec{Type: "ClusterIP"}, nil, false},
		"without an address":         {corev1.ServiceSpec{Type: "ClusterIP", ClusterIP: "None"}, nil, false},
		"an address":                 {corev1.ServiceSpec{Type: "ClusterIP", ClusterIP: "10.96.0.1", Ports: ports(0)}, nil, true},
		"a node port is missing":     {corev1.ServiceSpec{Type: "NodePort", ClusterIP: "10.96.0.1", Ports: ports(30001, 0)}, nil, false},
		"all node ports":             {corev1.ServiceSpec{Type: "NodePort", ClusterIP: "10.96.0.1", Ports: ports(30001, 30002)}, nil, true},
		"no load balancer yet":       {corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1", Ports: ports(30001)}, nil, false},
		"a load balancer's address":  {corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1"}, []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, true},
		"a load balancer's hostname": {corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1"}, []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := &corev1.Service{Spec: tc.spec, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: tc.ingress}}}
			if got := promised(is); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestClientPort(t *testing.T) {
	t.Parallel()
	is := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: nameIPMI, NodePort: 30623}, {Name: nameHTTPS, NodePort: 30443}, {Name: nameHTTP},
	}}}
	for kind, want := range map[corev1.ServiceType][3]uint32{
		corev1.ServiceTypeClusterIP:    {listenIPMI: 623, listenHTTPS: 443, listenHTTP: 80},
		corev1.ServiceTypeNodePort:     {listenIPMI: 30623, listenHTTPS: 30443, listenHTTP: 80},
		corev1.ServiceTypeLoadBalancer: {listenIPMI: 623, listenHTTPS: 443, listenHTTP: 80},
	} {
		is.Spec.Type = kind
		for l, port := range want {
			if got := clientPort(is, listener(l)); got != port {
				t.Errorf("%s: port %d of listener %d, want %d", kind, got, l, port)
			}
		}
	}
	if got := clientPort(nil, listenIPMI); got != 623 {
		t.Errorf("without a Service: %d", got)
	}
}

func TestClientAddress(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		is   *corev1.Service
		want string
	}{
		"no Service yet": {nil, ""},
		"ClusterIP":      {&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}, "10.96.0.1"},
		"headless":       {&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None"}}, ""},
		"NodePort":       {&corev1.Service{Spec: corev1.ServiceSpec{Type: "NodePort", ClusterIP: "10.96.0.1"}}, "10.96.0.1"},
		"LoadBalancer": {&corev1.Service{
			Spec: corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1"},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{Hostname: "lb.example"}, {IP: "192.0.2.1"},
			}}},
		}, "192.0.2.1"},
		"LoadBalancer that has no address yet": {&corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1"}}, "10.96.0.1"},
	} {
		if got := clientAddress(tc.is); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestSliceOf(t *testing.T) {
	t.Parallel()
	w := wantedVM(v1beta1.ServiceSpec{})
	w.http = true
	ports := map[listener]int32{listenIPMI: 10001, listenHTTPS: 10002, listenHTTP: 10003}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "frontend-0", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{PodIP: "10.0.0.1"},
	}
	for name, tc := range map[string]struct {
		protocol registryv1.Protocol
		address  string
		want     string
	}{
		"IPMI": {registryv1.Protocol_PROTOCOL_IPMI, "10.0.0.1", `{"addressType": "IPv4",
			"ports": [{"name": "ipmi", "protocol": "UDP", "port": 10001}],
			"endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "node-1", "conditions": {"ready": true, "serving": true, "terminating": false},
				"targetRef": {"kind": "Pod", "namespace": "system", "name": "frontend-0", "uid": "pod-uid"}}]}`},
		"Redfish over IPv6": {registryv1.Protocol_PROTOCOL_REDFISH, "fd00::1", `{"addressType": "IPv6",
			"ports": [{"name": "redfish-https", "protocol": "TCP", "port": 10002}, {"name": "redfish", "protocol": "TCP", "port": 10003}],
			"endpoints": [{"addresses": ["fd00::1"], "nodeName": "node-1", "conditions": {"ready": true, "serving": true, "terminating": false},
				"targetRef": {"kind": "Pod", "namespace": "system", "name": "frontend-0", "uid": "pod-uid"}}]}`},
		"no replica": {registryv1.Protocol_PROTOCOL_IPMI, "", `{"addressType": "IPv4", "ports": [{"name": "ipmi", "protocol": "UDP", "port": 10001}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := pod.DeepCopy()
			owner.Status.PodIP = tc.address
			if tc.address == "" {
				owner = nil
			}
			s := sliceOf(w, tc.protocol, ports, owner)
			var is, want discoveryv1.EndpointSlice
			if err := convert(s.apply(""), &is); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			got := is
			got.ObjectMeta, got.TypeMeta = metav1.ObjectMeta{}, metav1.TypeMeta{}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("EndpointSlice (-want +got):\n%s", diff)
			}
			wantLabels := map[string]string{
				"kubernetes.io/service-name": "vm-virtbmc", "endpointslice.kubernetes.io/managed-by": sliceManager,
				v1beta1.LabelVirtualMachineBMCName: "vm-bmc", v1beta1.LabelVMName: "vm",
			}
			if diff := cmp.Diff(wantLabels, is.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if !s.inSync(&is) {
				t.Error("what was applied is not in sync")
			}
		})
	}
}

func TestEndpointSlice_inSync(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "frontend-0", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{PodIP: "10.0.0.1"},
	}
	s := sliceOf(wantedVM(v1beta1.ServiceSpec{}), registryv1.Protocol_PROTOCOL_IPMI, map[listener]int32{listenIPMI: 10001}, pod)
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"another address": func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.0.0.2"} },
		"a second address": func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.2")
		},
		"a second endpoint":  func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) },
		"no endpoint":        func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil },
		"another node":       func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = nil },
		"not ready":          func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = ptrTo(false) },
		"another pod":        func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.UID = "other" },
		"no pod":             func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = nil },
		"another port":       func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptrTo(int32(1)) },
		"no port":            func(s *discoveryv1.EndpointSlice) { s.Ports = nil },
		"another name":       func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = ptrTo("x") },
		"another Service":    func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "x" },
		"another controller": func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) },
		"no owner":           func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var is discoveryv1.EndpointSlice
			if err := convert(s.apply(""), &is); err != nil {
				t.Fatal(err)
			}
			edit(&is)
			if s.inSync(&is) {
				t.Error("is in sync")
			}
		})
	}
}
