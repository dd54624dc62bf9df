// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/v1beta1"
)

var update = flag.Bool("update", false, "rewrite the manifests of testdata")

func options() Options {
	return Options{
		ImageName: "registry.example/virtbmc", ImageTag: "v1.2.3",
		CPURequest: "10m", MemoryRequest: "32Mi",
		Registry: "dns:///virtbmc-controller.kubevirtbmc-system.svc:9443",
		Power:    "dns:///virtbmc-power.kubevirtbmc-system.svc:9443",
		Media:    "dns:///virtbmc-media.kubevirtbmc-system.svc:9443",
		Audience: "bmc.kubevirt.io", CAFile: "/ca.crt", MaxUnavailable: DefaultMaxUnavailable,
	}
}

func bmc() BMC {
	return BMC{Namespace: "lab", Name: "web-bmc", UID: "7d1a3c52-1111-4222-8333-944455556666", Machine: "web"}
}

func TestOptions_Objects_golden(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*Options, *BMC)
	}{
		"plain":   {func(*Options, *BMC) {}},
		"network": {func(_ *Options, b *BMC) { b.Networks = "lab/bmc-net" }},
		"asked-for": {func(_ *Options, b *BMC) {
			b.Resources = &v1beta1.ResourceRequirements{
				Requests: map[string]resource.Quantity{"cpu": resource.MustParse("50m")},
				Limits:   map[string]resource.Quantity{"memory": resource.MustParse("64Mi")},
			}
			b.NodeSelector = map[string]string{"example.com/bmc-network": "yes"}
		}},
		"options": {func(o *Options, _ *BMC) {
			o.ImageTag = "sha256:" + strings.Repeat("0123456789abcdef", 4)
			o.PullPolicy, o.PullSecrets, o.PriorityClass = "Always", []string{"mirror"}, "bmc"
			o.CPURequest, o.MemoryRequest, o.MemoryLimit = "", "", "128Mi"
			o.LogLevel = "debug"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, b := options(), bmc()
			tc.edit(&o, &b)
			if err := o.Validate(); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, object := range o.Objects(b, "-----BEGIN CERTIFICATE-----\n").list() {
				text, err := yaml.Marshal(object.apply)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			path := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("objects mismatch (-want +got), go test -update rewrites them:\n%s", d)
			}
		})
	}
}

// An agent may do what the shared frontends may, to its own BMC alone.
func TestOptions_Objects_rights(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../deploy/rbac/frontend.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(text, &role); err != nil {
		t.Fatal(err)
	}
	for i := range role.Rules {
		role.Rules[i].ResourceNames = []string{"web-bmc"}
	}
	o := options()
	text, err = yaml.Marshal(o.Objects(bmc(), "").Role)
	if err != nil {
		t.Fatal(err)
	}
	var got rbacv1.Role
	if err := yaml.UnmarshalStrict(text, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(role.Rules, got.Rules); d != "" {
		t.Errorf("rules mismatch (-frontends +agent):\n%s", d)
	}
}

// Two pods are never there at once where the network attachment may carry an
// address, and always before one ends elsewhere.
func TestBMC_rollout(t *testing.T) {
	t.Parallel()
	deployment := func(b BMC) *appsv1.Deployment {
		o := options()
		text, err := yaml.Marshal(o.Objects(b, "").Deployment)
		if err != nil {
			t.Fatal(err)
		}
		d := &appsv1.Deployment{}
		if err := yaml.UnmarshalStrict(text, d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := deployment(bmc())
	if r := d.Spec.Strategy.RollingUpdate; r == nil || r.MaxSurge.IntValue() != 1 || r.MaxUnavailable.IntValue() != 0 {
		t.Errorf("strategy is %+v, want one more and none less", d.Spec.Strategy)
	}
	drain := fmt.Sprintf("--drain-time=%ds", drainSeconds)
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, drain) || *d.Spec.Template.Spec.TerminationGracePeriodSeconds <= drainSeconds {
		t.Errorf("the old pod does not wait for its successor: %q, and has %d s", args, *d.Spec.Template.Spec.TerminationGracePeriodSeconds)
	}
	attached := bmc()
	attached.Networks = "bmc-net"
	d = deployment(attached)
	if args := d.Spec.Template.Spec.Containers[0].Args; d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || slices.Contains(args, drain) {
		t.Errorf("on a network of its own: strategy %v, arguments %q", d.Spec.Strategy, args)
	}
}

func TestOptions_Validate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*Options)
		want string // empty: nothing is wrong
	}{
		"all that is needed":   {func(*Options) {}, ""},
		"no agents":            {func(o *Options) { *o = Options{} }, ""},
		"no registry":          {func(o *Options) { o.Registry = "" }, "--agent-registry is needed"},
		"no power":             {func(o *Options) { o.Power = "" }, "--agent-power is needed"},
		"no media":             {func(o *Options) { o.Media = "" }, "--agent-media is needed"},
		"no audience":          {func(o *Options) { o.Audience = "" }, "--agent-token-audience is needed"},
		"no file of the CA":    {func(o *Options) { o.CAFile = "" }, ""},
		"an unknown policy":    {func(o *Options) { o.PullPolicy = "Sometimes" }, `"Sometimes" is none of`},
		"a request of nothing": {func(o *Options) { o.MemoryRequest = "much" }, `--agent-memory-request: "much"`},
		"none unavailable":     {func(o *Options) { o.MaxUnavailable = 0 }, "--agent-max-unavailable: 0 is less than 1"},
		"a limit of nothing":   {func(o *Options) { o.CPULimit = "one" }, `--agent-cpu-limit: "one"`},
	} {
		o := options()
		tc.edit(&o)
		err := o.Validate()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestOptions_image(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"mirror:5000/virtbmc":           {ImageName: "mirror:5000/virtbmc"},
		"mirror:5000/virtbmc:v0.9.0":    {ImageName: "mirror:5000/virtbmc", ImageTag: "v0.9.0"},
		"mirror:5000/virtbmc@sha256:ab": {ImageName: "mirror:5000/virtbmc", ImageTag: "sha256:ab"},
	} {
		if got := o.image(); got != want {
			t.Errorf("%+v: %s, want %s", o, got, want)
		}
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	condition := func(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, message string) appsv1.DeploymentCondition {
		return appsv1.DeploymentCondition{Type: kind, Status: status, Message: message}
	}
	for name, tc := range map[string]struct {
		status appsv1.DeploymentStatus
		want   string
	}{
		"a pod serves":            {appsv1.DeploymentStatus{ReadyReplicas: 1}, ""},
		"nothing is known":        {appsv1.DeploymentStatus{}, "Deployment web-virtbmc has no pod that is ready yet"},
		"it gets on":              {appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "x")}}, "Deployment web-virtbmc has no pod that is ready yet"},
		"it is over its deadline": {appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "timed out")}}, "Deployment web-virtbmc does not get on: timed out"},
		"a quota is used up": {appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{
			condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "timed out"),
			condition(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "exceeded quota"),
		}}, "Deployment web-virtbmc makes no pod: exceeded quota"},
		"an old pod serves on": {appsv1.DeploymentStatus{ReadyReplicas: 1, Conditions: []appsv1.DeploymentCondition{condition(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "exceeded quota")}}, ""},
	} {
		d := &appsv1.Deployment{Status: tc.status}
		d.Name = "web-virtbmc"
		if got := waiting(d); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// The port of the process is the one that the pod names.
func TestOptions_Objects_portsAreDistinct(t *testing.T) {
	t.Parallel()
	for _, networks := range []string{"", "bmc-net"} {
		b := bmc()
		b.Networks = networks
		p := b.Ports()
		tcp := []int32{p.HTTP, p.HTTPS, portHealth}
		slices.Sort(tcp)
		if len(slices.Compact(tcp)) != 3 || p.IPMI == 0 {
			t.Errorf("networks %q: ports %+v", networks, p)
		}
	}
}

func TestMachineOf(t *testing.T) {
	t.Parallel()
	for identity, want := range map[string]string{
		Identity("lab", "vm"):                     "lab/vm",
		Identity("lab", "vm-virtbmc"):             "lab/vm-virtbmc",
		"system:serviceaccount:lab:vm":            "",
		"system:serviceaccount:lab:-virtbmc":      "",
		"system:serviceaccount:vm-virtbmc":        "",
		"lab:vm-virtbmc":                          "",
		"admin":                                   "",
		"system:serviceaccount:lab:virtbmc-power": "",
	} {
		namespace, machine, ok := MachineOf(identity)
		if got := namespace + "/" + machine; ok != (want != "") || ok && got != want {
			t.Errorf("MachineOf(%q) = %q, %v, want %q", identity, got, ok, want)
		}
	}
}
