// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// sliceManager marks our EndpointSlices, which Kubernetes' own controllers leave
// alone for it.
const sliceManager = "controller.bmc.kubevirt.io"

// endpointSlice is what the EndpointSlice of a BMC's frontend is to be.
type endpointSlice struct {
	namespace, name string
	owner           *metav1ac.OwnerReferenceApplyConfiguration
	labels          map[string]string
	family          discoveryv1.AddressType
	ports           []slicePort
	pod             *corev1.Pod // nil: there is none
}

// slicePort is a port of an EndpointSlice.
type slicePort struct {
	name     string
	protocol corev1.Protocol
	port     int32
}

// sliceName is the name of the EndpointSlice of a frontend.
func sliceName(w wanted, protocol registryv1.Protocol) string {
	if protocol == registryv1.Protocol_PROTOCOL_IPMI {
		return w.serviceName() + "-ipmi"
	}
	return w.serviceName() + "-redfish"
}

// listenersOf are the listeners of a protocol.
func listenersOf(w wanted, protocol registryv1.Protocol) []listener {
	return slices.DeleteFunc(w.listeners(), func(l listener) bool {
		return (l == listenIPMI) != (protocol == registryv1.Protocol_PROTOCOL_IPMI)
	})
}

// sliceOf returns what the EndpointSlice of a frontend is to be, whose owner is a
// pod; nil: no replica is. Ports are those of the BMC.
func sliceOf(w wanted, protocol registryv1.Protocol, ports map[listener]int32, pod *corev1.Pod) endpointSlice {
	s := endpointSlice{
		namespace: w.ref.Namespace, name: sliceName(w, protocol), owner: ownerOf(w), labels: labelsOf(w),
		family: discoveryv1.AddressTypeIPv4, pod: pod,
	}
	s.labels[discoveryv1.LabelServiceName] = w.serviceName()
	s.labels[discoveryv1.LabelManagedBy] = sliceManager
	for _, l := range listenersOf(w, protocol) {
		port := portOf(l)
		s.ports = append(s.ports, slicePort{name: port.name, protocol: port.protocol, port: ports[l]})
	}
	if pod != nil {
		if ip, err := netip.ParseAddr(pod.Status.PodIP); err == nil && ip.Is6() {
			s.family = discoveryv1.AddressTypeIPv6
		}
	}
	return s
}

// apply returns the EndpointSlice for server-side apply; uid is that of the one
// that there is, empty when there is none.
func (s *endpointSlice) apply(uid types.UID) *discoveryv1ac.EndpointSliceApplyConfiguration {
	a := discoveryv1ac.EndpointSlice(s.name, s.namespace).
		WithLabels(s.labels).WithOwnerReferences(s.owner).WithAddressType(s.family)
	for _, port := range s.ports {
		a.WithPorts(discoveryv1ac.EndpointPort().WithName(port.name).WithProtocol(port.protocol).WithPort(port.port))
	}
	if uid != "" {
		a.WithUID(uid)
	}
	if s.pod == nil {
		return a
	}
	endpoint := discoveryv1ac.Endpoint().
		WithAddresses(s.pod.Status.PodIP).
		// The owner was told to serve; whether it does is its matter. A move is one
		// change, not two.
		WithConditions(discoveryv1ac.EndpointConditions().WithReady(true).WithServing(true).WithTerminating(false)).
		WithTargetRef(corev1ac.ObjectReference().WithKind("Pod").
			WithNamespace(s.pod.Namespace).WithName(s.pod.Name).WithUID(s.pod.UID))
	if s.pod.Spec.NodeName != "" {
		endpoint.WithNodeName(s.pod.Spec.NodeName)
	}
	return a.WithEndpoints(endpoint)
}

// moves tells whether an EndpointSlice is as it is to be but for where it leads.
func (s *endpointSlice) moves(is *discoveryv1.EndpointSlice) bool {
	return ownedBy(is, *s.owner.UID) && within(s.labels, is.Labels) && is.AddressType == s.family
}

// moved returns an EndpointSlice with the endpoints and ports that it is to have.
// Both lists are atomic, so that those of server-side apply never add to them; and
// a list that is empty is one that server-side apply could not empty, since what it
// leaves out stays while the manager of updates has it too.
func (s *endpointSlice) moved(is *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	to := is.DeepCopy()
	to.Ports, to.Endpoints = nil, []discoveryv1.Endpoint{}
	for _, port := range s.ports {
		to.Ports = append(to.Ports, discoveryv1.EndpointPort{Name: &port.name, Protocol: &port.protocol, Port: &port.port})
	}
	if s.pod == nil {
		return to
	}
	endpoint := discoveryv1.Endpoint{
		Addresses:  []string{s.pod.Status.PodIP},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.pod.Namespace, Name: s.pod.Name, UID: s.pod.UID},
	}
	if s.pod.Spec.NodeName != "" {
		endpoint.NodeName = &s.pod.Spec.NodeName
	}
	to.Endpoints = append(to.Endpoints, endpoint)
	return to
}

// inSync tells whether an EndpointSlice is as it is to be.
func (s *endpointSlice) inSync(is *discoveryv1.EndpointSlice) bool {
	if !ownedBy(is, *s.owner.UID) || !within(s.labels, is.Labels) || is.AddressType != s.family ||
		!slices.EqualFunc(s.ports, is.Ports, slicePort.is) {
		return false
	}
	if s.pod == nil {
		return len(is.Endpoints) == 0
	}
	return len(is.Endpoints) == 1 && s.names(&is.Endpoints[0])
}

func (p slicePort) is(other discoveryv1.EndpointPort) bool {
	return other.Name != nil && *other.Name == p.name &&
		other.Protocol != nil && *other.Protocol == p.protocol &&
		other.Port != nil && *other.Port == p.port
}

// names tells whether an endpoint is the pod.
func (s *endpointSlice) names(is *discoveryv1.Endpoint) bool {
	node := ""
	if is.NodeName != nil {
		node = *is.NodeName
	}
	target := is.TargetRef
	return slices.Equal(is.Addresses, []string{s.pod.Status.PodIP}) && node == s.pod.Spec.NodeName &&
		is.Conditions.Ready != nil && *is.Conditions.Ready &&
		target != nil && target.Kind == "Pod" && target.Name == s.pod.Name &&
		target.Namespace == s.pod.Namespace && target.UID == s.pod.UID
}
