//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// watchReady records what becomes of the condition Ready until stop is called.
func (s *site) watchReady() (stop func() []string) {
	s.Helper()
	c, err := client.NewWithWatch(s.config, client.Options{Scheme: s.Scheme()})
	if err != nil {
		s.Fatal(err)
	}
	var list v1beta1.VirtualMachineBMCList
	if err := s.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	watch, err := c.Watch(ctx, &list, client.InNamespace(s.namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		s.Fatal(err)
	}
	var seen []string
	var group sync.WaitGroup
	group.Go(func() {
		for event := range watch.ResultChan() {
			if bmc, ok := event.Object.(*v1beta1.VirtualMachineBMC); ok {
				if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
					seen = append(seen, bmc.Name+" "+c.Reason+" "+c.Message)
				}
			}
		}
	})
	return func() []string {
		cancel()
		watch.Stop()
		group.Wait()
		return seen
	}
}

// TestLeader: of two controllers one serves the registry; when it ends the other
// does, soon, with the same ports, and no client notices.
func TestLeader(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	udp := *bmc.Status.Frontend.IPMI.Port
	route := fmt.Sprintf("ipmi UDP %d", udp)

	second := s.controller()
	time.Sleep(2 * time.Second) // Long enough to make the mistake.
	_, err := second.Connect(t.Context(), "", &registryv1.Hello{Protocol: ipmi, Replica: "x"})
	if reason := grpcstatus.ReasonOf(err); reason != errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE {
		t.Errorf("who is not the leader answers subscribers with %v", err)
	}
	stop := s.watchReady()
	before := f.told()
	began := time.Now()
	first.stop()
	s.eventually("the second controller leads", func() error {
		status, ok := second.Status(registryRef(bmc), ipmi)
		if !ok || status.Replica != "frontend-0" || !status.Connected {
			return fmt.Errorf("status %+v, %v", status, ok)
		}
		return nil
	})
	t.Logf("the second controller had taken over after %v", time.Since(began))
	time.Sleep(time.Second)
	if seen := stop(); len(seen) > 0 {
		t.Errorf("while the controllers took turns the BMC was not ready: %v", seen)
	}
	s.wantReady(bmc)
	s.wantRoute("vm-virtbmc-ipmi", "10.0.0.10", route)
	if *bmc.Status.Frontend.IPMI.Port != udp {
		t.Errorf("the port has become %d, it was %d", *bmc.Status.Frontend.IPMI.Port, udp)
	}
	if told := f.told() - before; told != 0 {
		t.Errorf("the frontend had to act %d times", told)
	}
	another := s.complete("vm-2")
	s.wantReady(another)
	if *another.Status.Frontend.IPMI.Port == udp {
		t.Errorf("both BMCs have port %d", udp)
	}
}

// slowSecrets makes the API server answer slowly to who reads a Secret, and not at
// all for one of them.
type slowSecrets struct {
	http.RoundTripper
	time   time.Duration
	broken string
	mend   chan struct{}
}

func (s *slowSecrets) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/secrets/") {
		time.Sleep(s.time)
		select {
		case <-s.mend:
		default:
			if strings.HasSuffix(r.URL.Path, "/"+s.broken) {
				return nil, errors.New("no answer")
			}
		}
	}
	return s.RoundTripper.RoundTrip(r)
}

// TestLeader_slowAPI: a new leader needs longer for all BMCs than it waits for one,
// and never gets to one of them. No frontend drops any.
func TestLeader_slowAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	const many = 40 // of which 8 at a time are looked at.
	var bmcs []*v1beta1.VirtualMachineBMC
	for i := range many {
		bmcs = append(bmcs, s.complete(fmt.Sprintf("vm-%d", i)))
	}
	for _, bmc := range bmcs {
		s.wantReady(bmc)
	}
	broken, stop := bmcs[0], s.watchReady()
	before := f.told()
	first.stop()
	slow := &slowSecrets{time: 700 * time.Millisecond, broken: "vm-0-secret", mend: make(chan struct{})}
	second := s.controller(func(config *reconciler.Config) {
		config.OpenTime = time.Second
		config.REST = rest.CopyConfig(config.REST)
		config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
			slow.RoundTripper = next
			return slow
		})
	})
	s.eventually("the second controller knows all but one", func() error {
		for _, bmc := range bmcs[1:] {
			if status, _ := second.Status(registryRef(bmc), ipmi); status.State != registry.Serving {
				return fmt.Errorf("status of %s: %+v", bmc.Name, status)
			}
		}
		return nil
	})
	if _, ok := second.Status(registryRef(broken), ipmi); ok {
		t.Fatal("the second controller knows the one as well: the test shows nothing")
	}
	time.Sleep(time.Second) // Long enough to make the mistake.
	if told := f.told() - before; told != 0 {
		t.Errorf("the frontend had to act %d times", told)
	}
	if got := len(f.has(ipmi)); got != many {
		t.Errorf("the frontend serves %d BMCs, want %d", got, many)
	}
	s.wantRoute("vm-0-virtbmc-ipmi", "10.0.0.10")
	close(slow.mend)
	s.eventually("the second controller knows it", func() error {
		if status, _ := second.Status(registryRef(broken), ipmi); status.State != registry.Serving {
			return fmt.Errorf("status %+v", status)
		}
		return nil
	})
	if seen := stop(); len(seen) > 0 {
		t.Errorf("BMCs were not ready: %v", seen)
	}
	if told := f.told() - before; told != 0 {
		t.Errorf("the frontend had to act %d times at last", told)
	}
}

// TestPorts: no two BMCs have the same port, also when the status says so, and a
// range has an end.
func TestPorts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	few := func(config *reconciler.Config) { config.Ports = port.Range{First: 20000, Last: 20001} }
	c := s.controller(few)
	s.frontend("frontend-0", "10.0.0.10")
	a := s.complete("a")
	s.wantReady(a)
	b := s.complete("b")
	s.wantReady(b)
	third := s.complete("c")
	s.wantCondition(third, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonPortsExhausted)
	s.wantEvent(third, "Warning", v1beta1.ReasonPortsExhausted)
	first, second := *a.Status.Frontend.IPMI.Port, *b.Status.Frontend.IPMI.Port
	if first == second || first < 20000 || first > 20001 || second < 20000 || second > 20001 {
		t.Errorf("the ports are %d and %d", first, second)
	}

	// Two claim the same: the older keeps it.
	c.stop()
	s.eventually("a duplicate", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		b.Status.Frontend.IPMI.Port = &first
		return s.Status().Update(t.Context(), b)
	})
	s.controller(few)
	s.eventually("the duplicate is repaired", func() error {
		if err := errors.Join(s.Get(t.Context(), client.ObjectKeyFromObject(a), a), s.Get(t.Context(), client.ObjectKeyFromObject(b), b)); err != nil {
			return err
		}
		return errors.Join(equal(udpPort(a), first), equal(udpPort(b), second))
	})
	s.wantRoute("b-virtbmc-ipmi", "10.0.0.10", fmt.Sprintf("ipmi UDP %d", second))

	// Somebody takes it out of the status.
	s.eventually("no port in the status", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		b.Status.Frontend = nil
		return s.Status().Update(t.Context(), b)
	})
	s.wantReady(b)
	s.eventually("it is in the status again", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		return equal(udpPort(b), second)
	})

	s.remove(a)
	s.collect(a)
	s.wantReady(third)
	if got := *third.Status.Frontend.IPMI.Port; got != first {
		t.Errorf("the third BMC has port %d, want %d, which was returned", got, first)
	}
}

// udpPort is the port for IPMI that a status has; 0: none.
func udpPort(bmc *v1beta1.VirtualMachineBMC) int32 {
	if f := bmc.Status.Frontend; f != nil && f.IPMI != nil && f.IPMI.Port != nil {
		return *f.IPMI.Port
	}
	return 0
}

// TestFrontend_fails: what a frontend says is the condition's message.
func TestFrontend_fails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	f.mu.Lock()
	f.refuse = errors.New("the port is in use")
	f.mu.Unlock()
	bmc := s.complete("vm")
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonFrontendFailed)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonFrontendFailed)
	if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionReady); !strings.Contains(c.Message, "the port is in use") {
		t.Errorf("Ready says %q", c.Message)
	}
	f.mu.Lock()
	f.refuse = nil
	f.mu.Unlock()
	s.wantReady(bmc)
}

// TestOwner_ends: when the owner's pod is to end, and when the owner dies, clients
// are sent to another replica, and to none that does not serve.
func TestOwner_ends(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	replicas := map[string]*frontend{}
	for i := range 2 {
		f := s.frontend(fmt.Sprintf("frontend-%d", i), fmt.Sprintf("10.0.0.1%d", i))
		replicas[f.name] = f
	}
	bmc := s.complete("vm")
	s.wantReady(bmc)
	owner := func() *frontend {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			t.Fatal(err)
		}
		return replicas[bmc.Status.Frontend.IPMI.Replica]
	}
	old := owner()
	s.wantRoute("vm-virtbmc-ipmi", old.address)

	// The pod is deleted, as by a rollout: it goes on serving until the other does.
	stop := s.watchReady()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: old.name, Namespace: s.system}}
	change(s, pod, func(pod *corev1.Pod) { pod.Finalizers = []string{"lab.example/stay"} })
	s.remove(pod)
	other := replicas["frontend-0"]
	if old == other {
		other = replicas["frontend-1"]
	}
	s.wantRoute("vm-virtbmc-ipmi", other.address)
	s.wantRoute("vm-virtbmc-redfish", other.address)
	s.eventually("the old owner stops", func() error { return equal(len(old.has(ipmi))+len(old.has(redfish)), 0) })
	if got := other.has(ipmi); len(got) != 1 {
		t.Errorf("the new owner serves %v", got)
	}
	s.eventually("the status names the new owner", func() error { return equal(owner(), other) })
	for _, seen := range stop() {
		if !strings.Contains(seen, "EndpointSlice") {
			t.Errorf("during the move the BMC was not ready: %s", seen)
		}
	}
	change(s, pod, func(pod *corev1.Pod) { pod.Finalizers = nil })
	old.stop()
	s.eventually("the old owner is gone", func() error {
		for _, protocol := range []registryv1.Protocol{ipmi, redfish} {
			for _, replica := range c.Replicas(protocol) {
				if replica.Name == old.name && replica.Connected {
					return errors.New("it is connected")
				}
			}
		}
		return nil
	})

	// The last one dies: clients stay where they were, should it come back.
	other.stop()
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonFrontendAbsent)
	s.wantRoute("vm-virtbmc-ipmi", other.address)
	s.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: other.name, Namespace: s.system}})
	s.wantRoute("vm-virtbmc-ipmi", "")
	s.frontend("frontend-2", "10.0.0.12")
	s.wantReady(bmc)
	s.wantRoute("vm-virtbmc-ipmi", "10.0.0.12")
}

// TestFailover: the BMCs of a replica that dies are reachable again in under 5 s,
// 500 of them. The clock starts when the replica's streams end.
func TestFailover(t *testing.T) {
	const bmcs = 500
	s := newSite(t)
	s.controller()
	replicas := map[string]*frontend{}
	for i := range 2 {
		f := s.frontend(fmt.Sprintf("frontend-%d", i), fmt.Sprintf("10.0.0.1%d", i))
		replicas[f.name] = f
	}
	began := time.Now()
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := worker; i < bmcs; i += 16 {
				s.complete(fmt.Sprintf("vm-%03d", i))
			}
		})
	}
	group.Wait()
	t.Logf("%d machines with Secrets and BMCs made in %v", bmcs, time.Since(began))
	ready := func() error {
		var list v1beta1.VirtualMachineBMCList
		if err := s.List(t.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		n := 0
		for i := range list.Items {
			if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, v1beta1.ConditionReady) {
				n++
			}
		}
		return equal(n, bmcs)
	}
	for end := time.Now().Add(3 * time.Minute); ready() != nil; time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(ready())
		}
	}
	t.Logf("all are ready %v after the first was made", time.Since(began))

	// routes are the EndpointSlices that name an address.
	routes := func(address string) int {
		var list discoveryv1.EndpointSliceList
		if err := s.List(t.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range list.Items {
			if len(list.Items[i].Endpoints) == 1 && list.Items[i].Endpoints[0].Addresses[0] == address {
				n++
			}
		}
		return n
	}
	// The time is the product's where the machine has nothing else to do; on a busy
	// one the quickest of a few deaths is.
	const limit, deaths = 5 * time.Second, 3
	dead, alive := replicas["frontend-0"], replicas["frontend-1"]
	for death := range deaths {
		moving := routes(dead.address)
		began = time.Now()
		dead.stop()
		for routes(alive.address) < 2*bmcs || len(alive.has(ipmi)) < bmcs || len(alive.has(redfish)) < bmcs {
			if time.Since(began) > patience {
				t.Fatalf("%d EndpointSlices name the survivor, which serves %d and %d BMCs", routes(alive.address), len(alive.has(ipmi)), len(alive.has(redfish)))
			}
			time.Sleep(20 * time.Millisecond)
		}
		took := time.Since(began)
		t.Logf("%d EndpointSlices named the survivor %v after the other's death", moving, took)
		if took <= limit {
			return
		}
		next := s.frontend(fmt.Sprintf("frontend-%d", death+2), fmt.Sprintf("10.0.0.1%d", death+2))
		for end := time.Now().Add(3 * time.Minute); routes(next.address) < bmcs/2 || routes(next.address)+routes(alive.address) < 2*bmcs; time.Sleep(500 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d EndpointSlices name the newcomer", routes(next.address))
			}
		}
		dead, alive = alive, next
	}
	t.Errorf("none of %d failovers took less than %v", deaths, limit)
}

// TestAPIs_of_others: KubeVirt and CDI may come later, and go. It takes
// definitions away, so it is for clusters without KubeVirt's operator, alone.
func TestAPIs_of_others(t *testing.T) {
	s := newSite(t)
	definition := func(name string) *unstructured.Unstructured {
		d := &unstructured.Unstructured{}
		d.SetAPIVersion("apiextensions.k8s.io/v1")
		d.SetKind("CustomResourceDefinition")
		d.SetName(name)
		return d
	}
	if err := s.Get(t.Context(), client.ObjectKey{Name: "kubevirts.kubevirt.io"}, definition("")); err == nil {
		var nodes corev1.NodeList
		if err := s.List(t.Context(), &nodes); err != nil || len(nodes.Items) > 0 {
			t.Skip("KubeVirt runs on this cluster and would put its definitions back; make test-integration runs this on level api")
		}
	}
	machines := definition("virtualmachines.kubevirt.io")
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(machines), machines); err != nil {
		t.Fatal(err)
	}
	again := machines.DeepCopy()
	unstructured.RemoveNestedField(again.Object, "status")
	again.SetResourceVersion("")
	again.SetUID("")
	again.SetManagedFields(nil)
	back := func() {
		if err := s.Get(context.Background(), client.ObjectKeyFromObject(again), definition("")); err != nil {
			if err := s.Create(context.Background(), again.DeepCopy()); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(back)
	s.remove(machines)
	s.wantGone(machines)

	c := s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
	bmc := s.bmc("vm")
	s.create(bmc)
	s.wantCondition(bmc, v1beta1.ConditionHypervisorAvailable, metav1.ConditionFalse, v1beta1.ReasonKubeVirtNotFound)
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonKubeVirtNotFound)
	s.wantCondition(bmc, v1beta1.ConditionVirtualMediaAvailable, metav1.ConditionFalse, v1beta1.ReasonCDINotFound)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonKubeVirtNotFound)
	c.wantServed(s, "kubevirt.io", 0)
	c.wantServed(s, "cdi.kubevirt.io", 0)

	back()
	s.eventually("a machine", func() error { return s.Create(t.Context(), s.machine("vm")) })
	s.wantReady(bmc)
	s.wantEvent(bmc, "Normal", v1beta1.ReasonKubeVirtFound)
	c.wantServed(s, "kubevirt.io", 1)
	s.define([]byte(cdi))
	t.Cleanup(func() { _ = s.Delete(context.Background(), definition("datavolumes.cdi.kubevirt.io")) })
	s.wantCondition(bmc, v1beta1.ConditionVirtualMediaAvailable, metav1.ConditionTrue, v1beta1.ReasonCDIFound)
	c.wantServed(s, "cdi.kubevirt.io", 1)

	address, route, told := s.get("vm-virtbmc"), fmt.Sprintf("ipmi UDP %d", udpPort(bmc)), f.told()
	kept := func() {
		t.Helper()
		s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonKubeVirtNotFound)
		s.wantCondition(bmc, v1beta1.ConditionVirtualMachineAvailable, metav1.ConditionUnknown, v1beta1.ReasonVirtualMachineUnknown)
		s.wantCondition(bmc, v1beta1.ConditionServiceReady, metav1.ConditionTrue, v1beta1.ReasonServiceReady)
		time.Sleep(time.Second) // Long enough to make the mistake.
		if is := s.get("vm-virtbmc"); is.UID != address.UID || is.Spec.ClusterIP != address.Spec.ClusterIP || bmc.Status.ClusterIP != address.Spec.ClusterIP {
			t.Errorf("the Service is another, at %s, in the status at %s, want %s", is.Spec.ClusterIP, bmc.Status.ClusterIP, address.Spec.ClusterIP)
		}
		s.wantRoute("vm-virtbmc-ipmi", "10.0.0.10", route)
		if n := f.told() - told; n != 0 {
			t.Errorf("the frontend had to act %d times", n)
		}
	}
	serve := func(is bool) {
		t.Helper()
		change(s, definition("virtualmachines.kubevirt.io"), func(d *unstructured.Unstructured) {
			for _, version := range d.Object["spec"].(map[string]any)["versions"].([]any) {
				if version := version.(map[string]any); version["name"] == "v1" {
					version["served"] = is
				}
			}
		})
	}
	serve(false)
	kept()
	c.stop()
	c = s.controller()
	c.wantServed(s, "kubevirt.io", 0)
	kept()
	serve(true)
	s.wantReady(bmc)
	if is := s.get("vm-virtbmc"); is.UID != address.UID || f.told() != told {
		t.Errorf("the Service is another, or the frontend had to act")
	}

	// With the definition its machines go.
	s.remove(definition("virtualmachines.kubevirt.io"))
	s.wantGone(definition("virtualmachines.kubevirt.io"))
	back()
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonVirtualMachineNotFound)
	s.eventually("nothing is served", func() error { return equal(len(f.has(ipmi)), 0) })
	s.wantGone(s.service("vm-virtbmc"))
	s.eventually("a machine", func() error { return s.Create(t.Context(), s.machine("vm")) })
	s.wantReady(bmc)
}

// cdi is enough of CDI's definition to be found.
const cdi = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datavolumes.cdi.kubevirt.io, annotations: {api-approved.kubernetes.io: "unapproved, for tests"}}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datavolumes, kind: DataVolume}
  versions:
    - name: v1beta1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// wantServed waits until the metric says whether an API is served.
func (c *controller) wantServed(s *site, group string, want float64) {
	s.Helper()
	s.eventually("metric of "+group, func() error {
		got, err := c.gauge("vbmc_controller_api_served", group)
		return errors.Join(err, equal(got, want))
	})
}

// gauge is a controller's gauge of that name, of the label's value; empty: it has
// none.
func (c *controller) gauge(name, label string) (float64, error) {
	families, err := c.metrics.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue(), nil
			}
		}
	}
	return 0, errors.New("there is none")
}
