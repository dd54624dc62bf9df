// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Probe is the name of the webhook by which it is found out whether the API server
// reaches the others, which are at the same address with the same certificate.
const Probe = "probe.bmc.kubevirt.io"

const (
	// probePath is where the API server finds it.
	probePath = "/mutate-probe"
	// labelProbe is on what is sent there.
	labelProbe = "bmc.kubevirt.io/webhook-probe"
	// annotationProbed is what the webhook adds.
	annotationProbed = "bmc.kubevirt.io/webhook-probed"
)

// lease is what a probe is made of: controllers may create Leases in their
// namespace. None is ever stored.
var lease = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}

// probeWebhook refuses probes for which nobody answers, so that the API server says
// why.
func (t *Target) probeWebhook(bundle []byte) admissionv1.MutatingWebhook {
	return admissionv1.MutatingWebhook{
		Name:          Probe,
		ClientConfig:  t.client(probePath, bundle),
		Rules:         rule(lease.Group, lease.Version, "leases", admissionv1.Create),
		FailurePolicy: ptr.To(admissionv1.Fail),
		MatchPolicy:   ptr.To(admissionv1.Equivalent),
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
			"kubernetes.io/metadata.name": t.Namespace,
		}},
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{labelProbe: "true"}},
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		TimeoutSeconds:          ptr.To[int32](instanceTimeout),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      ptr.To(admissionv1.NeverReinvocationPolicy),
	}
}

// answerProbe shows that a probe has been here.
func answerProbe(context.Context, admission.Request) admission.Response {
	return admission.Patched("", jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{annotationProbed: "true"}))
}

// probe has the API server call the webhooks, in a dry run. It is an error when that
// does not reach them.
func probe(ctx context.Context, c client.Client, namespace string) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(lease)
	object.SetNamespace(namespace)
	object.SetGenerateName("webhook-probe-")
	object.SetLabels(map[string]string{labelProbe: "true"})
	if err := c.Create(ctx, object, client.DryRunAll); err != nil {
		return err
	}
	if object.GetAnnotations()[annotationProbed] == "" {
		return errors.New("the API server does not call them")
	}
	return nil
}

// restricted tells what somebody has added to the webhook of instances that keeps
// instances from it; empty: nothing. Server-side apply leaves conditions of others.
func restricted(is, want *admissionv1.MutatingWebhookConfiguration) string {
	named := func(configuration *admissionv1.MutatingWebhookConfiguration) *admissionv1.MutatingWebhook {
		i := slices.IndexFunc(configuration.Webhooks, func(w admissionv1.MutatingWebhook) bool { return w.Name == MutateInstance })
		if i < 0 {
			return &admissionv1.MutatingWebhook{}
		}
		return &configuration.Webhooks[i]
	}
	has, own := named(is), named(want)
	for _, condition := range has.MatchConditions {
		if !slices.Contains(own.MatchConditions, condition) {
			return fmt.Sprintf("the match condition %q is somebody else's and may keep instances from the webhook", condition.Name)
		}
	}
	if !equality.Semantic.DeepEqual(has.ObjectSelector, own.ObjectSelector) || !equality.Semantic.DeepEqual(has.NamespaceSelector, own.NamespaceSelector) {
		return "somebody has changed the selectors of the webhook of instances"
	}
	return ""
}
