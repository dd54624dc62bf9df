//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess"
	"kubevirtbmc.dev/pkg/registryclient"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// knows knows agents from Kubernetes, and the shared frontends by their static
// token.
type knows struct{ *kubeaccess.Reviewer }

// Authenticate implements grpcserver.Authenticator.
func (k knows) Authenticate(ctx context.Context, presented string) (grpcserver.Identity, error) {
	if presented == token {
		return grpcserver.Identity{Name: "frontends"}, nil
	}
	return k.Reviewer.Authenticate(ctx, presented)
}

// Authorize implements grpcserver.Authorizer.
func (k knows) Authorize(ctx context.Context, caller grpcserver.Identity, request access.Request) error {
	if caller.Name == "frontends" {
		return nil
	}
	return k.Reviewer.Authorize(ctx, caller, request)
}

// withAgents makes controllers run agents.
func (s *site) withAgents(edit ...func(*agent.Options)) func(*reconciler.Config) {
	s.Helper()
	reviewer, err := kubeaccess.New(kubeaccess.Config{REST: s.config, Audiences: []string{access.Group}})
	if err != nil {
		s.Fatal(err)
	}
	s.access = knows{reviewer}
	options := agent.Options{
		ImageName: "kubevirtbmc.test/virtbmc", ImageTag: "1", CPURequest: "10m", MemoryRequest: "32Mi",
		Registry: "dns:///controller.test:9443", Power: "dns:///power.test:9443", Media: "dns:///media.test:9443",
		Audience: access.Group, CAFile: filepath.Join(s.TempDir(), "ca.pem"), MaxUnavailable: agent.DefaultMaxUnavailable,
	}
	for _, e := range edit {
		e(&options)
	}
	if err := os.WriteFile(options.CAFile, []byte("first CA\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	return func(c *reconciler.Config) { c.Agents = options }
}

// agentObjects are those of the agent of a machine, empty.
func (s *site) agentObjects(machine string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: machine + "-virtbmc"}
	ca := meta
	ca.Name += "-ca"
	return []client.Object{
		&appsv1.Deployment{ObjectMeta: meta}, &corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta}, &rbacv1.RoleBinding{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: ca},
	}
}

// wantAgent waits for the objects of an agent, each of which goes with its BMC.
func (s *site) wantAgent(bmc *v1beta1.VirtualMachineBMC) {
	s.Helper()
	for _, object := range s.agentObjects(bmc.Spec.VirtualMachineRef.Name) {
		s.eventually(fmt.Sprintf("%T of the agent", object), func() error {
			if err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				return err
			}
			owner := metav1.GetControllerOf(object)
			if owner == nil || owner.UID != bmc.UID || owner.Kind != "VirtualMachineBMC" || owner.Name != bmc.Name {
				return fmt.Errorf("its owner is %+v", owner)
			}
			return nil
		})
	}
}

// deployment waits until the agent's Deployment is so.
func (s *site) deployment(machine string, is func(*appsv1.Deployment) error) *appsv1.Deployment {
	s.Helper()
	d := &appsv1.Deployment{}
	s.eventually("Deployment of the agent", func() error {
		d = &appsv1.Deployment{}
		if err := s.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: machine + "-virtbmc"}, d); err != nil {
			return err
		}
		return is(d)
	})
	return d
}

// pod is one of the agent's Deployment, which no node runs, with a process that
// subscribes as its ServiceAccount.
func (s *site) pod(d *appsv1.Deployment, suffix, address string) *frontend {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: *d.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = d.Namespace, d.Name+"-"+suffix
	pod.Spec.SchedulerName = "nobody"
	pod.Finalizers = []string{"lab.example/stay"}
	s.create(pod)
	s.Cleanup(func() { s.letGo(pod) })
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if err := s.Status().Update(s.Context(), pod); err != nil {
		s.Fatal(err)
	}
	f := &frontend{name: pod.Name, address: address, serves: map[registryv1.Protocol]map[string]*registryv1.BMC{ipmi: {}, redfish: {}}}
	bearer := s.tokenOf(pod.Spec.ServiceAccountName)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, protocol := range []registryv1.Protocol{ipmi, redfish} {
		conn := s.dialAs(bearer)
		group.Go(func() {
			defer conn.Close()
			_ = registryclient.Run(ctx, registryclient.Config{
				Conn: conn, Protocol: protocol, Replica: pod.Name, Log: slog.New(slog.DiscardHandler),
			}, &handler{f, protocol})
		})
	}
	f.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	s.Cleanup(f.stop)
	return f
}

// letGo lets a pod that is being deleted go.
func (s *site) letGo(pod *corev1.Pod) {
	ctx := context.WithoutCancel(s.Context())
	is := &corev1.Pod{}
	if s.Get(ctx, client.ObjectKeyFromObject(pod), is) == nil {
		is.Finalizers = nil
		_ = s.Update(ctx, is)
	}
}

// tokenOf returns a token of a ServiceAccount for the services.
func (s *site) tokenOf(account string) string {
	s.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{access.Group}}}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: account}}
	if err := s.SubResource("token").Create(s.Context(), owner, request); err != nil {
		s.Fatal(err)
	}
	return request.Status.Token
}

func mode(m v1beta1.FrontendMode) func(*v1beta1.VirtualMachineBMC) {
	return func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.Frontend = &v1beta1.FrontendSpec{Mode: m} }
}

func (s *site) wantMode(bmc *v1beta1.VirtualMachineBMC, want v1beta1.FrontendMode) {
	s.Helper()
	s.eventually("mode "+string(want), func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		return equal(bmc.Status.Frontend.Mode, want)
	})
}

// TestAgent: a BMC moves to an agent and back without being unreachable, and keeps
// its address.
func TestAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	agents := s.withAgents()
	c := s.controller(agents)
	shared := s.frontend("frontend-0", "10.0.0.10")
	bmc, other := s.complete("vm"), s.complete("other")
	s.wantReady(bmc)
	s.wantReady(other)
	address, udp := bmc.Status.ClusterIP, *bmc.Status.Frontend.IPMI.Port
	stop := s.watchReady()

	change(s, bmc, mode(v1beta1.FrontendModeDedicated))
	s.wantAgent(bmc)
	s.eventually("the message", func() error {
		s.wantReady(bmc)
		for _, condition := range bmc.Status.Conditions {
			if condition.Type == v1beta1.ConditionFrontendReady && strings.Contains(condition.Message, "the shared frontends serve the BMC until its agent does") {
				return equal(bmc.Status.Frontend.Mode, v1beta1.FrontendModeShared)
			}
		}
		return errors.New("it does not say that the agent is missing")
	})
	s.wantRoute("vm-virtbmc-ipmi", shared.address, fmt.Sprintf("ipmi UDP %d", udp))
	d := s.deployment("vm", func(*appsv1.Deployment) error { return nil })
	first := s.pod(d, "first", "10.0.0.20")
	s.wantMode(bmc, v1beta1.FrontendModeDedicated)
	s.wantReady(bmc)
	s.wantRoute("vm-virtbmc-ipmi", first.address, "ipmi UDP 10623")
	s.wantRoute("vm-virtbmc-redfish", first.address, "redfish-https TCP 10443")
	s.eventually("the shared frontend stops", func() error { return equal(strings.Join(shared.has(ipmi), " "), other.Name) })
	told := first.get(ipmi, bmc.Name)
	if got := told.GetIpmi().GetUdp(); got.GetPort() != 10623 || got.GetClientPort() != 623 || told.GetAccounts()[0].GetPassword() != "first" {
		t.Errorf("the agent is told of %v", got)
	}
	if got := append(first.has(ipmi), first.has(redfish)...); !slices.Equal(got, []string{bmc.Name, bmc.Name}) {
		t.Errorf("the agent is told of %v, want its BMC alone", got)
	}

	wantReadyAllTheTime(t, stop())

	// Another controller knows what serves.
	c.stop()
	s.controller(agents)
	s.wantReady(bmc)
	s.wantMode(bmc, v1beta1.FrontendModeDedicated)
	s.wantReady(other)
	stop = s.watchReady()

	// A rollout: the new pod is there before the old one ends.
	second := s.pod(d, "second", "10.0.0.21")
	s.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: first.name}})
	s.wantRoute("vm-virtbmc-ipmi", second.address)
	s.wantRoute("vm-virtbmc-redfish", second.address)
	s.eventually("the old pod stops", func() error { return equal(len(first.has(ipmi))+len(first.has(redfish)), 0) })
	first.stop()
	s.letGo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: first.name}})

	// And back.
	change(s, bmc, mode(v1beta1.FrontendModeShared))
	s.wantMode(bmc, v1beta1.FrontendModeShared)
	s.wantReady(bmc)
	s.wantRoute("vm-virtbmc-ipmi", shared.address, fmt.Sprintf("ipmi UDP %d", *bmc.Status.Frontend.IPMI.Port))
	s.eventually("the agent stops", func() error { return equal(len(second.has(ipmi))+len(second.has(redfish)), 0) })
	s.wantGone(d)
	account := &corev1.ServiceAccount{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "vm-virtbmc"}, account); err != nil {
		t.Errorf("the pod that still ends has lost its ServiceAccount: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: second.name}}
	s.remove(pod)
	s.letGo(pod)
	for _, object := range s.agentObjects("vm") {
		s.wantGone(object)
	}
	wantReadyAllTheTime(t, stop())
	if bmc.Status.ClusterIP != address {
		t.Errorf("the address was %s and is %s", address, bmc.Status.ClusterIP)
	}
}

// wantReadyAllTheTime checks what watchReady has seen: that an EndpointSlice had to
// follow is no fault.
func wantReadyAllTheTime(t *testing.T, seen []string) {
	t.Helper()
	for _, text := range seen {
		if !strings.Contains(text, "EndpointSlice") {
			t.Errorf("during the moves a BMC was not ready: %s", text)
		}
	}
}

// TestAgent_drift: what somebody changes about an agent is repaired.
func TestAgent_drift(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	agents := s.withAgents()
	c := s.controller(agents)
	bmc := s.bmc("vm")
	mode(v1beta1.FrontendModeDedicated)(bmc)
	s.create(s.machine("vm"))
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
	s.create(bmc)
	s.wantAgent(bmc)
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonAgentNotReady)
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc"}

	d := s.deployment("vm", func(*appsv1.Deployment) error { return nil })
	change(s, d, func(d *appsv1.Deployment) {
		d.Spec.Replicas = ptrTo(int32(0))
		d.Spec.Template.Spec.Containers[0].Image = "evil"
		d.Spec.Template.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = ptrTo(true)
	})
	s.deployment("vm", func(d *appsv1.Deployment) error {
		c := d.Spec.Template.Spec.Containers[0]
		return equal(fmt.Sprint(*d.Spec.Replicas, c.Image, *c.SecurityContext.AllowPrivilegeEscalation), fmt.Sprint(1, "kubevirtbmc.test/virtbmc:1", false))
	})
	change(s, d, func(d *appsv1.Deployment) { d.Labels[v1beta1.LabelVMName] = "none" })
	s.wantAgent(bmc)
	s.deployment("vm", func(d *appsv1.Deployment) error { return equal(d.Labels[v1beta1.LabelVMName], "vm") })

	role := &rbacv1.Role{ObjectMeta: meta}
	change(s, role, func(role *rbacv1.Role) { role.Rules[1].ResourceNames = nil })
	s.eventually("the rules are back", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(role), role); err != nil {
			return err
		}
		return equal(strings.Join(role.Rules[1].ResourceNames, " "), bmc.Name)
	})
	for _, object := range s.agentObjects("vm") {
		s.remove(object)
	}
	s.wantAgent(bmc)

	// The options: another image, which the next controller brings, and other CA
	// certificates, which the same one does.
	c.stop()
	next := s.withAgents(func(o *agent.Options) { o.ImageTag = "2" })
	config := reconciler.Config{}
	next(&config)
	s.controller(next)
	s.deployment("vm", func(d *appsv1.Deployment) error {
		return equal(d.Spec.Template.Spec.Containers[0].Image, "kubevirtbmc.test/virtbmc:2")
	})
	if err := os.WriteFile(config.Agents.CAFile, []byte("second CA\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc-ca"}}
	s.eventually("the new CA", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(ca), ca); err != nil {
			return err
		}
		return equal(ca.Data["ca.crt"], "second CA\n")
	})

	// A network of its own: the strategy changes, and with it what the API server
	// had filled in.
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.NetworkRef = ptrTo("bmc-net") })
	s.deployment("vm", func(d *appsv1.Deployment) error {
		return equal(fmt.Sprint(d.Spec.Strategy.Type, d.Spec.Strategy.RollingUpdate, d.Spec.Template.Annotations[v1beta1.AnnotationNetworks]),
			fmt.Sprint("Recreate", (*appsv1.RollingUpdateDeployment)(nil), "bmc-net"))
	})
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Spec.NetworkRef = nil })
	s.deployment("vm", func(d *appsv1.Deployment) error {
		return equal(d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	})

	// The machine goes, and with it what would serve it.
	s.remove(s.machine("vm"))
	for _, object := range s.agentObjects("vm") {
		s.wantGone(object)
	}
}

// TestAgent_refused: an agent that can't be made is told of, and what is somebody
// else's is left alone.
func TestAgent_refused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller(s.withAgents())
	theirs := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "taken-virtbmc", Labels: map[string]string{"whose": "theirs"}}}
	s.create(theirs)
	wrong := s.bmc("wrong")
	wrong.Spec.Frontend = &v1beta1.FrontendSpec{Mode: v1beta1.FrontendModeDedicated, Dedicated: &v1beta1.DedicatedFrontendSpec{
		NodeSelector: map[string]string{"not a label": "x"},
	}}
	taken := s.bmc("taken")
	mode(v1beta1.FrontendModeDedicated)(taken)
	outside := s.bmc("outside")
	outside.Spec.NetworkRef = ptrTo("kube-system/net")
	for name, bmc := range map[string]*v1beta1.VirtualMachineBMC{"wrong": wrong, "taken": taken, "outside": outside} {
		s.create(s.machine(name))
		s.create(s.secret(name+"-secret", map[string]string{"username": "admin", "password": "first"}))
		s.create(bmc)
	}
	for _, bmc := range []*v1beta1.VirtualMachineBMC{wrong, taken, outside} {
		s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonAgentRefused)
		s.wantEvent(bmc, "Warning", v1beta1.ReasonAgentRefused)
	}
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || len(theirs.OwnerReferences) > 0 || theirs.Labels["whose"] != "theirs" {
		t.Errorf("the ServiceAccount that is somebody else's: %v, %v", theirs.ObjectMeta, err)
	}
	s.wantGone(&appsv1.Deployment{ObjectMeta: theirs.ObjectMeta})
	s.wantGone(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "outside-virtbmc"}})
	change(s, wrong, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Frontend.Dedicated.NodeSelector = map[string]string{"rack": "1"}
	})
	s.wantCondition(wrong, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonAgentNotReady)
	s.deployment("wrong", func(d *appsv1.Deployment) error { return equal(d.Spec.Template.Spec.NodeSelector["rack"], "1") })
}

// TestAgent_ofEarlierLine: a Deployment of the BMC's own with a selector that can't
// be changed is made anew, or removed where there is to be no agent.
func TestAgent_ofEarlierLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dedicated, shared := s.bmc("dedicated"), s.bmc("shared")
	mode(v1beta1.FrontendModeDedicated)(dedicated)
	uids := map[string]types.UID{}
	for name, bmc := range map[string]*v1beta1.VirtualMachineBMC{"dedicated": dedicated, "shared": shared} {
		s.create(s.machine(name))
		s.create(s.secret(name+"-secret", map[string]string{"username": "admin", "password": "first"}))
		s.create(bmc)
		labels := map[string]string{v1beta1.LabelVirtualMachineBMCName: bmc.Name, v1beta1.LabelVMName: name, "app": "old"}
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.namespace, Name: name + "-virtbmc", Labels: labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(bmc, v1beta1.GroupVersion.WithKind("VirtualMachineBMC"))},
			},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "old"}},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "virtbmc", Image: "old"}}},
				},
			},
		}
		s.create(d)
		uids[name] = d.UID
	}
	s.controller(s.withAgents())
	s.wantGone(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "shared-virtbmc"}})
	s.deployment("dedicated", func(d *appsv1.Deployment) error {
		if d.UID == uids["dedicated"] {
			return errors.New("it is the old one")
		}
		return equal(d.Spec.Selector.MatchLabels[v1beta1.LabelVMName], "dedicated")
	})
}

// TestAgent_restrictedNamespace: pods of agents are let into a namespace with
// Kubernetes' strictest policy, those on a network of their own too.
func TestAgent_restrictedNamespace(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	change(s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, func(namespace *corev1.Namespace) {
		namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	})
	options := reconciler.Config{}
	s.withAgents()(&options)
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "vm-virtbmc"}})
	for _, networks := range []string{"", "bmc-net"} {
		d := options.Agents.Objects(agent.BMC{Namespace: s.namespace, Name: "vm-bmc", UID: "1", Machine: "vm", Networks: networks}, "").Deployment
		d.OwnerReferences, d.Name = nil, ptrTo("vm-"+fmt.Sprint(len(networks)))
		if err := s.Apply(t.Context(), d, client.FieldOwner("test")); err != nil {
			t.Fatal(err)
		}
		made := &appsv1.Deployment{}
		if err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: *d.Name}, made); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: made.Spec.Template.ObjectMeta, Spec: made.Spec.Template.Spec}
		pod.Namespace, pod.Name = s.namespace, made.Name
		if err := s.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("networks %q: %v", networks, err)
		}
		pod.Spec.SecurityContext.RunAsNonRoot = nil
		if err := s.Create(t.Context(), pod, client.DryRunAll); err == nil {
			t.Error("the namespace has no policy")
		}
	}
}

// TestAgent_rights: an agent's token is good for its own BMC and nothing else.
func TestAgent_rights(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller(s.withAgents())
	bmcs := map[string]*v1beta1.VirtualMachineBMC{}
	for _, name := range []string{"one", "two"} {
		bmc := s.bmc(name)
		mode(v1beta1.FrontendModeDedicated)(bmc)
		s.create(s.machine(name))
		s.create(s.secret(name+"-secret", map[string]string{"username": "admin", "password": "first"}))
		s.create(bmc)
		s.wantAgent(bmc)
		bmcs[name] = bmc
	}
	ctx := t.Context()
	caller, err := s.access.Authenticate(ctx, s.tokenOf("one-virtbmc"))
	if err != nil {
		t.Fatal(err)
	}
	if want := agent.Identity(s.namespace, "one"); caller.Name != want {
		t.Errorf("the agent is %s, want %s", caller.Name, want)
	}
	for _, subresource := range []string{"power", "boot", "media", "console", "inventory", "state", "credentials"} {
		for _, verb := range []string{access.Get, access.Update} {
			request := access.Request{Subresource: subresource, Verb: verb, BMC: registryRef(bmcs["one"]).Message()}
			err := s.access.Authorize(ctx, caller, request)
			if may := subresource != "inventory" || verb == access.Get; may && err != nil || !may && err == nil {
				t.Errorf("%v: %v", request, err)
			}
			request.BMC = registryRef(bmcs["two"]).Message()
			if err := s.access.Authorize(ctx, caller, request); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_PERMISSION_DENIED {
				t.Errorf("%v: %v", request, err)
			}
			request.BMC = nil
			if err := s.access.Authorize(ctx, caller, request); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_PERMISSION_DENIED {
				t.Errorf("%v: %v", request, err)
			}
		}
	}
	// Under the other's name it gets what is its own.
	for _, replica := range []string{"two-virtbmc-x", "one-virtbmc-x"} {
		stream, err := registryv1.NewRegistryServiceClient(s.dialAs(s.tokenOf("one-virtbmc"))).Subscribe(ctx)
		if err != nil {
			t.Fatal(err)
		}
		hello := &registryv1.Hello{Protocol: ipmi, Replica: replica}
		if err := stream.Send(&registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Hello{Hello: hello}}); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if name := response.GetUpsert().GetBmc().GetName(); err != nil || name != "one-bmc" {
			t.Errorf("as %s it is told of %q, %v", replica, name, err)
		}
		_ = stream.CloseSend()
	}
	// Nothing of it opens the API server.
	if _, err := s.access.Authenticate(ctx, "not-a-token"); grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_UNAUTHENTICATED {
		t.Errorf("a wrong token: %v", err)
	}
}
