//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	"kubevirtbmc.dev/pkg/registryclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
	"kubevirtbmc.dev/services/controller/internal/registry"
	registryservice "kubevirtbmc.dev/services/controller/internal/service/registry/v1"
)

const (
	token    = "not-a-secret"
	patience = 60 * time.Second

	ipmi    = registryv1.Protocol_PROTOCOL_IPMI
	redfish = registryv1.Protocol_PROTOCOL_REDFISH
)

func TestMain(m *testing.M) { os.Exit(rbactest.RunPart(m, "controller")) }

// site is KUBECONFIG's cluster with a namespace for the controllers and their
// frontends, and one for machines.
type site struct {
	*testing.T
	client.Client
	config    *rest.Config
	system    string
	namespace string
	// access knows the frontends; nil: they have a static token.
	access interface {
		grpcserver.Authenticator
		grpcserver.Authorizer
	}

	// without are the controllers' roles that are left out.
	without []string
	// last is the account of the controller that was started last.
	last *rbactest.Account
	// after runs when the next controller has been made.
	after func()

	mu sync.Mutex
	// addresses are those of the controllers, of which frontends find the leader
	// by their resolvers.
	addresses []string
	resolvers []*manual.Resolver
}

func newSite(t *testing.T) *site {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	config.QPS, config.Burst = 1000, 2000
	config.WarningHandlerWithContext = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	id := strings.ToLower(rand.Text()[:8])
	s := &site{T: t, Client: c, config: config, system: "system-" + id, namespace: "lab-" + id}
	bmcresourcetest.Install(t, config)
	for _, name := range []string{s.system, s.namespace} {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		t.Cleanup(func() {
			_ = c.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		})
	}
	return s
}

// define installs a CustomResourceDefinition and waits until it is served.
func (s *site) define(definition []byte) {
	s.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(definition, &object.Object); err != nil {
		s.Fatal(err)
	}
	err := s.Apply(s.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.ForceOwnership, client.FieldOwner("test"))
	if err != nil {
		s.Fatal(err)
	}
	s.eventually("definition is served", func() error {
		is := &unstructured.Unstructured{}
		is.SetGroupVersionKind(object.GroupVersionKind())
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(object), is); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(is.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
		return errors.New("not established")
	})
}

// eventually waits until there is no error.
func (s *site) eventually(what string, check func() error) {
	s.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	s.Fatalf("%s: %v", what, err)
}

func (s *site) create(object client.Object) {
	s.Helper()
	if err := s.Create(s.Context(), object); err != nil {
		s.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func (s *site) remove(object client.Object) {
	s.Helper()
	if err := s.Delete(s.Context(), object); client.IgnoreNotFound(err) != nil {
		s.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
}

// change changes an object that others change too.
func change[T client.Object](s *site, object T, edit func(T)) {
	s.Helper()
	s.eventually("change", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		edit(object)
		return s.Update(s.Context(), object)
	})
}

// machine makes a VirtualMachine that is off.
func (s *site) machine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
		"metadata": map[string]any{"name": name, "namespace": s.namespace},
		"spec": map[string]any{
			"runStrategy": "Halted",
			"template": map[string]any{"spec": map[string]any{
				"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}},
			}},
		},
	}}
}

func (s *site) secret(name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}, StringData: data}
}

// bmc is a VirtualMachineBMC of the machine and Secret of the same name, with
// IPMI.
func (s *site) bmc(name string) *v1beta1.VirtualMachineBMC {
	on := true
	return &v1beta1.VirtualMachineBMC{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-bmc", Namespace: s.namespace},
		Spec: v1beta1.VirtualMachineBMCSpec{
			VirtualMachineRef: &v1beta1.LocalObjectReference{Name: name},
			AuthSecretRef:     &v1beta1.LocalObjectReference{Name: name + "-secret"},
			IPMI:              &v1beta1.IPMISpec{Enabled: &on},
		},
	}
}

// complete makes a machine with Secret and BMC.
func (s *site) complete(name string) *v1beta1.VirtualMachineBMC {
	s.Helper()
	s.create(s.machine(name))
	s.create(s.secret(name+"-secret", map[string]string{"username": "admin", "password": "first"}))
	bmc := s.bmc(name)
	s.create(bmc)
	return bmc
}

// controller is a controller process with all but TLS.
type controller struct {
	*registry.Registry
	metrics *prometheus.Registry
	stop    func()
}

// noAccounts is a store without accounts.
type noAccounts struct{}

func (noAccounts) Accounts(context.Context, registry.Ref) ([]*registryv1.Account, error) {
	return nil, nil
}

// controller starts a controller that runs until the test ends or its stop is
// called.
func (s *site) controller(edit ...func(*reconciler.Config)) *controller {
	s.Helper()
	log := slog.New(slog.NewTextHandler(output{s.T}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	c := &controller{metrics: prometheus.NewRegistry()}
	config := reconciler.Config{
		REST: s.account().REST(), Log: log, Metrics: c.metrics, Namespace: s.system, Namespaces: []string{s.namespace},
		Ports: port.DefaultRange, DiscoveryInterval: 200 * time.Millisecond,
		RouteTime: 100 * time.Millisecond,
	}
	for _, e := range edit {
		e(&config)
	}
	source, err := reconciler.New(config)
	if err != nil {
		s.Fatal(err)
	}
	if s.after != nil {
		s.after()
		s.after = nil
	}
	c.Registry, err = registry.New(registry.Config{
		Log: log, Metrics: c.metrics, Observer: source,
		SettleTime: 2 * time.Second, HandOverTime: 200 * time.Millisecond, RestTime: 200 * time.Millisecond,
	})
	if err != nil {
		s.Fatal(err)
	}
	var tokens grpcserver.StaticTokens
	tokens.Add(token, "frontends")
	serve := grpcserver.Config{Log: slog.New(slog.DiscardHandler), Authenticator: tokens, Metrics: c.metrics}
	if s.access != nil {
		serve.Authenticator, serve.Authorizer = s.access, s.access
	}
	server, err := grpcserver.New(serve)
	if err != nil {
		s.Fatal(err)
	}
	registryservice.Register(server, registryservice.New(registryservice.Config{Registry: c.Registry, AgentOf: source.AgentOf}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	group.Go(func() {
		if err := source.Run(ctx, c.Registry, noAccounts{}); err != nil {
			s.Errorf("controller: %v", err)
		}
	})
	address := listener.Addr().String()
	s.serveAt(func(list []string) []string { return append(list, address) })
	c.stop = sync.OnceFunc(func() {
		cancel()
		server.Stop()
		group.Wait()
		s.serveAt(func(list []string) []string {
			return slices.DeleteFunc(list, func(one string) bool { return one == address })
		})
	})
	s.Cleanup(c.stop)
	return c
}

// account is what the manifest of the controller gives it.
func (s *site) account() *rbactest.Account {
	s.Helper()
	s.last = rbactest.New(s.T, s.config, "controller", rbactest.Where{Own: s.system, Serves: []string{s.namespace}, Without: s.without})
	return s.last
}

func (s *site) serveAt(edit func([]string) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = edit(s.addresses)
	for _, r := range s.resolvers {
		r.UpdateState(stateOf(s.addresses))
	}
}

func stateOf(addresses []string) (state resolver.State) {
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	return state
}

// dial connects to the controllers there are, at any time.
func (s *site) dial() *grpc.ClientConn {
	s.Helper()
	return s.dialAs(token)
}

func (s *site) dialAs(bearer string) *grpc.ClientConn {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := manual.NewBuilderWithScheme("controllers")
	r.InitialState(stateOf(s.addresses))
	conn, err := grpcclient.Dial("controllers:///", grpcclient.Config{
		Token: func() (string, error) { return bearer, nil }, Options: []grpc.DialOption{grpc.WithResolvers(r)},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.resolvers = append(s.resolvers, r)
	return conn
}

// output is a test's log, until its end.
type output struct{ t *testing.T }

func (o output) Write(line []byte) (int, error) { return o.t.Output().Write(line) }

// frontend is a replica of both frontends, with the real client of the registry
// and a pod that no node runs.
type frontend struct {
	name, address string
	stop          func()

	mu     sync.Mutex
	serves map[registryv1.Protocol]map[string]*registryv1.BMC
	// refuse makes it fail to serve.
	refuse error
	tells  int
}

func (s *site) frontend(name, address string) *frontend {
	s.Helper()
	f := &frontend{name: name, address: address, serves: map[registryv1.Protocol]map[string]*registryv1.BMC{ipmi: {}, redfish: {}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.system},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", Containers: []corev1.Container{{Name: "frontend", Image: "none"}},
		},
	}
	s.create(pod)
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if err := s.Status().Update(s.Context(), pod); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, protocol := range []registryv1.Protocol{ipmi, redfish} {
		conn := s.dial()
		group.Go(func() {
			defer conn.Close()
			_ = registryclient.Run(ctx, registryclient.Config{
				Conn: conn, Protocol: protocol, Replica: name, Log: slog.New(slog.DiscardHandler),
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

// handler is a frontend of one protocol.
type handler struct {
	*frontend
	protocol registryv1.Protocol
}

func (h *handler) Apply(_ context.Context, bmc *registryv1.BMC) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tells++
	if h.refuse != nil {
		return h.refuse
	}
	h.serves[h.protocol][bmc.GetBmc().GetName()] = bmc
	return nil
}

func (h *handler) Remove(bmc *referencev1.BMCReference) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tells++
	delete(h.serves[h.protocol], bmc.GetName())
}

func (f *frontend) get(protocol registryv1.Protocol, bmc string) *registryv1.BMC {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serves[protocol][bmc]
}

func (f *frontend) told() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tells
}

// has are the names of what it serves.
func (f *frontend) has(protocol registryv1.Protocol) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.serves[protocol]))
}

// wantCondition waits until a condition is so for the newest generation.
func (s *site) wantCondition(bmc *v1beta1.VirtualMachineBMC, kind string, status metav1.ConditionStatus, reason string) {
	s.Helper()
	s.eventually(fmt.Sprintf("condition %s of %s", kind, bmc.Name), func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		c := meta.FindStatusCondition(bmc.Status.Conditions, kind)
		switch {
		case c == nil:
			return errors.New("not there")
		case c.Status != status, c.Reason != reason, c.ObservedGeneration != bmc.Generation:
			return fmt.Errorf("is %s %s (%s) of generation %d, want %s %s of %d", c.Status, c.Reason, c.Message, c.ObservedGeneration, status, reason, bmc.Generation)
		}
		return nil
	})
}

func (s *site) wantReady(bmc *v1beta1.VirtualMachineBMC) {
	s.Helper()
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonServing)
}

// wantEvent waits for an event about a BMC.
func (s *site) wantEvent(bmc *v1beta1.VirtualMachineBMC, kind, reason string) {
	s.Helper()
	s.eventually("event "+reason, func() error {
		var list eventsv1.EventList
		if err := s.List(s.Context(), &list, client.InNamespace(bmc.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == bmc.Name && e.Regarding.UID == bmc.UID && e.Reason == reason && e.Type == kind {
				return nil
			}
		}
		return errors.New("not there")
	})
}

func (s *site) service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}}
}

func (s *site) slice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}}
}

// wantGone waits until an object is not there.
func (s *site) wantGone(object client.Object) {
	s.Helper()
	s.eventually(fmt.Sprintf("%T %s is gone", object, object.GetName()), func() error {
		err := s.Get(s.Context(), client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			return errors.New("it is there")
		}
		return err
	})
}

// wantRoute waits until an EndpointSlice names one address and these ports.
func (s *site) wantRoute(name, address string, ports ...string) {
	s.Helper()
	s.eventually("EndpointSlice "+name, func() error {
		slice := s.slice(name)
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(slice), slice); err != nil {
			return err
		}
		return routed(slice, address, ports...)
	})
}

func routed(slice *discoveryv1.EndpointSlice, address string, ports ...string) error {
	var addresses, has []string
	for _, endpoint := range slice.Endpoints {
		addresses = append(addresses, endpoint.Addresses...)
	}
	for _, p := range slice.Ports {
		has = append(has, fmt.Sprintf("%s %s %d", *p.Name, *p.Protocol, *p.Port))
	}
	slices.Sort(has)
	slices.Sort(ports)
	var want []string
	if address != "" {
		want = []string{address}
	}
	if !slices.Equal(addresses, want) || len(ports) > 0 && !slices.Equal(has, ports) {
		return fmt.Errorf("is %v %v, want %v %v", addresses, has, want, ports)
	}
	return nil
}

var _ io.Writer = output{}

// collect removes what a BMC owned, as Kubernetes' garbage collector does, which
// clusters of level api do not have.
func (s *site) collect(owner *v1beta1.VirtualMachineBMC) {
	s.Helper()
	var services corev1.ServiceList
	var slices discoveryv1.EndpointSliceList
	for _, list := range []client.ObjectList{&services, &slices} {
		if err := s.List(s.Context(), list, client.InNamespace(owner.Namespace)); err != nil {
			s.Fatal(err)
		}
	}
	var objects []client.Object
	for i := range services.Items {
		objects = append(objects, &services.Items[i])
	}
	for i := range slices.Items {
		objects = append(objects, &slices.Items[i])
	}
	for _, object := range objects {
		if c := metav1.GetControllerOf(object); c != nil && c.UID == owner.UID {
			s.remove(object)
		}
	}
}

func registryRef(bmc *v1beta1.VirtualMachineBMC) registry.Ref {
	return registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name}
}
