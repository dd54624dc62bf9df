// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
)

// Ports of a BMC's Service, and their names, by which EndpointSlices refer to
// them. Those of plain HTTP and IPMI are what users of earlier lines know.
const (
	serviceHTTP  = 80
	serviceHTTPS = 443
	serviceIPMI  = 623

	nameHTTP  = "redfish"
	nameHTTPS = "redfish-https"
	nameIPMI  = "ipmi"
)

// servicePort is a port of a BMC's Service.
type servicePort struct {
	name     string
	protocol corev1.Protocol
	port     int32
	nodePort int32 // 0: Kubernetes chooses, or there is none
}

// portOf returns a listener's port of the Service.
func portOf(l listener) servicePort {
	switch l {
	case listenHTTP:
		return servicePort{name: nameHTTP, protocol: corev1.ProtocolTCP, port: serviceHTTP}
	case listenHTTPS:
		return servicePort{name: nameHTTPS, protocol: corev1.ProtocolTCP, port: serviceHTTPS}
	default:
		return servicePort{name: nameIPMI, protocol: corev1.ProtocolUDP, port: serviceIPMI}
	}
}

// service is what a BMC's Service is to be.
type service struct {
	namespace, name string
	owner           *metav1ac.OwnerReferenceApplyConfiguration
	labels          map[string]string
	annotations     map[string]string
	kind            corev1.ServiceType
	ports           []servicePort
	traffic         corev1.ServiceExternalTrafficPolicy // empty: there is none
	class           *string
	sources         []string
}

// serviceOf returns what a BMC's Service is to be.
func serviceOf(w wanted) service {
	s := service{
		namespace: w.ref.Namespace, name: w.serviceName(), owner: ownerOf(w),
		labels: map[string]string{}, annotations: w.service.Annotations,
		kind: corev1.ServiceTypeClusterIP,
	}
	maps.Copy(s.labels, w.service.Labels)
	maps.Copy(s.labels, labelsOf(w))
	if w.service.Type != "" {
		s.kind = corev1.ServiceType(w.service.Type)
	}
	for _, l := range w.listeners() {
		port := portOf(l)
		if n := nodePort(w.service.NodePorts, l); n != nil && s.kind != corev1.ServiceTypeClusterIP {
			port.nodePort = *n
		}
		s.ports = append(s.ports, port)
	}
	if s.kind != corev1.ServiceTypeClusterIP {
		s.traffic = corev1.ServiceExternalTrafficPolicyCluster
		if policy := w.service.ExternalTrafficPolicy; policy != "" {
			s.traffic = corev1.ServiceExternalTrafficPolicy(policy)
		}
	}
	if s.kind == corev1.ServiceTypeLoadBalancer {
		s.class, s.sources = w.service.LoadBalancerClass, w.service.LoadBalancerSourceRanges
	}
	return s
}

func nodePort(ports *v1beta1.ServicePorts, l listener) *int32 {
	switch {
	case ports == nil:
		return nil
	case l == listenHTTP:
		return ports.HTTP
	case l == listenHTTPS:
		return ports.HTTPS
	default:
		return ports.IPMI
	}
}

// labelsOf are the labels of what belongs to a BMC.
func labelsOf(w wanted) map[string]string {
	return map[string]string{v1beta1.LabelVirtualMachineBMCName: w.ref.Name, v1beta1.LabelVMName: w.machine}
}

// ownerOf makes the BMC the owner of an object, with which it goes. It does not
// block the BMC's deletion, which would take a right on its finalizers.
func ownerOf(w wanted) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1beta1.GroupVersion.String()).WithKind("VirtualMachineBMC").
		WithName(w.ref.Name).WithUID(w.uid).
		WithController(true).WithBlockOwnerDeletion(false)
}

// ownedBy tells whether an object is a BMC's.
func ownedBy(object metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOfNoCopy(object)
	return owner != nil && owner.UID == uid
}

// apply returns the Service for server-side apply; uid is that of the Service
// that there is, empty when there is none.
func (s *service) apply(uid types.UID) *corev1ac.ServiceApplyConfiguration {
	spec := corev1ac.ServiceSpec().WithType(s.kind)
	for _, port := range s.ports {
		p := corev1ac.ServicePort().WithName(port.name).WithProtocol(port.protocol).WithPort(port.port)
		if port.nodePort != 0 {
			p.WithNodePort(port.nodePort)
		}
		spec.WithPorts(p)
	}
	if s.traffic != "" {
		spec.WithExternalTrafficPolicy(s.traffic)
	}
	if s.class != nil {
		spec.WithLoadBalancerClass(*s.class)
	}
	spec.WithLoadBalancerSourceRanges(s.sources...)
	a := corev1ac.Service(s.name, s.namespace).WithLabels(s.labels).WithOwnerReferences(s.owner).WithSpec(spec)
	if len(s.annotations) > 0 {
		a.WithAnnotations(s.annotations)
	}
	if uid != "" {
		a.WithUID(uid)
	}
	return a
}

// inSync tells whether a Service is as it is to be. What others may add (labels,
// annotations, affinity) is theirs.
func (s *service) inSync(is *corev1.Service) bool {
	switch {
	case !ownedBy(is, *s.owner.UID),
		!within(s.labels, is.Labels), !within(s.annotations, is.Annotations),
		is.Spec.Type != s.kind, s.traffic != "" && is.Spec.ExternalTrafficPolicy != s.traffic,
		s.class != nil && (is.Spec.LoadBalancerClass == nil || *is.Spec.LoadBalancerClass != *s.class),
		s.alien(is) != nil:
		return false
	}
	for _, port := range s.ports {
		if !slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool {
			return port.is(p) && (port.nodePort == 0 || port.nodePort == p.NodePort)
		}) {
			return false
		}
	}
	return slices.Equal(sorted(s.sources), sorted(is.Spec.LoadBalancerSourceRanges))
}

func (p servicePort) is(other corev1.ServicePort) bool {
	return p.name == other.Name && p.protocol == other.Protocol && p.port == other.Port
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// within tells whether all of a map's entries are in another.
func within(some, all map[string]string) bool {
	for key, value := range some {
		if got, ok := all[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// alien returns a merge patch that takes out of a Service what must not be there
// and what server-side apply leaves alone, for others have put it there: a
// selector, ports, source ranges, and addresses, traffic to which the Service would
// take from whom they belong to. It is nil when there is nothing.
func (s *service) alien(is *corev1.Service) []byte {
	spec := map[string]any{}
	if len(is.Spec.Selector) > 0 {
		spec["selector"] = nil
	}
	var ports []corev1.ServicePort
	for _, port := range is.Spec.Ports {
		if slices.ContainsFunc(s.ports, func(p servicePort) bool { return p.protocol == port.Protocol && p.port == port.Port }) {
			ports = append(ports, port)
		}
	}
	if len(ports) < len(is.Spec.Ports) && len(ports) > 0 {
		spec["ports"] = ports
	}
	if len(s.sources) == 0 && len(is.Spec.LoadBalancerSourceRanges) > 0 {
		spec["loadBalancerSourceRanges"] = nil
	}
	if len(is.Spec.ExternalIPs) > 0 {
		spec["externalIPs"] = nil
	}
	if len(spec) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": is.UID}, "spec": spec})
	if err != nil {
		return nil // Strings and numbers can be marshaled.
	}
	return patch
}

// promised tells whether a Service has what its type promises.
func promised(is *corev1.Service) bool {
	if is.Spec.ClusterIP == "" || is.Spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	switch is.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return !slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
	case corev1.ServiceTypeLoadBalancer:
		return len(is.Status.LoadBalancer.Ingress) > 0
	default:
		return true
	}
}

// nodePortsOf are the node ports that a Service has; nil: it has none.
func nodePortsOf(is *corev1.Service) *v1beta1.ServicePorts {
	var ports v1beta1.ServicePorts
	if is == nil {
		return nil
	}
	for _, port := range is.Spec.Ports {
		if port.NodePort == 0 {
			continue
		}
		switch port.Name {
		case nameHTTP:
			ports.HTTP = &port.NodePort
		case nameHTTPS:
			ports.HTTPS = &port.NodePort
		case nameIPMI:
			ports.IPMI = &port.NodePort
		}
	}
	if ports == (v1beta1.ServicePorts{}) {
		return nil
	}
	return &ports
}

// clientPort is the port that clients use for a listener.
func clientPort(is *corev1.Service, l listener) uint32 {
	port := portOf(l).port
	if is != nil && is.Spec.Type == corev1.ServiceTypeNodePort {
		if n := nodePort(nodePortsOf(is), l); n != nil {
			port = *n
		}
	}
	return uint32(port) //nolint:gosec // It has 16 bits.
}

// clientAddress is an IP address that clients use; empty: the Service has none.
func clientAddress(is *corev1.Service) string {
	if is == nil {
		return ""
	}
	if is.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range is.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				return ingress.IP
			}
		}
	}
	if is.Spec.ClusterIP == corev1.ClusterIPNone {
		return ""
	}
	return is.Spec.ClusterIP
}
