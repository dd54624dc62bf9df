// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bootoverride"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// trouble is why something is not as it is to be.
type trouble struct{ reason, message string }

// observation is what was seen of a BMC.
type observation struct {
	want wanted
	// hypervisor and media tell whether KubeVirt's and CDI's APIs are served.
	hypervisor, media bool
	// machine is the VirtualMachine's UID, empty when it is not there; taken is the
	// BMC that has it, if that is another.
	machine types.UID
	taken   string
	// unseen tells whether the machine was there when KubeVirt's API was served last:
	// there is a Service. Clients keep their address and can log in until it is known
	// that there is no machine.
	unseen bool
	// override is the boot override that counts for the machine's next instance;
	// bypassed is the last one that came to nothing.
	override *bootoverride.View
	bypassed *bootoverride.Bypassed
	// webhooks is why the admission webhooks are not called; empty: they are.
	webhooks string
	// webhooksUnknown tells whether it is not known yet if they are called.
	webhooksUnknown bool
	// legacy tells whether an earlier line's agent serves the BMC until we do.
	legacy bool
	// kept is why it goes on to, though we could; empty: nothing is in the way.
	kept string
	// lostIPMI tells whether an earlier line served the BMC over IPMI, which this
	// one does not.
	lostIPMI bool
	// secret is what is wrong with the Secret; nil: nothing is.
	secret *trouble
	// service is the BMC's own; nil: it has none.
	service *corev1.Service
	// serviceTrouble is why the Service is not as it is to be.
	serviceTrouble *trouble
	// exhausted are the listeners that got no port.
	exhausted []listener
	frontends []frontend
	// agent is how the dedicated agent is, if there is to be one.
	agent agent.State
	// former is the condition FrontendReady that counts on while a controller that
	// has just started waits for the frontends' answers; nil: none does.
	former *metav1.Condition
	// settling tells whether the nodes may not know the EndpointSlices yet.
	settling bool
	// certificate is the condition CertificateReady; nil: there is none.
	certificate *metav1.Condition
}

// frontend is how one frontend serves a BMC.
type frontend struct {
	protocol registryv1.Protocol
	status   registry.Status
	// routed tells whether the EndpointSlice names the owner.
	routed bool
	// taken is what is the matter with an EndpointSlice of that name that is not the
	// BMC's; nil: there is none.
	taken *trouble
}

// ours are the types of the conditions that this package writes.
var ours = []string{
	v1beta1.ConditionReady, v1beta1.ConditionServiceReady, v1beta1.ConditionVirtualMachineAvailable,
	v1beta1.ConditionSecretAvailable, v1beta1.ConditionFrontendReady,
	v1beta1.ConditionCertificateReady,
	v1beta1.ConditionHypervisorAvailable, v1beta1.ConditionVirtualMediaAvailable,
	v1beta1.ConditionBootOverrideAvailable, v1beta1.ConditionIPMIDisabledByUpgrade,
}

// served tells whether frontends are to serve the BMC.
func (o *observation) served() bool {
	return (o.machine != "" || o.unseen) && o.taken == "" && len(o.want.protocols()) > 0
}

// conditions are those of a BMC, without the times of their transitions.
func (o *observation) conditions() []metav1.Condition {
	parts := []metav1.Condition{
		yes(v1beta1.ConditionHypervisorAvailable, v1beta1.ReasonKubeVirtFound, "KubeVirt's API is served"),
		o.machineAvailable(),
		yes(v1beta1.ConditionSecretAvailable, v1beta1.ReasonSecretFound, "the Secret can be used"),
		o.frontendReady(),
		o.serviceReady(),
	}
	if !o.hypervisor {
		parts[0] = no(v1beta1.ConditionHypervisorAvailable, v1beta1.ReasonKubeVirtNotFound,
			"KubeVirt's API (kubevirt.io/v1) is not served; work starts when it is")
	}
	if o.secret != nil {
		parts[2] = no(v1beta1.ConditionSecretAvailable, o.secret.reason, o.secret.message)
	}
	if o.certificate != nil && o.want.https {
		parts = append(parts, *o.certificate)
	}
	ready := yes(v1beta1.ConditionReady, v1beta1.ReasonServing, "clients can log in")
	if i := slices.IndexFunc(parts, func(c metav1.Condition) bool { return c.Status != metav1.ConditionTrue }); i >= 0 {
		ready = no(v1beta1.ConditionReady, parts[i].Reason, parts[i].Message)
	}
	media := yes(v1beta1.ConditionVirtualMediaAvailable, v1beta1.ReasonCDIFound, "CDI's API is served")
	if !o.media {
		media = no(v1beta1.ConditionVirtualMediaAvailable, v1beta1.ReasonCDINotFound,
			"CDI's API (cdi.kubevirt.io/v1beta1) is not served; media can be inserted when it is")
	}
	list := append([]metav1.Condition{ready}, append(parts, media, o.bootOverrideAvailable())...)
	if o.lostIPMI {
		list = append(list, yes(v1beta1.ConditionIPMIDisabledByUpgrade, v1beta1.ReasonDefaultChanged,
			"an earlier version served IPMI, this one does so where spec.ipmi.enabled is true alone; set it to true or false"))
	}
	for i := range list {
		list[i].ObservedGeneration = o.want.generation
	}
	return list
}

func yes(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func no(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func (o *observation) machineAvailable() metav1.Condition {
	missing := func(message string) metav1.Condition {
		return no(v1beta1.ConditionVirtualMachineAvailable, v1beta1.ReasonVirtualMachineNotFound, message)
	}
	switch {
	case o.want.machine == "":
		return missing("spec.virtualMachineRef names no VirtualMachine")
	case o.taken != "":
		return no(v1beta1.ConditionVirtualMachineAvailable, v1beta1.ReasonVirtualMachineTaken,
			fmt.Sprintf("VirtualMachine %s has an older VirtualMachineBMC, %s", o.want.machine, o.taken))
	case o.unseen:
		return metav1.Condition{
			Type: v1beta1.ConditionVirtualMachineAvailable, Status: metav1.ConditionUnknown, Reason: v1beta1.ReasonVirtualMachineUnknown,
			Message: "whether the VirtualMachine exists is not known without KubeVirt's API; clients can log in",
		}
	case !o.hypervisor:
		return missing("there are no VirtualMachines without KubeVirt")
	case o.machine == "":
		return missing(fmt.Sprintf("VirtualMachine %s does not exist", o.want.machine))
	}
	return yes(v1beta1.ConditionVirtualMachineAvailable, v1beta1.ReasonVirtualMachineFound, "the VirtualMachine exists")
}

func (o *observation) bootOverrideAvailable() metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return no(v1beta1.ConditionBootOverrideAvailable, reason, message)
	}
	switch {
	case o.want.override != v1beta1.BootOverrideStrategyAdmission:
		return yes(v1beta1.ConditionBootOverrideAvailable, v1beta1.ReasonTemplate, "overrides are written to the machine's template")
	case o.webhooks != "":
		return not(v1beta1.ReasonWebhookUnavailable, o.webhooks)
	case o.bypassed != nil:
		return not(v1beta1.ReasonWebhookBypassed, fmt.Sprintf(
			"override %s came to nothing at %s: instances of the machine were made without it, since the admission webhook was not called or did not answer",
			o.bypassed.ID, o.bypassed.Time.UTC().Format(time.RFC3339)))
	}
	if o.webhooksUnknown {
		return metav1.Condition{
			Type: v1beta1.ConditionBootOverrideAvailable, Status: metav1.ConditionUnknown, Reason: v1beta1.ReasonWebhookUntried,
			Message: "it is not known yet whether the API server reaches the admission webhook",
		}
	}
	return yes(v1beta1.ConditionBootOverrideAvailable, v1beta1.ReasonAdmission, "the admission webhook carries overrides out")
}

func (o *observation) serviceReady() metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return no(v1beta1.ConditionServiceReady, reason, message)
	}
	switch {
	case o.serviceTrouble != nil:
		return not(o.serviceTrouble.reason, o.serviceTrouble.message)
	case !o.served():
		return not(v1beta1.ReasonServiceNotReady, "there is nothing to reach")
	case o.service == nil || !promised(o.service):
		return not(v1beta1.ReasonServiceNotReady, fmt.Sprintf("Service %s has no address yet", o.want.serviceName()))
	}
	return yes(v1beta1.ConditionServiceReady, v1beta1.ReasonServiceReady, "the Service has what its type promises")
}

func (o *observation) frontendReady() metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return no(v1beta1.ConditionFrontendReady, reason, message)
	}
	switch {
	case len(o.want.protocols()) == 0:
		return not(v1beta1.ReasonNothingEnabled, "neither Redfish nor IPMI is enabled")
	case !o.served():
		return not(v1beta1.ReasonFrontendPending, "there is no machine to serve")
	case o.kept != "":
		return not(v1beta1.ReasonAdoptionForbidden, "the agent of an earlier version is left to serve the BMC, since "+o.kept)
	case len(o.exhausted) > 0:
		var names []string
		for _, l := range o.exhausted {
			names = append(names, portOf(l).name)
		}
		return not(v1beta1.ReasonPortsExhausted, "no port of the controller's range is left for "+strings.Join(names, ", "))
	}
	if o.former != nil && slices.ContainsFunc(o.frontends, func(f frontend) bool { return f.status.State == registry.Pending }) {
		return *o.former
	}
	for _, f := range o.frontends {
		if t := f.trouble(o); t != nil {
			return not(t.reason, label(f.protocol)+": "+t.message)
		}
	}
	if o.settling {
		return not(v1beta1.ReasonFrontendPending, "the nodes may not know the EndpointSlices yet")
	}
	return yes(v1beta1.ConditionFrontendReady, v1beta1.ReasonFrontendServing, o.serving())
}

func (f *frontend) trouble(o *observation) *trouble {
	switch {
	case f.status.State == registry.Failed:
		return &trouble{v1beta1.ReasonFrontendFailed, f.status.Problem}
	case f.status.Connected && f.status.State == registry.Pending:
		return &trouble{v1beta1.ReasonFrontendPending, f.status.Problem}
	case f.status.State == registry.Pending && o.want.mode == v1beta1.FrontendModeDedicated:
		return o.agentTrouble()
	case f.status.State == registry.Pending:
		return &trouble{v1beta1.ReasonFrontendAbsent, f.status.Problem}
	case f.taken != nil:
		return f.taken
	case !f.routed:
		return &trouble{v1beta1.ReasonFrontendPending, fmt.Sprintf("the EndpointSlice does not name pod %s yet", f.status.Replica)}
	}
	return nil
}

func label(protocol registryv1.Protocol) string {
	if protocol == registryv1.Protocol_PROTOCOL_IPMI {
		return "IPMI"
	}
	return "Redfish"
}

// transitions gives conditions the times since when they are so, from those that
// there were before.
func transitions(before, after []metav1.Condition, now metav1.Time) []metav1.Condition {
	list := slices.Clone(after)
	for i := range list {
		list[i].LastTransitionTime = now
		if old := meta.FindStatusCondition(before, list[i].Type); old != nil && old.Status == list[i].Status && !old.LastTransitionTime.IsZero() {
			list[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	return list
}

// announcement is an event on a BMC.
type announcement struct{ kind, reason, action, message string }

// announced are the reasons that users must know of when a condition gets them,
// with what the controller did.
var announced = map[string]string{
	v1beta1.ReasonSecretInvalid:          "ReadSecret",
	v1beta1.ReasonSecretNotFound:         "ReadSecret",
	v1beta1.ReasonVirtualMachineNotFound: "FindVirtualMachine",
	v1beta1.ReasonVirtualMachineTaken:    "FindVirtualMachine",
	v1beta1.ReasonKubeVirtNotFound:       "FindVirtualMachine",
	v1beta1.ReasonPortsExhausted:         "AllocatePort",
	v1beta1.ReasonServiceRefused:         "ApplyService",
	v1beta1.ReasonServiceNotOwned:        "ApplyService",
	v1beta1.ReasonFrontendFailed:         "Serve",
	v1beta1.ReasonEndpointSliceNotOwned:  "ApplyEndpointSlice",
	v1beta1.ReasonNothingEnabled:         "Serve",
	v1beta1.ReasonAgentRefused:           "RunAgent",
	v1beta1.ReasonAdoptionForbidden:      "Adopt",
	v1beta1.ReasonWebhookUnavailable:     "RegisterWebhooks",
	v1beta1.ReasonWebhookBypassed:        "OverrideBoot",

	v1beta1.ReasonCertificateSecretNotFound: "ReadCertificate",
	v1beta1.ReasonCertificateInvalid:        "ReadCertificate",
	v1beta1.ReasonCertificateExpired:        "ReadCertificate",
}

// announcements are the events that a change of conditions calls for.
func announcements(before, after []metav1.Condition) []announcement {
	var list []announcement
	for _, c := range after {
		old := meta.FindStatusCondition(before, c.Type)
		changed := old == nil || old.Status != c.Status || old.Reason != c.Reason
		switch action, ok := announced[c.Reason]; {
		case !changed, c.Type == v1beta1.ConditionReady && c.Status != metav1.ConditionTrue:
		case c.Type == v1beta1.ConditionReady:
			list = append(list, announcement{corev1.EventTypeNormal, c.Reason, "Serve", "clients can log in"})
		case c.Type == v1beta1.ConditionHypervisorAvailable && old != nil && c.Status == metav1.ConditionTrue && old.Status == metav1.ConditionFalse:
			list = append(list, announcement{corev1.EventTypeNormal, c.Reason, "FindVirtualMachine", c.Message})
		case c.Type == v1beta1.ConditionIPMIDisabledByUpgrade:
			list = append(list, announcement{corev1.EventTypeWarning, c.Reason, "Serve", c.Message})
		case ok && c.Status != metav1.ConditionTrue:
			list = append(list, announcement{corev1.EventTypeWarning, c.Reason, action, c.Message})
		}
	}
	return list
}
