// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook says how the API server is to call the controller's admission
// webhooks.
package webhook

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/webhook/bmc"
	"kubevirtbmc.dev/services/controller/internal/webhook/instance"
)

// Names of the webhooks. Those of VirtualMachineBMCs are as in earlier lines.
const (
	ValidateBMC    = "vvirtualmachinebmc-v1beta1.kb.io"
	MutateInstance = "bootoverride.bmc.kubevirt.io"
)

const (
	// kubeVirtConfiguration is the name of KubeVirt's mutating webhooks. The API
	// server calls configurations in the order of their names.
	kubeVirtConfiguration = "virt-api-mutator"
	// namePrefix begins the names of our configurations: behind KubeVirt's, so that
	// instances have KubeVirt's defaults when they come here.
	namePrefix = "virtbmc-controller."
)

// DefaultName is the name of both configurations of the controllers in a
// namespace. Those of another namespace have their own.
func DefaultName(namespace string) string { return namePrefix + namespace }

// Times that the API server waits for an answer, in seconds. A hanging webhook
// costs a machine's start that much.
const (
	instanceTimeout = 2
	bmcTimeout      = 10
)

// ownedByMachine is a CEL condition: instances that somebody makes without a
// VirtualMachine have no BMC, and are not sent here.
const ownedByMachine = `has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, ` +
	`o.kind == 'VirtualMachine' && o.apiVersion.startsWith('kubevirt.io/') && has(o.controller) && o.controller)`

// Conditions in CEL on what is worth to be looked at of a BMC. The services keep
// their state in annotations of it: that goes on while no controller answers. So
// do labels and finalizers of a BMC that is to go.
const (
	specChanges = `request.operation == 'CREATE' || has(object.spec) != has(oldObject.spec) || ` +
		`has(object.spec) && object.spec != oldObject.spec`
	notDeleted = `!has(object.metadata.deletionTimestamp)`
)

// Target is where the API server finds the webhooks.
type Target struct {
	// Name is the configurations', as DefaultName returns it.
	Name string
	// URL is a server outside of the cluster, without a path; empty: the Service.
	URL string
	// Namespace, Service and Port are the Service's.
	Namespace, Service string
	Port               int32
	// Namespaces whose objects are sent; empty: all.
	Namespaces []string
}

// labels mark the configurations as made by the controllers of a namespace.
func (t *Target) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/managed-by": manager, "bmc.kubevirt.io/controller-namespace": t.Namespace}
}

// Validate says what is wrong with a target.
func (t *Target) Validate() error {
	if t.Name <= kubeVirtConfiguration {
		return fmt.Errorf("name of webhook configurations %q does not come behind %q, so that KubeVirt would change instances afterwards", t.Name, kubeVirtConfiguration)
	}
	return nil
}

func (t *Target) client(path string, bundle []byte) admissionv1.WebhookClientConfig {
	config := admissionv1.WebhookClientConfig{CABundle: bundle}
	if t.URL != "" {
		config.URL = ptr.To(t.URL + path)
		return config
	}
	config.Service = &admissionv1.ServiceReference{Namespace: t.Namespace, Name: t.Service, Path: &path, Port: &t.Port}
	return config
}

func (t *Target) selector() *metav1.LabelSelector {
	if len(t.Namespaces) == 0 {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: t.Namespaces,
	}}}
}

func rule(group, version, resource string, operations ...admissionv1.OperationType) []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{Operations: operations, Rule: admissionv1.Rule{
		APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}, Scope: ptr.To(admissionv1.NamespacedScope),
	}}}
}

// Mutating returns the mutating webhooks, whose server's certificate is issued by
// who is in bundle, in PEM: that of instances, and that of probes. Machines start
// without the first, with a delay when it does not answer.
func (t *Target) Mutating(bundle []byte) *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: t.Name, Labels: t.labels()},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name:                    MutateInstance,
			ClientConfig:            t.client(instance.Path, bundle),
			Rules:                   rule("kubevirt.io", "v1", "virtualmachineinstances", admissionv1.Create),
			FailurePolicy:           ptr.To(admissionv1.Ignore),
			MatchPolicy:             ptr.To(admissionv1.Equivalent),
			NamespaceSelector:       t.selector(),
			ObjectSelector:          &metav1.LabelSelector{},
			SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](instanceTimeout),
			AdmissionReviewVersions: []string{"v1"},
			// A webhook behind this one may add a device, with a number that is taken.
			ReinvocationPolicy: ptr.To(admissionv1.IfNeededReinvocationPolicy),
			MatchConditions:    []admissionv1.MatchCondition{{Name: "owned-by-a-virtual-machine", Expression: ownedByMachine}},
		}, t.probeWebhook(bundle)},
	}
}

// Validating returns the validating webhooks, likewise: that of
// VirtualMachineBMCs.
func (t *Target) Validating(bundle []byte) *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: t.Name, Labels: t.labels()},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    ValidateBMC,
			ClientConfig:            t.client(bmc.ValidatePath, bundle),
			Rules:                   rule(v1beta1.GroupVersion.Group, v1beta1.GroupVersion.Version, "virtualmachinebmcs", admissionv1.Create, admissionv1.Update),
			FailurePolicy:           ptr.To(admissionv1.Fail),
			MatchPolicy:             ptr.To(admissionv1.Equivalent),
			NamespaceSelector:       t.selector(),
			ObjectSelector:          &metav1.LabelSelector{},
			SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](bmcTimeout),
			AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionv1.MatchCondition{
				{Name: "spec-changes", Expression: specChanges}, {Name: "not-being-deleted", Expression: notDeleted},
			},
		}},
	}
}
