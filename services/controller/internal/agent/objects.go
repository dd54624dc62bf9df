// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	"kubevirtbmc.dev/api/v1beta1"
)

// suffix follows the machine's name in the names of an agent's objects; the
// ConfigMap has its own, for one of the plain name would look like the user's.
const (
	suffix   = "-virtbmc"
	suffixCA = "-virtbmc-ca"
)

// Ports at which an agent serves its BMC: above 1023 behind the Service, where
// nobody sees them, and those of a BMC on a network of its own, where clients
// reach the pod itself.
var (
	behindService = Ports{HTTP: 10080, HTTPS: 10443, IPMI: 10623}
	onNetwork     = Ports{HTTP: 80, HTTPS: 443, IPMI: 623}
)

const (
	// portHealth has /healthz, /readyz and /metrics, at the pod's address in the
	// cluster's network alone.
	portHealth    = 8081
	nameHealth    = "health"
	namePortHTTP  = "redfish"
	namePortHTTPS = "redfish-https"
	namePortIPMI  = "ipmi"
	containerName = "virtbmc"
	mountPath     = "/run/virtbmc"
	fileCA        = "ca.crt"
	fileToken     = "token"

	// nonroot is the user of the distroless images.
	nonroot = 65532
	// tokenSeconds is how long a token is valid; kubelet renews it before.
	tokenSeconds = 3600
	// drainSeconds is how long a pod that is to end goes on at most, until clients are
	// with its successor.
	drainSeconds = 15
	// endSeconds is how long a pod has to end, drainSeconds included.
	endSeconds = 30
)

// Labels of an agent's objects beside those that name BMC and machine.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	labelManager   = "app.kubernetes.io/managed-by"

	// Name is the value of the label app.kubernetes.io/name.
	Name = "virtbmc"
	// Component is the value of the label app.kubernetes.io/component, by which an
	// agent's objects are told from others of its BMC.
	Component = "agent"
	manager   = "kubevirtbmc-controller"
)

// Ports of an agent.
type Ports struct{ HTTP, HTTPS, IPMI int32 }

// BMC is whom an agent is for.
type BMC struct {
	Namespace, Name string
	UID             types.UID
	// Generation is the VirtualMachineBMC's.
	Generation int64
	// Machine is the name of its VirtualMachine.
	Machine string
	// Networks is the value of the annotation of network attachments; empty: the pod
	// is on the cluster's network alone.
	Networks string
	// Resources of the container; nil: those of the options.
	Resources *v1beta1.ResourceRequirements
	// NodeSelector is the labels that the pod's node must have.
	NodeSelector map[string]string
}

func (b *BMC) key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// ObjectName is the name of most of an agent's objects.
func ObjectName(machine string) string { return machine + suffix }

// Identity is who the agent of a machine's BMC is to the services.
func Identity(namespace, machine string) string {
	return identityPrefix + namespace + ":" + ObjectName(machine)
}

// MachineOf returns the machine of whose BMC an identity would be the agent; false
// when it would be none's.
func MachineOf(identity string) (namespace, machine string, ok bool) {
	account, isAccount := strings.CutPrefix(identity, identityPrefix)
	namespace, name, both := strings.Cut(account, ":")
	machine, suffixed := strings.CutSuffix(name, suffix)
	return namespace, machine, isAccount && both && suffixed && machine != ""
}

// identityPrefix precedes namespace and name of a ServiceAccount in what
// Kubernetes calls it.
const identityPrefix = "system:serviceaccount:"

// IdentityOf is who a pod is to the services.
func IdentityOf(pod *corev1.Pod) string {
	return identityPrefix + pod.Namespace + ":" + pod.Spec.ServiceAccountName
}

// NamespaceOf is the namespace of an identity.
func NamespaceOf(identity string) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(identity, identityPrefix), ":")
	return namespace
}

// Selector selects the objects of all agents.
func Selector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{labelName: Name, labelComponent: Component})
}

// Ports returns at which ports the agent serves.
func (b *BMC) Ports() Ports {
	if b.Networks != "" {
		return onNetwork
	}
	return behindService
}

// Objects are what an agent consists of, for server-side apply.
type Objects struct {
	ServiceAccount *corev1ac.ServiceAccountApplyConfiguration
	Role           *rbacv1ac.RoleApplyConfiguration
	RoleBinding    *rbacv1ac.RoleBindingApplyConfiguration
	CA             *corev1ac.ConfigMapApplyConfiguration
	Deployment     *appsv1ac.DeploymentApplyConfiguration
}

// Objects returns what the agent of a BMC consists of. ca are the CA certificates
// that it trusts, in PEM.
func (o *Options) Objects(b BMC, ca string) Objects {
	name, caName := ObjectName(b.Machine), b.Machine+suffixCA
	owner := metav1ac.OwnerReference().
		WithAPIVersion(v1beta1.GroupVersion.String()).WithKind("VirtualMachineBMC").
		WithName(b.Name).WithUID(b.UID).
		WithController(true).WithBlockOwnerDeletion(false)
	labels := b.labels()
	return Objects{
		// The one token that the pod has is mounted below.
		ServiceAccount: corev1ac.ServiceAccount(name, b.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithAutomountServiceAccountToken(false),
		Role: rbacv1ac.Role(name, b.Namespace).WithLabels(labels).WithOwnerReferences(owner).WithRules(rules(b.Name)...),
		RoleBinding: rbacv1ac.RoleBinding(name, b.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(name)).
			WithSubjects(rbacv1ac.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(b.Namespace).WithName(name)),
		CA: corev1ac.ConfigMap(caName, b.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithData(map[string]string{fileCA: ca}),
		Deployment: appsv1ac.Deployment(name, b.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithSpec(appsv1ac.DeploymentSpec().
				WithReplicas(1).
				WithStrategy(b.strategy()).
				WithSelector(metav1ac.LabelSelector().WithMatchLabels(b.selector())).
				WithTemplate(o.template(b, labels))),
	}
}

// selector is the labels that tell the agent's pods from others, which can't be
// changed.
func (b *BMC) selector() map[string]string {
	return map[string]string{v1beta1.LabelVirtualMachineBMCName: b.Name, v1beta1.LabelVMName: b.Machine}
}

func (b *BMC) labels() map[string]string {
	labels := b.selector()
	maps.Copy(labels, map[string]string{labelName: Name, labelComponent: Component, labelManager: manager})
	return labels
}

// rules are what an agent may do: what the shared frontends may, with its own BMC
// alone.
func rules(bmc string) []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := func(verbs []string, subresources ...string) *rbacv1ac.PolicyRuleApplyConfiguration {
		r := rbacv1ac.PolicyRule().WithAPIGroups(v1beta1.GroupVersion.Group).WithResourceNames(bmc).WithVerbs(verbs...)
		for _, subresource := range subresources {
			r.WithResources("virtualmachinebmcs/" + subresource)
		}
		return r
	}
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule([]string{"get"}, "inventory"),
		rule([]string{"get", "update"}, "boot", "console", "credentials", "media", "power", "state"),
	}
}

// strategy is how a new pod takes the place of an old one. Where both can be there
// at once the BMC is never without one. On a network of its own they can't, for the
// attachment may carry an address, which only one of them can have.
func (b *BMC) strategy() *appsv1ac.DeploymentStrategyApplyConfiguration {
	if b.Networks != "" {
		return appsv1ac.DeploymentStrategy().WithType(appsv1.RecreateDeploymentStrategyType)
	}
	return appsv1ac.DeploymentStrategy().WithType(appsv1.RollingUpdateDeploymentStrategyType).
		WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
			WithMaxSurge(intstr.FromInt32(1)).WithMaxUnavailable(intstr.FromInt32(0)))
}

func (o *Options) template(b BMC, labels map[string]string) *corev1ac.PodTemplateSpecApplyConfiguration {
	pod := corev1ac.PodSpec().
		WithServiceAccountName(ObjectName(b.Machine)).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(endSeconds).
		WithSecurityContext(b.podSecurity()).
		WithContainers(o.container(b)).
		WithVolumes(corev1ac.Volume().WithName("credentials").WithProjected(corev1ac.ProjectedVolumeSource().
			WithSources(
				corev1ac.VolumeProjection().WithServiceAccountToken(corev1ac.ServiceAccountTokenProjection().
					WithPath(fileToken).WithAudience(o.Audience).WithExpirationSeconds(tokenSeconds)),
				corev1ac.VolumeProjection().WithConfigMap(corev1ac.ConfigMapProjection().
					WithName(b.Machine+suffixCA).WithItems(corev1ac.KeyToPath().WithKey(fileCA).WithPath(fileCA))),
			)))
	for _, secret := range o.PullSecrets {
		pod.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(secret))
	}
	if o.PriorityClass != "" {
		pod.WithPriorityClassName(o.PriorityClass)
	}
	if len(b.NodeSelector) > 0 {
		pod.WithNodeSelector(b.NodeSelector)
	}
	template := corev1ac.PodTemplateSpec().WithLabels(labels).WithSpec(pod)
	if b.Networks != "" {
		template.WithAnnotations(map[string]string{v1beta1.AnnotationNetworks: b.Networks})
	}
	return template
}

// podSecurity is within Kubernetes' restricted policy, which allows the one
// sysctl: with it a process that is not root may listen on a BMC's own ports.
func (b *BMC) podSecurity() *corev1ac.PodSecurityContextApplyConfiguration {
	security := corev1ac.PodSecurityContext().
		WithRunAsNonRoot(true).WithRunAsUser(nonroot).WithRunAsGroup(nonroot).
		WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
	if b.Networks != "" {
		security.WithSysctls(corev1ac.Sysctl().WithName("net.ipv4.ip_unprivileged_port_start").WithValue("80"))
	}
	return security
}

func (o *Options) container(b BMC) *corev1ac.ContainerApplyConfiguration {
	ports := b.Ports()
	probe := func(path string) *corev1ac.ProbeApplyConfiguration {
		return corev1ac.Probe().WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString(nameHealth)))
	}
	port := func(name string, number int32, protocol corev1.Protocol) *corev1ac.ContainerPortApplyConfiguration {
		return corev1ac.ContainerPort().WithName(name).WithContainerPort(number).WithProtocol(protocol)
	}
	field := func(name, path string) *corev1ac.EnvVarApplyConfiguration {
		return corev1ac.EnvVar().WithName(name).WithValueFrom(corev1ac.EnvVarSource().
			WithFieldRef(corev1ac.ObjectFieldSelector().WithFieldPath(path)))
	}
	c := corev1ac.Container().
		WithName(containerName).
		WithImage(o.image()).
		WithArgs(
			"--bmc="+b.Namespace+"/"+b.Name,
			// A host name is cut where a pod's name is not.
			"--replica=$(POD_NAME)",
			"--registry="+o.Registry,
			"--power="+o.Power,
			"--media="+o.Media,
			"--ca-file="+mountPath+"/"+fileCA,
			"--token-file="+mountPath+"/"+fileToken,
			fmt.Sprintf("--health-listen=[$(POD_IP)]:%d", portHealth),
		).
		WithEnv(field("POD_NAME", "metadata.name"), field("POD_IP", "status.podIP")).
		WithPorts(
			port(namePortHTTP, ports.HTTP, corev1.ProtocolTCP),
			port(namePortHTTPS, ports.HTTPS, corev1.ProtocolTCP),
			port(namePortIPMI, ports.IPMI, corev1.ProtocolUDP),
			port(nameHealth, portHealth, corev1.ProtocolTCP),
		).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(2)).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(10)).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithVolumeMounts(corev1ac.VolumeMount().WithName("credentials").WithMountPath(mountPath).WithReadOnly(true))
	if b.Networks == "" { // Else the successor waits for its end.
		c.WithArgs(fmt.Sprintf("--drain-time=%ds", drainSeconds))
	}
	if o.LogLevel != "" {
		c.WithArgs("--log-level=" + o.LogLevel)
	}
	if o.PullPolicy != "" {
		c.WithImagePullPolicy(corev1.PullPolicy(o.PullPolicy))
	}
	resources := o.resources()
	if b.Resources != nil {
		resources = resourcesOf(b.Resources)
	}
	if len(resources.Requests)+len(resources.Limits) > 0 {
		r := corev1ac.ResourceRequirements()
		if len(resources.Requests) > 0 {
			r.WithRequests(resources.Requests)
		}
		if len(resources.Limits) > 0 {
			r.WithLimits(resources.Limits)
		}
		c.WithResources(r)
	}
	return c
}

// resourcesOf are the resources that a BMC asks for.
func resourcesOf(is *v1beta1.ResourceRequirements) corev1.ResourceRequirements {
	resources := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for name, quantity := range is.Requests {
		resources.Requests[corev1.ResourceName(name)] = quantity
	}
	for name, quantity := range is.Limits {
		resources.Limits[corev1.ResourceName(name)] = quantity
	}
	return resources
}
