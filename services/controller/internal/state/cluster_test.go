//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
	"kubevirtbmc.dev/pkg/grpcserver/servertest"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess/rbactest"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/record"
	"kubevirtbmc.dev/services/controller/internal/registry"
	service "kubevirtbmc.dev/services/controller/internal/service/state/v1"
	"kubevirtbmc.dev/services/controller/internal/state"
)

const (
	patience = 30 * time.Second
	bmcName  = "node-1"
	password = "secret-of-the-test"
)

func TestMain(m *testing.M) { os.Exit(rbactest.RunPart(m, "controller")) }

// site is a namespace with a BMC on KUBECONFIG's cluster.
type site struct {
	*testing.T
	config    *rest.Config
	core      *typedcorev1.CoreV1Client
	bmcs      dynamic.ResourceInterface
	namespace string
	ref       *referencev1.BMCReference
}

func newSite(t *testing.T) *site {
	t.Helper()
	config := bmcresourcetest.Cluster(t)
	config.QPS, config.Burst = 500, 1000
	config.WarningHandlerWithContext = rest.NoWarnings{}
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	resources := bmcresourcetest.Install(t, config)
	s := &site{T: t, config: config, core: core, namespace: "state-" + strings.ToLower(rand.Text()[:8])}
	s.ref = &referencev1.BMCReference{Namespace: s.namespace, Name: bmcName}
	s.bmcs = resources.Namespace(s.namespace)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if _, err := core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Namespaces().Delete(context.Background(), s.namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Logf("delete namespace: %v", err)
		}
	})
	s.createBMC()
	return s
}

func (s *site) createBMC() types.UID {
	s.Helper()
	bmc := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": state.BMCs.GroupVersion().String(), "kind": "VirtualMachineBMC",
		"metadata": map[string]any{"name": bmcName, "namespace": s.namespace},
		"spec": map[string]any{
			"virtualMachineRef": map[string]any{"name": "vm-1"}, "authSecretRef": map[string]any{"name": "login"},
		},
	}}
	created, err := s.bmcs.Create(s.Context(), bmc, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return created.GetUID()
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// network counts a controller's requests, and can be cut.
type network struct {
	mu     sync.Mutex
	counts map[string]int
	cut    atomic.Bool
}

func (n *network) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if n.cut.Load() {
			return nil, errors.New("the network is cut")
		}
		if r.URL.Query().Get("watch") == "" && strings.Contains(r.URL.Path, "/namespaces/") {
			parts := strings.Split(r.URL.Path, "/")
			if parts[len(parts)-2] == "configmaps" || parts[len(parts)-2] == "secrets" || r.Method == http.MethodPost {
				n.mu.Lock()
				n.counts[r.Method]++
				n.mu.Unlock()
			}
		}
		return next.RoundTrip(r)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (n *network) take() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	counts := n.counts
	n.counts = map[string]int{}
	return counts
}

// controller is one that serves StateService over gRPC.
type controller struct {
	statev1.StateServiceClient
	store    *state.Store
	network  *network
	log      *buffer
	accounts atomic.Int32 // how often it was told of accounts
	stop     func()
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// backend is the store as a process has it.
type backend struct {
	*state.Store
	service *service.Service
}

func (b backend) Register(registrar grpc.ServiceRegistrar) { service.Register(registrar, b.service) }

func (s *site) controller() *controller {
	s.Helper()
	c := &controller{network: &network{counts: map[string]int{}}, log: &buffer{}}
	// Its rights are not those of the namespace, which a test deletes.
	config := rbactest.New(s.T, s.config, "controller", rbactest.Where{Own: "default"}).REST()
	config.Wrap(c.network.wrap)
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	bmcs, err := dynamic.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c.store, err = state.New(state.Config{
		Core: core, Metadata: objects, Objects: bmcs, Namespaces: []string{s.namespace}, Log: log,
		AccountsChanged: func(bmc registry.Ref) {
			if bmc == registry.RefOf(s.ref) {
				c.accounts.Add(1)
			}
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	connection, stop := servertest.Start(s.T, backend{c.store, service.New(c.store, audit.New(log, nil))}, log, prometheus.NewRegistry())
	c.StateServiceClient, c.stop = statev1.NewStateServiceClient(connection), stop
	s.Cleanup(func() {
		stop()
		if strings.Contains(c.log.String(), password) {
			s.Errorf("the log has a password:\n%s", c.log)
		}
	})
	eventually(s.T, "filled cache", c.store.Ready)
	return c
}

func event(id, message string) *statev1.Event {
	return &statev1.Event{
		Id: id, Time: timestamppb.New(time.Unix(1, 0)), Message: message,
		Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_LOGIN,
	}
}

func (s *site) append(c *controller, events ...*statev1.Event) string {
	s.Helper()
	response, err := c.AppendEvents(s.Context(), &statev1.AppendEventsRequest{Bmc: s.ref, Events: events})
	if err != nil {
		s.Fatal(err)
	}
	return response.GetRevision()
}

// list returns the sequences and ids of the log.
func (s *site) list(c *controller, after uint64) (entries []string, revision string) {
	s.Helper()
	response, err := c.ListEvents(s.Context(), &statev1.ListEventsRequest{Bmc: s.ref, AfterSequence: after})
	if err != nil {
		s.Fatal(err)
	}
	for _, event := range response.GetEvents() {
		entries = append(entries, fmt.Sprint(event.GetSequence(), " ", event.GetId()))
	}
	return entries, response.GetRevision()
}

func (s *site) wantList(c *controller, want ...string) (revision string) {
	s.Helper()
	got, revision := s.list(c, 0)
	if d := cmp.Diff(want, got); d != "" {
		s.Errorf("log (-want +got):\n%s", d)
	}
	return revision
}

func (s *site) configMap() *corev1.ConfigMap {
	s.Helper()
	object, err := s.core.ConfigMaps(s.namespace).Get(s.Context(), bmcName+"-bmc-state", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return object
}

func wantReason(t *testing.T, err error, want errorsv1.Reason) {
	t.Helper()
	if got := grpcstatus.ReasonOf(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	empty := s.wantList(c)
	first := s.append(c, event("a", "one"), event("b", "two"))
	if again := s.append(c, event("b", "two again"), event("a", "one again")); again != first {
		t.Errorf("entries that were there made revision %s of %s", again, first)
	}
	s.append(c, event("b", "two again"), event("c", "three"))
	revision := s.wantList(c, "1 a", "2 b", "3 c")
	if got, _ := s.list(c, 2); !slices.Equal(got, []string{"3 c"}) {
		t.Errorf("after 2: %v", got)
	}
	if got, _ := s.list(c, 1<<63); got != nil {
		t.Errorf("after the end: %v", got)
	}

	// The BMC owns the ConfigMap, which so goes with it.
	bmc, err := s.bmcs.Get(t.Context(), bmcName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []metav1.OwnerReference{{APIVersion: "bmc.kubevirt.io/v1beta1", Kind: "VirtualMachineBMC", Name: bmcName, UID: bmc.GetUID()}}
	object := s.configMap()
	if d := cmp.Diff(want, object.OwnerReferences); d != "" {
		t.Errorf("owners (-want +got):\n%s", d)
	}
	if object.Labels[state.LabelContent] != "state" || strings.Count(object.Data["events"], "\n") != 3 {
		t.Errorf("ConfigMap has labels %v and entries\n%s", object.Labels, object.Data["events"])
	}

	// Clear, if nothing has come in between.
	_, err = c.ClearEvents(t.Context(), &statev1.ClearEventsRequest{Bmc: s.ref, Revision: first})
	wantReason(t, err, errorsv1.Reason_REASON_STALE_REVISION)
	cleared, err := c.ClearEvents(t.Context(), &statev1.ClearEventsRequest{Bmc: s.ref, Revision: revision})
	if err != nil || cleared.GetRevision() != empty {
		t.Errorf("clear: %v, %v", cleared, err)
	}
	s.wantList(c)
	if _, err := c.ClearEvents(t.Context(), &statev1.ClearEventsRequest{Bmc: s.ref}); err != nil {
		t.Errorf("clear again: %v", err)
	}
	// Sequences go on.
	s.append(c, event("a", "one"))
	s.wantList(c, "4 a")

	_, err = c.ListEvents(t.Context(), &statev1.ListEventsRequest{Bmc: &referencev1.BMCReference{Namespace: s.namespace, Name: "nobody"}})
	wantReason(t, err, errorsv1.Reason_REASON_BMC_NOT_FOUND)
	_, err = c.AppendEvents(t.Context(), &statev1.AppendEventsRequest{Bmc: &referencev1.BMCReference{Namespace: s.namespace, Name: "nobody"}, Events: []*statev1.Event{event("a", "one")}})
	wantReason(t, err, errorsv1.Reason_REASON_BMC_NOT_FOUND)
}

// What callers change is told in Events of the BMC, those alike in one.
func TestStateService_tellsEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	events, err := bmcresource.NewEvents(s.config, "test-controller", c.store.UID)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- events.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	log := slog.New(slog.DiscardHandler)
	connection, _ := servertest.Start(t, backend{c.store, service.New(c.store, audit.New(log, events))}, log, prometheus.NewRegistry())
	client := statev1.NewStateServiceClient(connection)
	for range 2 {
		if _, err := client.ClearEvents(t.Context(), &statev1.ClearEventsRequest{Bmc: s.ref}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "Event of both", func() bool {
		list, err := s.core.Events(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 1 && list.Items[0].Reason == "ClearEvents" && list.Items[0].Count == 2 &&
			list.Items[0].InvolvedObject.Name == bmcName && list.Items[0].Source.Component == "test-controller"
	})
}

// Entries that come at about the same time are written together, and what was
// read once is not read again.
func TestEvents_requestsToTheAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	s.wantList(c)
	if got := c.network.take(); len(got) > 0 {
		t.Errorf("reading a log that is not there took %v", got)
	}
	var group sync.WaitGroup
	for n := range 100 {
		group.Go(func() { s.append(c, event(fmt.Sprint(n), "one of many")) })
	}
	group.Wait()
	got := c.network.take()
	if writes := got[http.MethodPost] + got[http.MethodPut]; writes < 1 || writes > 5 {
		t.Errorf("100 entries took %v", got)
	}
	for range 20 {
		if got, _ := s.list(c, 0); len(got) != 100 {
			t.Fatalf("%d entries", len(got))
		}
	}
	if got := c.network.take(); got[http.MethodGet] > 1 {
		t.Errorf("reading a log 20 times took %v", got)
	}
}

func TestEvents_sizeLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	costly := strings.Repeat("\x01", 1024)
	for n := range 6 {
		var events []*statev1.Event
		for m := range 200 {
			events = append(events, event(fmt.Sprint(n, "-", m), costly))
		}
		s.append(c, events...)
	}
	got, _ := s.list(c, 0)
	if len(got) < 50 || len(got) > record.Capacity || got[len(got)-1] != "1200 5-199" {
		t.Errorf("%d entries, the last is %q", len(got), got[len(got)-1])
	}
	s.append(c, event("last", "one"))
}

// Two controllers write the same log at the same time, and watchers of each get
// all of it, in order.
func TestEvents_twoControllers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.controller(), s.controller()
	s.append(a, event("before", "not to be seen"))
	var watches []grpc.ServerStreamingClient[statev1.WatchEventsResponse]
	for _, c := range []*controller{a, b} {
		eventually(t, "entry in both", func() bool { got, _ := s.list(c, 0); return len(got) == 1 })
		watch, err := c.WatchEvents(t.Context(), &statev1.WatchEventsRequest{Bmc: s.ref})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Header(); err != nil {
			t.Fatal(err)
		}
		watches = append(watches, watch)
	}
	const each = 60
	var group sync.WaitGroup
	for name, c := range map[string]*controller{"a": a, "b": b} {
		for n := range each {
			group.Go(func() { s.append(c, event(fmt.Sprint(name, n), "one of many")) })
		}
	}
	group.Wait()
	s.append(a, event("last", "one")) // a has to see what b wrote.
	var want []string
	eventually(t, "whole log", func() bool { want, _ = s.list(a, 1); return len(want) == 2*each+1 })
	for i, watch := range watches {
		var got []string
		for range want {
			response, err := watch.Recv()
			if err != nil {
				t.Fatalf("watch %d ended after %d entries: %v", i, len(got), err)
			}
			got = append(got, fmt.Sprint(response.GetEvent().GetSequence(), " ", response.GetEvent().GetId()))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("watch %d (-log +watch):\n%s", i, d)
		}
	}
}

func TestWatch_whoReadsNothing_isEnded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	lazy, err := c.store.Watch(t.Context(), registry.RefOf(s.ref))
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	for n := range 5 {
		var events []*statev1.Event
		for m := range 256 {
			events = append(events, event(fmt.Sprint(n, "-", m), "one"))
		}
		s.append(c, events...)
	}
	got := 0
	for range lazy.Events() {
		got++
	}
	wantReason(t, lazy.Err(), errorsv1.Reason_REASON_LIMIT_REACHED)
	if got < record.Capacity {
		t.Errorf("%d entries came before", got)
	}
}

func TestEvents_editedByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	s.append(c, event("a", "one"), event("b", "two"))
	object := s.configMap()
	object.Data["events"] = "oops\n" + object.Data["events"] + "{\"sequence\":"
	object.Data["next"] = "soon"
	object.Data["mine"] = "kept"
	object.Annotations = map[string]string{"note": "kept"}
	if _, err := s.core.ConfigMaps(s.namespace).Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.append(c, event("c", "three"))
	s.wantList(c, "1 a", "2 b", "3 c")
	object = s.configMap()
	for _, text := range []string{"oops\n", `{"sequence":`} {
		if !strings.Contains(object.Data["unreadable"], text) {
			t.Errorf("%q is lost; kept is %q", text, object.Data["unreadable"])
		}
	}
	if object.Data["mine"] != "kept" || object.Annotations["note"] != "kept" {
		t.Errorf("what others put there is lost: %v, %v", object.Data["mine"], object.Annotations)
	}
	if !strings.Contains(c.log.String(), "can't be read") {
		t.Error("nothing was said of lines that can't be read")
	}
}

// A ConfigMap that is there already and not ours is left alone.
func TestEvents_foreignConfigMap(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bmcName + "-bmc-state"}, Data: map[string]string{"events": "mine"}}
	if _, err := s.core.ConfigMaps(s.namespace).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.AppendEvents(t.Context(), &statev1.AppendEventsRequest{Bmc: s.ref, Events: []*statev1.Event{event("a", "one")}})
	wantReason(t, err, errorsv1.Reason_REASON_INTERNAL)
	if got := s.configMap(); got.Data["events"] != "mine" || len(got.OwnerReferences) > 0 {
		t.Errorf("the ConfigMap became %v", got)
	}
}

// Somebody deletes the ConfigMap again and again while entries are added.
func TestEvents_deletedInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	watch, err := c.store.Watch(t.Context(), registry.RefOf(s.ref))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	for n := range 6 {
		s.append(c, event(fmt.Sprint(n), "one"))
		if got := <-watch.Events(); got.GetId() != fmt.Sprint(n) {
			t.Errorf("the watch has %v after the log was deleted", got)
		}
		if err := s.core.ConfigMaps(s.namespace).Delete(t.Context(), bmcName+"-bmc-state", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			eventually(t, "empty log", func() bool { got, _ := s.list(c, 0); return len(got) == 0 })
		}
	}
}

// A BMC that is created anew has nothing of the earlier one's.
func TestBMC_deletedAndCreatedAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	s.append(c, event("a", "one"))
	create := &statev1.CreateAccountRequest{Bmc: s.ref, Username: "web", Password: password, Role: registryv1.Role_ROLE_OPERATOR}
	if _, err := c.CreateAccount(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	watch, err := c.WatchEvents(t.Context(), &statev1.WatchEventsRequest{Bmc: s.ref})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Header(); err != nil {
		t.Fatal(err)
	}
	if err := s.bmcs.Delete(t.Context(), bmcName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = watch.Recv()
	wantReason(t, err, errorsv1.Reason_REASON_BMC_NOT_FOUND)
	_, err = c.ListAccounts(t.Context(), &statev1.ListAccountsRequest{Bmc: s.ref})
	wantReason(t, err, errorsv1.Reason_REASON_BMC_NOT_FOUND)

	// At level api, without a garbage collector, the old objects are still there.
	uid := s.createBMC()
	eventually(t, "new BMC", func() bool {
		_, err := c.ListEvents(t.Context(), &statev1.ListEventsRequest{Bmc: s.ref})
		return err == nil
	})
	s.wantList(c)
	accounts, err := c.ListAccounts(t.Context(), &statev1.ListAccountsRequest{Bmc: s.ref})
	if err != nil || len(accounts.GetAccounts()) > 0 {
		t.Errorf("the new BMC has accounts %v, %v", accounts, err)
	}
	s.append(c, event("b", "two"))
	s.wantList(c, "1 b")
	if owners := s.configMap().OwnerReferences; len(owners) != 1 || owners[0].UID != uid {
		t.Errorf("the log belongs to %v", owners)
	}
	if _, err := c.CreateAccount(t.Context(), create); err != nil {
		t.Error(err)
	}
}

// A Secret of an earlier BMC that is still there, here since somebody holds it, makes
// way before the garbage collector comes, and its accounts are not the new BMC's.
func TestAccounts_ofAnEarlierBMC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	create := func(username string) error {
		_, err := c.CreateAccount(s.Context(), &statev1.CreateAccountRequest{Bmc: s.ref, Username: username, Password: password, Role: registryv1.Role_ROLE_OPERATOR})
		return err
	}
	list := func() (names []string, err error) {
		response, err := c.ListAccounts(s.Context(), &statev1.ListAccountsRequest{Bmc: s.ref})
		for _, account := range response.GetAccounts() {
			names = append(names, account.GetUsername())
		}
		return names, err
	}
	if err := create("earlier"); err != nil {
		t.Fatal(err)
	}
	const name = bmcName + "-bmc-accounts"
	secrets := s.core.Secrets(s.namespace)
	hold := func(ctx context.Context, finalizers string) error {
		_, err := secrets.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := hold(t.Context(), `["bmc.kubevirt.io/test"]`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hold(context.Background(), "null") }) // The namespace could not go.
	held, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.bmcs.Delete(t.Context(), bmcName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	uid := s.createBMC()
	eventually(t, "new BMC without accounts", func() bool {
		accounts, err := list()
		return err == nil && len(accounts) == 0 && c.store.UID(s.namespace, bmcName) == uid
	})

	c.network.take()
	created := make(chan error, 1)
	go func() { created <- create("web") }()
	eventually(t, "deletion", func() bool { return c.network.take()[http.MethodDelete] > 0 })
	if err := hold(t.Context(), "null"); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	accounts, err := list()
	if err != nil || !slices.Equal(accounts, []string{"web"}) {
		t.Errorf("the new BMC has accounts %v, %v", accounts, err)
	}
	secret, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || secret.UID == held.UID || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != uid {
		t.Errorf("the Secret is %s of %v, %v", secret.UID, secret.OwnerReferences, err)
	}
}

// A namespace that is being deleted takes no ConfigMaps.
func TestEvents_namespaceIsGoing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	if err := s.core.Namespaces().Delete(t.Context(), s.namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.AppendEvents(t.Context(), &statev1.AppendEventsRequest{Bmc: s.ref, Events: []*statev1.Event{event("a", "one")}})
	wantReason(t, err, errorsv1.Reason_REASON_BMC_NOT_FOUND)
}

func TestEvents_noAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	c.network.cut.Store(true)
	_, err := c.AppendEvents(t.Context(), &statev1.AppendEventsRequest{Bmc: s.ref, Events: []*statev1.Event{event("a", "one")}})
	wantReason(t, err, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE)
	c.network.cut.Store(false)
	s.append(c, event("a", "one"))
	c.network.cut.Store(true)
	// What it knows it still tells.
	s.wantList(c, "1 a")
}

func TestSubscriptions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	wanted := &statev1.Subscription{
		Id: "ignored", Destination: "https://192.0.2.1/events", Context: "rack 7",
		Kinds:            []statev1.EventKind{statev1.EventKind_EVENT_KIND_POWER, statev1.EventKind_EVENT_KIND_BMC},
		RegistryPrefixes: []string{"ResourceEvent"}, ResourceTypes: []string{"ComputerSystem"},
		MessageIds: []string{"ResourceEvent.1.4.ResourcePoweredOn"}, OriginResources: []string{"/redfish/v1/Systems/1"}, SubordinateResources: true,
		HttpHeaders: []*statev1.HTTPHeader{{Name: "Authorization", Value: "Bearer of-the-receiver"}},
		RetryPolicy: statev1.DeliveryRetryPolicy_DELIVERY_RETRY_POLICY_SUSPEND_RETRIES, VerifyCertificate: true, Owner: "admin",
	}
	created, err := c.CreateSubscription(t.Context(), &statev1.CreateSubscriptionRequest{Bmc: s.ref, Subscription: wanted})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(wanted, created.GetSubscription(), protocmp.Transform(), protocmp.IgnoreFields(wanted, "id")); d != "" || created.GetSubscription().GetId() == "ignored" {
		t.Errorf("created (-want +got):\n%s", d)
	}
	revision := s.wantList(c)
	s.append(c, event("a", "one"))
	list, err := c.ListSubscriptions(t.Context(), &statev1.ListSubscriptionsRequest{Bmc: s.ref})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]*statev1.Subscription{created.GetSubscription()}, list.GetSubscriptions(), protocmp.Transform()); d != "" {
		t.Errorf("subscriptions (-want +got):\n%s", d)
	}
	if raw := fmt.Sprint(s.configMap().Data); strings.Contains(raw, "of-the-receiver") {
		t.Errorf("a header's value is in the ConfigMap: %s", raw)
	}
	// Another controller has it too, and what a change leaves out stays.
	other := s.controller()
	want := proto.CloneOf(created.GetSubscription())
	want.Context, want.HttpHeaders, want.VerifyCertificate = "rack 8", []*statev1.HTTPHeader{{Name: "X-Token", Value: "new"}}, false
	changed, err := other.UpdateSubscription(t.Context(), &statev1.UpdateSubscriptionRequest{
		Bmc: s.ref, Id: want.GetId(), Context: new("rack 8"), VerifyCertificate: new(false), HttpHeaders: &statev1.HTTPHeaders{Headers: want.GetHttpHeaders()},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, changed.GetSubscription(), protocmp.Transform()); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	_, err = c.UpdateSubscription(t.Context(), &statev1.UpdateSubscriptionRequest{Bmc: s.ref, Id: "another"})
	wantReason(t, err, errorsv1.Reason_REASON_ENTRY_NOT_FOUND)
	for range state.MaxSubscriptions - 1 {
		costly := &statev1.Subscription{Destination: "http://a/" + strings.Repeat("\x01", 2039), Context: strings.Repeat("\x01", 256)}
		for range 16 {
			costly.HttpHeaders = append(costly.HttpHeaders, &statev1.HTTPHeader{Name: strings.Repeat("a", 64), Value: strings.Repeat("\"", 1024)})
		}
		if _, err := c.CreateSubscription(t.Context(), &statev1.CreateSubscriptionRequest{Bmc: s.ref, Subscription: costly}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.CreateSubscription(t.Context(), &statev1.CreateSubscriptionRequest{Bmc: s.ref, Subscription: &statev1.Subscription{Destination: "http://a/"}})
	wantReason(t, err, errorsv1.Reason_REASON_LIMIT_REACHED)
	remove := &statev1.DeleteSubscriptionRequest{Bmc: s.ref, Id: created.GetSubscription().GetId()}
	if _, err := c.DeleteSubscription(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	_, err = c.DeleteSubscription(t.Context(), remove)
	wantReason(t, err, errorsv1.Reason_REASON_ENTRY_NOT_FOUND)
	if again := s.wantList(c, "1 a"); again == revision {
		t.Error("the log has the revision of an empty one")
	}
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, other := s.controller(), s.controller()
	create := func(c *controller, username, password string) error {
		_, err := c.CreateAccount(s.Context(), &statev1.CreateAccountRequest{Bmc: s.ref, Username: username, Password: password, Role: registryv1.Role_ROLE_OPERATOR})
		return err
	}
	list := func(c *controller) (names []string) {
		response, err := c.ListAccounts(s.Context(), &statev1.ListAccountsRequest{Bmc: s.ref})
		if err != nil {
			s.Fatal(err)
		}
		for _, account := range response.GetAccounts() {
			names = append(names, fmt.Sprint(account.GetUsername(), " ", account.GetRole(), " ", account.GetDisabled()))
		}
		return names
	}
	if got := list(c); got != nil {
		t.Errorf("accounts %v", got)
	}
	long := strings.Repeat("x", 21)
	for username, secret := range map[string]string{"web": password, "ünï @": password, "long": password + long, "with-a-name-of-many": password} {
		if err := create(c, username, secret); err != nil {
			t.Fatal(err)
		}
	}
	wantReason(t, create(c, "web", password), errorsv1.Reason_REASON_ALREADY_EXISTS)
	// Those of the BMC's Secret, over Redfish and IPMI, with every controller.
	login := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "login", Namespace: s.namespace},
		StringData: map[string]string{v1beta1.SecretKeyUsername: "owner", v1beta1.SecretKeyIPMIUsername: "ipmi-owner"},
	}
	if _, err := s.core.Secrets(s.namespace).Create(t.Context(), login, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"owner", "ipmi-owner"} {
		wantReason(t, create(c, name, password), errorsv1.Reason_REASON_ALREADY_EXISTS)
		wantReason(t, create(other, name, password), errorsv1.Reason_REASON_ALREADY_EXISTS)
	}
	wantReason(t, create(c, "a:b", password), errorsv1.Reason_REASON_INVALID_REQUEST)
	wantReason(t, create(c, "a\nb", password), errorsv1.Reason_REASON_INVALID_REQUEST)
	wantReason(t, create(c, "short", "1234567"), errorsv1.Reason_REASON_INVALID_REQUEST)
	eventually(t, "accounts in the other controller", func() bool {
		return slices.Equal(list(other), []string{"long ROLE_OPERATOR false", "web ROLE_OPERATOR false", "with-a-name-of-many ROLE_OPERATOR false", "ünï @ ROLE_OPERATOR false"})
	})
	if c.accounts.Load() == 0 || other.accounts.Load() == 0 {
		t.Error("nobody was told that there are accounts")
	}

	// What frontends get: over IPMI what it can carry.
	got, err := c.store.Accounts(t.Context(), registry.RefOf(s.ref))
	if err != nil {
		t.Fatal(err)
	}
	both := []registryv1.Protocol{registryv1.Protocol_PROTOCOL_REDFISH, registryv1.Protocol_PROTOCOL_IPMI}
	operator := func(username, password string, protocols []registryv1.Protocol) *registryv1.Account {
		return &registryv1.Account{Username: username, Password: password, Role: registryv1.Role_ROLE_OPERATOR, Protocols: protocols}
	}
	want := []*registryv1.Account{
		operator("long", password+long, both[:1]), operator("web", password, both),
		operator("with-a-name-of-many", password, both[:1]), operator("ünï @", password, both),
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("accounts for frontends (-want +got):\n%s", d)
	}

	// Changes.
	update := &statev1.UpdateAccountRequest{Bmc: s.ref, Username: "web", Password: ptr("another-secret"), Role: ptr(registryv1.Role_ROLE_READ_ONLY), Disabled: ptr(true)}
	updated, err := other.UpdateAccount(t.Context(), update)
	if err != nil || updated.GetAccount().GetRole() != registryv1.Role_ROLE_READ_ONLY || !updated.GetAccount().GetDisabled() {
		t.Errorf("update: %v, %v", updated, err)
	}
	eventually(t, "account without login", func() bool {
		got, err := c.store.Accounts(t.Context(), registry.RefOf(s.ref))
		return err == nil && len(got) == 3
	})
	if _, err := c.UpdateAccount(t.Context(), &statev1.UpdateAccountRequest{Bmc: s.ref, Username: "web", Disabled: ptr(false)}); err != nil {
		t.Fatal(err)
	}
	got, err = c.store.Accounts(t.Context(), registry.RefOf(s.ref))
	if err != nil || len(got) != 4 || got[1].GetPassword() != "another-secret" || got[1].GetRole() != registryv1.Role_ROLE_READ_ONLY {
		t.Errorf("after the updates: %v, %v", got, err)
	}
	// A password that has to be changed: over Redfish alone, until it is.
	required, err := c.UpdateAccount(t.Context(), &statev1.UpdateAccountRequest{Bmc: s.ref, Username: "web", PasswordChangeRequired: ptr(true)})
	if err != nil || !required.GetAccount().GetPasswordChangeRequired() || !slices.Equal(required.GetAccount().GetProtocols(), both) {
		t.Errorf("a password to be changed: %v, %v", required, err)
	}
	got, err = c.store.Accounts(t.Context(), registry.RefOf(s.ref))
	if err != nil || len(got) != 4 || !got[1].GetPasswordChangeRequired() || !slices.Equal(got[1].GetProtocols(), both[:1]) {
		t.Errorf("with a password to be changed: %v, %v", got, err)
	}
	changed, err := c.UpdateAccount(t.Context(), &statev1.UpdateAccountRequest{Bmc: s.ref, Username: "web", Password: ptr("another-secret")})
	if err != nil || changed.GetAccount().GetPasswordChangeRequired() {
		t.Errorf("a changed password: %v, %v", changed, err)
	}
	update.Username = "nobody"
	_, err = c.UpdateAccount(t.Context(), update)
	wantReason(t, err, errorsv1.Reason_REASON_ENTRY_NOT_FOUND)

	// The Secret.
	secret, err := s.core.Secrets(s.namespace).Get(t.Context(), bmcName+"-bmc-accounts", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if secret.Type != "bmc.kubevirt.io/accounts" || len(secret.OwnerReferences) != 1 || secret.Labels[state.LabelContent] != "accounts" {
		t.Errorf("the Secret is %v of %v with %v", secret.Type, secret.OwnerReferences, secret.Labels)
	}
	// An account that was spoilt by hand does not spoil the others.
	secret.Data["776562"] = []byte(`{"username":"web"`) // web
	secret.Data["note"] = []byte("mine")
	if _, err := s.core.Secrets(s.namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "accounts without the spoilt one", func() bool { return len(list(c)) == 3 })
	_, err = c.UpdateAccount(t.Context(), &statev1.UpdateAccountRequest{Bmc: s.ref, Username: "web", Disabled: ptr(true)})
	wantReason(t, err, errorsv1.Reason_REASON_INTERNAL)
	if _, err := c.DeleteAccount(t.Context(), &statev1.DeleteAccountRequest{Bmc: s.ref, Username: "web"}); err != nil {
		t.Error(err)
	}
	_, err = c.DeleteAccount(t.Context(), &statev1.DeleteAccountRequest{Bmc: s.ref, Username: "web"})
	wantReason(t, err, errorsv1.Reason_REASON_ENTRY_NOT_FOUND)

	// Two controllers at the same time: one wins.
	var won atomic.Int32
	var group sync.WaitGroup
	for n := range 10 {
		for _, c := range []*controller{c, other} {
			group.Go(func() {
				switch err := create(c, fmt.Sprint("race-", n), password); grpcstatus.ReasonOf(err) {
				case errorsv1.Reason_REASON_UNSPECIFIED:
					won.Add(1)
				case errorsv1.Reason_REASON_ALREADY_EXISTS:
				default:
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	if won.Load() != 10 {
		t.Errorf("10 accounts were created %d times", won.Load())
	}
	if err := create(c, "fourteenth", password); err != nil {
		t.Error(err)
	}
	wantReason(t, create(c, "one-too-many", password), errorsv1.Reason_REASON_LIMIT_REACHED)
}

func ptr[T any](v T) *T { return &v }

// A controller that is told to stop writes what it has accepted.
func TestRun_endsWithAllWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller()
	s.append(c, event("first", "one"))
	var group sync.WaitGroup
	for n := range 10 {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := c.AppendEvents(ctx, &statev1.AppendEventsRequest{Bmc: s.ref, Events: []*statev1.Event{event(fmt.Sprint(n), "one")}})
			if err == nil {
				t.Error("an entry was written before its time")
			}
		})
	}
	group.Wait()
	c.stop()
	s.wantLines(11)
}

func (s *site) wantLines(n int) {
	s.Helper()
	if got := strings.Count(s.configMap().Data["events"], "\n"); got != n {
		s.Errorf("%d entries are kept, want %d", got, n)
	}
}
