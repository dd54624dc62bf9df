// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bootoverride"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// fine is a BMC that is served.
func fine() observation {
	serving := registry.Status{Replica: "frontend-0", Connected: true, State: registry.Serving}
	return observation{
		want: wantedVM(v1beta1.ServiceSpec{}), hypervisor: true, media: true, machine: "vm-uid",
		service: &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1"}},
		frontends: []frontend{
			{protocol: registryv1.Protocol_PROTOCOL_IPMI, status: serving, routed: true}, {protocol: registryv1.Protocol_PROTOCOL_REDFISH, status: serving, routed: true},
		},
		certificate: ptrTo(yes(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificateIssued, "for a while")),
	}
}

// short is a condition in few words: those that are True alone, others with
// their reason.
func short(conditions []metav1.Condition) map[string]string {
	list := map[string]string{}
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue {
			list[c.Type] = "True"
		} else {
			list[c.Type] = string(c.Status) + " " + c.Reason
		}
	}
	return list
}

func TestObservation_conditions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*observation)
		// want are the conditions that are not True; empty: it is left out.
		want map[string]string
		// message is part of that of Ready.
		message string
	}{
		"all is well": {func(*observation) {}, nil, "clients can log in"},
		"KubeVirt is missing": {
			func(o *observation) { o.hypervisor, o.machine = false, "" },
			map[string]string{
				"Ready": "False KubeVirtNotFound", "HypervisorAvailable": "False KubeVirtNotFound",
				"VirtualMachineAvailable": "False VirtualMachineNotFound", "FrontendReady": "False FrontendPending", "ServiceReady": "False ServiceNotReady",
			},
			"kubevirt.io/v1",
		},
		"CDI is missing": {
			func(o *observation) { o.media = false },
			map[string]string{"VirtualMediaAvailable": "False CDINotFound"},
			"clients can log in",
		},
		"no machine": {
			func(o *observation) { o.machine = "" },
			map[string]string{
				"Ready": "False VirtualMachineNotFound", "VirtualMachineAvailable": "False VirtualMachineNotFound",
				"FrontendReady": "False FrontendPending", "ServiceReady": "False ServiceNotReady",
			},
			"VirtualMachine vm does not exist",
		},
		"no machine is named": {
			func(o *observation) { o.machine, o.want.machine = "", "" },
			map[string]string{
				"Ready": "False VirtualMachineNotFound", "VirtualMachineAvailable": "False VirtualMachineNotFound",
				"FrontendReady": "False FrontendPending", "ServiceReady": "False ServiceNotReady",
			},
			"names no VirtualMachine",
		},
		"the machine is another's": {
			func(o *observation) { o.taken = "older" },
			map[string]string{
				"Ready": "False VirtualMachineTaken", "VirtualMachineAvailable": "False VirtualMachineTaken",
				"FrontendReady": "False FrontendPending", "ServiceReady": "False ServiceNotReady",
			},
			"older",
		},
		"no Secret": {
			func(o *observation) { o.secret = &trouble{v1beta1.ReasonSecretNotFound, "no Secret"} },
			map[string]string{"Ready": "False SecretNotFound", "SecretAvailable": "False SecretNotFound"},
			"no Secret",
		},
		"no address": {
			func(o *observation) { o.service = nil },
			map[string]string{"Ready": "False ServiceNotReady", "ServiceReady": "False ServiceNotReady"},
			"Service vm-virtbmc has no address yet",
		},
		"the Service was refused": {
			func(o *observation) { o.serviceTrouble = &trouble{v1beta1.ReasonServiceRefused, "port is taken"} },
			map[string]string{"Ready": "False ServiceRefused", "ServiceReady": "False ServiceRefused"},
			"port is taken",
		},
		"nothing is enabled": {
			func(o *observation) { o.want.ipmi, o.want.https = false, false },
			map[string]string{
				"Ready": "False NothingEnabled", "FrontendReady": "False NothingEnabled", "ServiceReady": "False ServiceNotReady",
				"CertificateReady": "",
			},
			"neither Redfish nor IPMI",
		},
		"the nodes have yet to learn of it": {
			func(o *observation) { o.settling = true },
			map[string]string{"Ready": "False FrontendPending", "FrontendReady": "False FrontendPending"},
			"nodes",
		},
		"no ports": {
			func(o *observation) { o.exhausted = []listener{listenIPMI, listenHTTPS} },
			map[string]string{"Ready": "False PortsExhausted", "FrontendReady": "False PortsExhausted"},
			"ipmi, redfish-https",
		},
		"one frontend has not answered": {
			func(o *observation) {
				o.frontends[1].status = registry.Status{Replica: "frontend-1", Connected: true, Problem: "not yet"}
			},
			map[string]string{"Ready": "False FrontendPending", "FrontendReady": "False FrontendPending"},
			"Redfish: not yet",
		},
		"one frontend can't serve": {
			func(o *observation) {
				o.frontends[0].status = registry.Status{Connected: true, State: registry.Failed, Problem: "port in use"}
			},
			map[string]string{"Ready": "False FrontendFailed", "FrontendReady": "False FrontendFailed"},
			"IPMI: port in use",
		},
		"no replica": {
			func(o *observation) { o.frontends[0].status = registry.Status{Problem: "no frontend is connected"} },
			map[string]string{"Ready": "False FrontendAbsent", "FrontendReady": "False FrontendAbsent"},
			"IPMI: no frontend is connected",
		},
		"no agent": {
			func(o *observation) {
				o.want.mode = v1beta1.FrontendModeDedicated
				o.frontends[0].status = registry.Status{}
			},
			map[string]string{"Ready": "False AgentNotReady", "FrontendReady": "False AgentNotReady"},
			"dedicated agent",
		},
		"no agent, and the Deployment says why": {
			func(o *observation) {
				o.want.mode = v1beta1.FrontendModeDedicated
				o.frontends[0].status = registry.Status{}
				o.agent = agent.State{Waiting: "Deployment vm-virtbmc makes no pod: exceeded quota"}
			},
			map[string]string{"Ready": "False AgentNotReady", "FrontendReady": "False AgentNotReady"},
			"IPMI: Deployment vm-virtbmc makes no pod: exceeded quota",
		},
		"an agent that can't be made": {
			func(o *observation) {
				o.want.mode = v1beta1.FrontendModeDedicated
				o.frontends[0].status = registry.Status{}
				o.agent = agent.State{Refused: "Role vm-virtbmc: forbidden", Waiting: "x"}
			},
			map[string]string{"Ready": "False AgentRefused", "FrontendReady": "False AgentRefused"},
			"the dedicated agent can't be run: Role vm-virtbmc: forbidden",
		},
		"clients are not sent to it yet": {
			func(o *observation) { o.frontends[0].routed = false },
			map[string]string{"Ready": "False FrontendPending", "FrontendReady": "False FrontendPending"},
			"does not name pod frontend-0",
		},
		"a new controller waits for answers": {
			func(o *observation) {
				o.frontends[0].status = registry.Status{Problem: "no frontend is connected"}
				o.former = ptrTo(yes(v1beta1.ConditionFrontendReady, v1beta1.ReasonFrontendServing, "as before"))
			},
			nil, "clients can log in",
		},
		"a new controller has an answer": {
			func(o *observation) {
				o.frontends[0].status.State, o.frontends[0].status.Problem = registry.Failed, "port in use"
				o.former = ptrTo(yes(v1beta1.ConditionFrontendReady, v1beta1.ReasonFrontendServing, "as before"))
			},
			map[string]string{"Ready": "False FrontendFailed", "FrontendReady": "False FrontendFailed"},
			"port in use",
		},
		"the certificate has expired": {
			func(o *observation) {
				o.certificate = ptrTo(no(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificateExpired, "since yesterday"))
			},
			map[string]string{"Ready": "False CertificateExpired", "CertificateReady": "False CertificateExpired"},
			"since yesterday",
		},
		"a certificate does not matter without HTTPS": {
			func(o *observation) {
				o.want.https, o.want.http = false, true
				o.certificate = ptrTo(no(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificateExpired, "since yesterday"))
			},
			map[string]string{"CertificateReady": ""},
			"clients can log in",
		},
		"IPMI is gone": {
			func(o *observation) { o.lostIPMI = true },
			map[string]string{"IPMIDisabledByUpgrade": "True"},
			"clients can log in",
		},
		"the webhook carries overrides out": {
			func(o *observation) { o.want.override = v1beta1.BootOverrideStrategyAdmission }, nil, "clients can log in",
		},
		"it is not known whether the webhook is reached": {
			func(o *observation) {
				o.want.override, o.webhooksUnknown = v1beta1.BootOverrideStrategyAdmission, true
			},
			map[string]string{"BootOverrideAvailable": "Unknown WebhookUntried"},
			"clients can log in",
		},
		"the webhook does not answer": {
			func(o *observation) {
				o.want.override, o.webhooks = v1beta1.BootOverrideStrategyAdmission, "no certificate"
			},
			map[string]string{"BootOverrideAvailable": "False WebhookUnavailable"},
			"clients can log in",
		},
		"the webhook was not called": {
			func(o *observation) {
				o.want.override, o.bypassed = v1beta1.BootOverrideStrategyAdmission, &bootoverride.Bypassed{ID: "x"}
			},
			map[string]string{"BootOverrideAvailable": "False WebhookBypassed"},
			"clients can log in",
		},
		"overrides do not need the webhook": {
			func(o *observation) { o.webhooks, o.bypassed = "no certificate", &bootoverride.Bypassed{ID: "x"} },
			nil, "clients can log in",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := fine()
			o.want.generation = 7
			tc.edit(&o)
			got := o.conditions()
			want := map[string]string{}
			for _, kind := range ours {
				want[kind] = "True"
			}
			delete(want, v1beta1.ConditionIPMIDisabledByUpgrade) // It is there when it is True.
			for kind, s := range tc.want {
				if want[kind] = s; s == "" { // It is left out.
					delete(want, kind)
				}
			}
			if diff := cmp.Diff(want, short(got)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			for _, c := range got {
				if c.ObservedGeneration != 7 || c.Message == "" || c.Reason == "" {
					t.Errorf("condition %+v is not complete", c)
				}
			}
			if ready := meta.FindStatusCondition(got, v1beta1.ConditionReady); !strings.Contains(ready.Message, tc.message) {
				t.Errorf("Ready says %q, want %q", ready.Message, tc.message)
			}
		})
	}
}

// What serves is said, where it is not what is to serve.
func TestObservation_serving(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		target, mode v1beta1.FrontendMode
		agent        agent.State
		want         string
	}{
		"shared":                        {v1beta1.FrontendModeShared, v1beta1.FrontendModeShared, agent.State{}, "the frontends serve the BMC"},
		"dedicated":                     {v1beta1.FrontendModeDedicated, v1beta1.FrontendModeDedicated, agent.State{}, "the frontends serve the BMC"},
		"to be dedicated":               {v1beta1.FrontendModeDedicated, v1beta1.FrontendModeShared, agent.State{Waiting: "no pod"}, "the shared frontends serve the BMC until its agent does: no pod"},
		"to be dedicated, but refused":  {v1beta1.FrontendModeDedicated, v1beta1.FrontendModeShared, agent.State{Refused: "no"}, "the shared frontends serve the BMC until its agent does: the dedicated agent can't be run: no"},
		"to be shared":                  {v1beta1.FrontendModeShared, v1beta1.FrontendModeDedicated, agent.State{}, "the dedicated agent serves the BMC until the shared frontends are connected"},
		"dedicated, but of another day": {v1beta1.FrontendModeDedicated, v1beta1.FrontendModeDedicated, agent.State{Refused: "no"}, "the dedicated agent serves the BMC, but not as it is to be: no"},
	} {
		o := fine()
		o.want.target, o.want.mode, o.agent = tc.target, tc.mode, tc.agent
		if c := o.frontendReady(); c.Status != metav1.ConditionTrue || c.Message != tc.want {
			t.Errorf("%s: %s %q, want True %q", name, c.Status, c.Message, tc.want)
		}
	}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	then, now := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	before := []metav1.Condition{
		{Type: "Stays", Status: metav1.ConditionTrue, Reason: "A", LastTransitionTime: then},
		{Type: "Turns", Status: metav1.ConditionTrue, Reason: "A", LastTransitionTime: then},
	}
	after := []metav1.Condition{
		{Type: "Stays", Status: metav1.ConditionTrue, Reason: "B"},
		{Type: "Turns", Status: metav1.ConditionFalse, Reason: "A"},
		{Type: "New", Status: metav1.ConditionTrue, Reason: "A"},
	}
	got := map[string]metav1.Time{}
	for _, c := range transitions(before, after, now) {
		got[c.Type] = c.LastTransitionTime
	}
	if diff := cmp.Diff(map[string]metav1.Time{"Stays": then, "Turns": now, "New": now}, got); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

func TestAnnouncements(t *testing.T) {
	t.Parallel()
	conditions := func(edit func(*observation)) []metav1.Condition {
		o := fine()
		edit(&o)
		return o.conditions()
	}
	well := func(*observation) {}
	invalid := func(o *observation) { o.secret = &trouble{v1beta1.ReasonSecretInvalid, "no password"} }
	noKubeVirt := func(o *observation) { o.hypervisor, o.machine = false, "" }
	for name, tc := range map[string]struct {
		before, after []metav1.Condition
		want          []string
	}{
		"a new BMC that is well":   {nil, conditions(well), []string{"Normal Serving"}},
		"nothing changes":          {conditions(well), conditions(well), nil},
		"nothing gets better":      {conditions(invalid), conditions(invalid), nil},
		"a Secret becomes invalid": {conditions(well), conditions(invalid), []string{"Warning SecretInvalid"}},
		"a Secret is mended":       {conditions(invalid), conditions(well), []string{"Normal Serving"}},
		"KubeVirt goes":            {conditions(well), conditions(noKubeVirt), []string{"Warning KubeVirtNotFound", "Warning VirtualMachineNotFound"}},
		"KubeVirt comes":           {conditions(noKubeVirt), conditions(well), []string{"Normal Serving", "Normal KubeVirtFound"}},
		"an owner that moves":      {conditions(well), conditions(func(o *observation) { o.frontends[0].routed = false }), nil},
		"the machine is taken":     {nil, conditions(func(o *observation) { o.taken = "older" }), []string{"Warning VirtualMachineTaken"}},
		"ports run out":            {nil, conditions(func(o *observation) { o.exhausted = []listener{listenIPMI} }), []string{"Warning PortsExhausted"}},
		"the Service is refused":   {nil, conditions(func(o *observation) { o.serviceTrouble = &trouble{v1beta1.ReasonServiceRefused, "taken"} }), []string{"Warning ServiceRefused"}},
		"the Service is not ours":  {nil, conditions(func(o *observation) { o.serviceTrouble = &trouble{v1beta1.ReasonServiceNotOwned, "not ours"} }), []string{"Warning ServiceNotOwned"}},
		"CDI comes and goes":       {conditions(well), conditions(func(o *observation) { o.media = false }), nil},
		"a frontend can't serve":   {conditions(well), conditions(func(o *observation) { o.frontends[0].status.State = registry.Failed }), []string{"Warning FrontendFailed"}},
		"IPMI is gone":             {conditions(well), conditions(func(o *observation) { o.lostIPMI = true }), []string{"Warning DefaultChanged"}},
		"IPMI stays gone": {
			conditions(func(o *observation) { o.lostIPMI = true }), conditions(func(o *observation) { o.lostIPMI = true }), nil,
		},
		"the webhook was not called": {
			conditions(well), conditions(func(o *observation) {
				o.want.override, o.bypassed = v1beta1.BootOverrideStrategyAdmission, &bootoverride.Bypassed{ID: "x"}
			}),
			[]string{"Warning WebhookBypassed"},
		},
		"an object of another line": {[]metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "ServiceReady"}}, conditions(well), []string{"Normal Serving"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, a := range announcements(tc.before, tc.after) {
				if a.message == "" || a.action == "" {
					t.Errorf("event %+v is not complete", a)
				}
				got = append(got, a.kind+" "+a.reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// A BMC that could not be reached is Ready when the nodes know of it, one that could
// stays so.
func TestBMCs_settle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &bmcs{routeTime: 3 * time.Second, routedSince: map[registry.Ref]time.Time{}}
		look := func(was metav1.ConditionStatus, routed bool) (metav1.ConditionStatus, time.Duration) {
			o := fine()
			o.frontends[0].routed = routed
			before := []metav1.Condition{{Type: v1beta1.ConditionFrontendReady, Status: was}}
			left := r.settle(&v1beta1.VirtualMachineBMC{Status: v1beta1.VirtualMachineBMCStatus{Conditions: before}}, &o)
			return o.frontendReady().Status, left
		}
		for i, step := range []struct {
			was    metav1.ConditionStatus
			routed bool
			after  time.Duration // since the step before
			want   metav1.ConditionStatus
			left   time.Duration
		}{
			{metav1.ConditionFalse, false, 0, metav1.ConditionFalse, 0},
			{metav1.ConditionFalse, true, time.Hour, metav1.ConditionFalse, 3 * time.Second},
			{metav1.ConditionFalse, true, time.Second, metav1.ConditionFalse, 2 * time.Second},
			{metav1.ConditionFalse, false, time.Second, metav1.ConditionFalse, 0},
			{metav1.ConditionFalse, true, time.Second, metav1.ConditionFalse, 3 * time.Second},
			{metav1.ConditionFalse, true, 3 * time.Second, metav1.ConditionTrue, 0},
			{metav1.ConditionTrue, true, time.Second, metav1.ConditionTrue, 0},
			{metav1.ConditionTrue, false, time.Second, metav1.ConditionFalse, 0},
			{metav1.ConditionTrue, true, time.Second, metav1.ConditionTrue, 0},
		} {
			time.Sleep(step.after)
			if got, left := look(step.was, step.routed); got != step.want || left != step.left {
				t.Errorf("step %d: %s with %s left, want %s with %s", i, got, left, step.want, step.left)
			}
		}
	})
}
