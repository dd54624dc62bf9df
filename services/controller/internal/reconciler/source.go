// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kubevirtbmc.dev/api/crds"
	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/logkey"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/certificate"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

const (
	// EventSource is the component that events of the controller come from.
	EventSource = "virtbmc-controller"
	// leaseName is the Lease of the leader.
	leaseName = "controller.bmc.kubevirt.io"
	// A leader that ends gives its Lease back; after one that dies, or can't reach
	// the API server, another leads leaseTime later.
	leaseTime  = 10 * time.Second
	renewTime  = 7 * time.Second
	retryLease = time.Second

	// DefaultDiscoveryInterval is how often the controller looks for KubeVirt's
	// and CDI's APIs.
	DefaultDiscoveryInterval = 10 * time.Second

	// Workers, and the requests a second that they may send.
	bmcWorkers      = 8
	bmcRequests     = 200
	routingWorkers  = 32
	routingRequests = 1000
)

// Accounts knows accounts of BMCs beyond those of their Secrets.
type Accounts interface {
	Accounts(ctx context.Context, bmc registry.Ref) ([]*registryv1.Account, error)
}

// Webhooks are the admission webhooks of the controllers.
type Webhooks interface {
	// Problem is why the API server does not call them; empty: it does. It may not
	// be known yet.
	Problem() (problem string, known bool)
	// Lead works while this controller leads, until the context ends. It calls
	// changed after each change of the problem.
	Lead(ctx context.Context, changed func()) error
}

// Config of a source.
type Config struct {
	// REST is how to reach the cluster.
	REST *rest.Config
	// Log and Metrics are needed.
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// Namespace is the controller's own: that of its Lease and of the shared
	// frontends' pods.
	Namespace string
	// Namespaces whose BMCs are served; empty: all.
	Namespaces []string
	// Ports that frontends serve BMCs at.
	Ports port.Range
	// Defaults are what BMCs get that do not say otherwise.
	Defaults Defaults
	// Agents are what dedicated agents have in common.
	Agents agent.Options
	// Provision selects the machines that are given BMCs.
	Provision Provision
	// Certificates issues those of BMCs; nil: frontends serve their own.
	Certificates Certificates
	// ClusterDomain is the cluster's DNS domain.
	ClusterDomain string
	// DiscoveryInterval is how often others' APIs are looked for; 0:
	// DefaultDiscoveryInterval.
	DiscoveryInterval time.Duration
	// RouteTime is what the cluster's nodes need to learn of a new endpoint, which is
	// how long a BMC that could not be reached is not Ready yet when it is served; 0:
	// registry.DefaultHandOverTime.
	RouteTime time.Duration
	// LeftTime is how often it is looked for agents of earlier versions of BMCs that have
	// been taken over; 0: every 10 minutes.
	LeftTime time.Duration
	// OpenTime is how long a new leader waits for one more of the BMCs to be looked at
	// before it tells frontends of those that it knows; 0: DefaultOpenTime.
	OpenTime time.Duration
	// Webhooks are the admission webhooks; nil: there are none.
	Webhooks Webhooks
	// OnDefinition is told, before the controller begins, why it does not; empty: it
	// begins. Nil: nobody is.
	OnDefinition func(problem string)
}

// Source keeps the registry, and the cluster's objects, as VirtualMachineBMCs say.
type Source struct {
	config   Config
	bmcs     queue
	routes   queue
	machines queue
	start    *start
	moves    *moves
	taken    takenSlices
	registry *registry.Registry
	ports    *ports
	manager  manager.Manager
	apis     *apis
	rights   *rights
	expiries *expiries
	// definition is the cluster's of VirtualMachineBMCs.
	definition *definition
	// agents are the objects of dedicated agents; nil: there are none.
	agents *optional
	// removeLeft removes what earlier versions have left.
	removeLeft func(context.Context, func(context.Context) ([]*v1beta1.VirtualMachineBMC, error))
	// labeled are the namespaces whose labels select machines; nil: none do.
	labeled *optional
	// draining keeps an older look at a pod from counting after a newer one.
	draining sync.Mutex
	reissue  chan struct{} // holds one token when there is another CA
}

// New makes a source.
func New(config Config) (*Source, error) {
	if config.REST == nil || config.Log == nil || config.Metrics == nil || config.Namespace == "" {
		return nil, errors.New("make reconcilers: cluster, log, metrics and namespace are needed")
	}
	if config.DiscoveryInterval <= 0 {
		config.DiscoveryInterval = DefaultDiscoveryInterval
	}
	if config.LeftTime <= 0 {
		config.LeftTime = leftTime
	}
	if config.OpenTime <= 0 {
		config.OpenTime = DefaultOpenTime
	}
	if config.RouteTime <= 0 {
		config.RouteTime = registry.DefaultHandOverTime
	}
	s := &Source{config: config, start: newStart(), ports: newPorts(config.Ports), reissue: make(chan struct{}, 1)}
	if config.Certificates != nil {
		config.Certificates.OnChange(func() {
			select {
			case s.reissue <- struct{}{}:
			default:
			}
		})
	}
	s.moves = newMoves(&s.bmcs)
	var err error
	if s.apis, err = newAPIs(config.Metrics); err != nil {
		return nil, err
	}
	if s.rights, err = newRights(config.Metrics); err != nil {
		return nil, err
	}
	if s.expiries, err = newExpiries(config.Metrics); err != nil {
		return nil, err
	}
	if s.definition, err = newDefinition(config.Metrics, crds.VirtualMachineBMC); err != nil {
		return nil, err
	}
	for transport, allocator := range map[string]*port.Allocator[portOwner]{"udp": s.ports.udp, "tcp": s.ports.tcp} {
		if err := config.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vbmc_controller_ports_free", Help: "Ports that no BMC has, by transport.", ConstLabels: prometheus.Labels{"transport": transport},
		}, func() float64 { return float64(allocator.Free()) })); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// StatusChanged implements registry.Observer.
func (s *Source) StatusChanged(ref registry.Ref) {
	s.moves.changed(ref)
	s.routes.add(ref)
	s.bmcs.add(ref)
}

// ReplicasChanged implements registry.Observer.
func (s *Source) ReplicasChanged(protocol registryv1.Protocol) {
	if s.registry == nil {
		return
	}
	for _, replica := range s.registry.Replicas(protocol) {
		s.drain(context.Background(), replica.ReplicaID)
	}
}

// AccountsChanged says that a BMC's further accounts may have changed.
func (s *Source) AccountsChanged(ref registry.Ref) { s.bmcs.add(ref) }

// AgentOf returns the BMCs whose agent an identity is or is to become. It is to be
// called while the registry runs.
func (s *Source) AgentOf(ctx context.Context, identity string) []registry.Ref {
	namespace, machine, ok := agent.MachineOf(identity)
	if !ok {
		return nil
	}
	var list v1beta1.VirtualMachineBMCList
	if err := s.manager.GetCache().List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{indexMachine: machine}); err != nil {
		s.config.Log.ErrorContext(ctx, "can't list BMCs", logkey.Error, err.Error())
		return nil
	}
	var refs []registry.Ref
	for i := range list.Items {
		bmc := &list.Items[i]
		// One that is to get the shared frontends has its agent until those serve it.
		inUse := bmc.Status.Frontend != nil && bmc.Status.Frontend.Mode == v1beta1.FrontendModeDedicated
		if inUse || wantedOf(bmc, s.config.Defaults).target == v1beta1.FrontendModeDedicated {
			refs = append(refs, registry.Ref{Namespace: namespace, Name: bmc.Name})
		}
	}
	return refs
}

// Run works until the context ends, as the leader of the controllers or while
// another is. The leader runs the registry. An error ends the process, as when
// it is no longer the leader. Nothing begins before the cluster's definition of
// VirtualMachineBMCs has what is written: until then another version may lead,
// which can work with it.
func (s *Source) Run(ctx context.Context, bmcs *registry.Registry, accounts Accounts) error {
	s.registry = bmcs
	if err := s.setupManager(); err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.setupDefinition(); err != nil {
		return err
	}
	group.Go(func() { s.definition.run(ctx) })
	select {
	case <-s.definition.fits:
	case <-ctx.Done():
		return nil
	}
	if err := s.setup(ctx, accounts); err != nil {
		return err
	}
	if err := s.manager.Start(ctx); err != nil {
		return fmt.Errorf("run controllers: %w", err)
	}
	return nil
}

// setupManager makes what runs the controllers.
func (s *Source) setupManager() error {
	log := logr.FromSlogHandler(s.config.Log.Handler())
	ctrllog.SetLogger(log)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	requests := rest.CopyConfig(s.config.REST)
	requests.QPS, requests.Burst = bmcRequests, 2*bmcRequests
	var err error
	s.manager, err = ctrl.NewManager(requests, ctrl.Options{
		Scheme: scheme, Logger: log,
		Cache:   s.cacheOptions(),
		Metrics: server.Options{BindAddress: "0"},
		// Two controllers of one process are for tests.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		// The others wait, with filled caches.
		LeaderElection: true, LeaderElectionID: leaseName, LeaderElectionNamespace: s.config.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(leaseTime), RenewDeadline: ptr.To(renewTime), RetryPeriod: ptr.To(retryLease),
	})
	if err != nil {
		return fmt.Errorf("make controllers: %w", err)
	}
	return nil
}

func (s *Source) setupDefinition() error {
	client, err := discovery.NewDiscoveryClientForConfig(s.config.REST)
	if err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	d := s.definition
	d.discovery, d.interval, d.log, d.tell = client, s.config.DiscoveryInterval, s.config.Log, s.config.OnDefinition
	d.served = s.apis.served
	d.events = s.manager.GetEventRecorder(EventSource)
	d.regarding = &corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: s.config.Namespace, Name: leaseName}
	return nil
}

// setup makes the controllers.
func (s *Source) setup(ctx context.Context, accounts Accounts) error {
	if err := s.setupAPIs(ctx); err != nil {
		return err
	}
	if err := s.setupRights(); err != nil {
		return err
	}
	if err := s.setupIndexes(ctx); err != nil {
		return err
	}
	if err := s.setupBMCs(ctx, accounts); err != nil {
		return err
	}
	if err := s.setupRouting(); err != nil {
		return err
	}
	if err := s.setupProvisioning(ctx); err != nil {
		return err
	}
	if s.config.Webhooks != nil {
		if err := s.manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
			return s.config.Webhooks.Lead(ctx, func() { s.addAll(ctx) })
		})); err != nil {
			return err
		}
	}
	return s.manager.Add(manager.RunnableFunc(s.lead))
}

func (s *Source) setupAPIs(ctx context.Context) error {
	requests := rest.CopyConfig(s.config.REST)
	client, err := discovery.NewDiscoveryClientForConfig(requests)
	if err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	s.apis.discovery, s.apis.log, s.apis.interval = client, s.config.Log, s.config.DiscoveryInterval
	s.apis.needCertManager = s.config.Certificates != nil && s.config.Certificates.Issuer() == certificate.CertManager
	s.apis.machines = func() (cache.Cache, error) {
		return cache.New(requests, cache.Options{
			DefaultNamespaces: s.namespaces(), DefaultTransform: s.machineTransform(), ReaderFailOnMissingInformer: true,
		})
	}
	s.apis.changed = func() {
		s.addAll(ctx)
		s.addMachines(ctx)
	}
	s.apis.machineChanged = func(namespace, name string) { s.machineChanged(ctx, namespace, name) }
	return s.manager.Add(s.apis)
}

func (s *Source) setupRights() error {
	reviews, err := typedauthorizationv1.NewForConfig(s.config.REST)
	if err != nil {
		return fmt.Errorf("make authorization client: %w", err)
	}
	s.rights.client = reviews.SelfSubjectAccessReviews()
	return nil
}

// scope is the namespace in which the controller has rights to what is in another;
// empty: it has them in all.
func (s *Source) scope(namespace string) string {
	if len(s.config.Namespaces) == 0 {
		return metav1.NamespaceAll
	}
	return namespace
}

// optional makes a cache of what a role lets the controller see.
func (s *Source) optional(ctx context.Context, of *role, namespaces []string, objects map[client.Object]cache.ByObject, seen func(client.Object)) (*optional, error) {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	o := &optional{
		role: of, rights: s.rights, namespaces: namespaces, objects: slices.Collect(maps.Keys(objects)), seen: seen,
		changed: func() { s.addAll(ctx) }, interval: s.config.DiscoveryInterval, log: s.config.Log, known: make(chan struct{}),
		fill: func(namespaces []string) (cache.Cache, error) {
			return cache.New(rest.CopyConfig(s.config.REST), cache.Options{
				Scheme: s.manager.GetScheme(), Mapper: s.manager.GetRESTMapper(),
				DefaultNamespaces: configOf(namespaces), ByObject: objects, ReaderFailOnMissingInformer: true,
			})
		},
	}
	return o, s.manager.Add(o)
}

func (s *Source) namespaces() map[string]cache.Config { return configOf(s.config.Namespaces) }

// configOf is the configuration of a cache of namespaces; none: of all.
func configOf(names []string) map[string]cache.Config {
	if len(names) == 0 {
		return nil
	}
	namespaces := map[string]cache.Config{}
	for _, name := range names {
		namespaces[name] = cache.Config{}
	}
	return namespaces
}

// hasBMC selects what belongs to a BMC.
func hasBMC() labels.Selector {
	has, err := labels.NewRequirement(v1beta1.LabelVirtualMachineBMCName, selection.Exists, nil)
	if err != nil {
		panic(err) // The key is a constant.
	}
	return labels.NewSelector().Add(*has)
}

// cacheOptions keep no more of the cluster than is looked at.
func (s *Source) cacheOptions() cache.Options {
	return cache.Options{
		DefaultNamespaces: s.namespaces(),
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Service{}: {Label: hasBMC()},
			// Those that Kubernetes makes of a selector have the Service's labels too.
			&discoveryv1.EndpointSlice{}: {Label: hasBMC()},
			// Those of the shared frontends.
			&corev1.Pod{}: {
				Namespaces: map[string]cache.Config{s.config.Namespace: {}},
				Transform:  podAddress,
			},
			metadataOf(corev1.SchemeGroupVersion.WithKind("Secret")): {Transform: nameOnly},
		},
	}
}

// Names of the caches' indexes.
const (
	// indexMachine finds BMCs by their VirtualMachine.
	indexMachine = "virtualMachine"
	// indexSecret finds BMCs by their Secret.
	indexSecret = "secret"
	// indexCertificate finds BMCs by the Secret with their certificate.
	indexCertificate = "certificate"
	// indexBMC finds what belongs to a BMC.
	indexBMC = "bmc"
)

func (s *Source) setupIndexes(ctx context.Context) error {
	indexer := s.manager.GetFieldIndexer()
	value := func(of func(*v1beta1.VirtualMachineBMC) string) client.IndexerFunc {
		return func(object client.Object) []string {
			if bmc, ok := object.(*v1beta1.VirtualMachineBMC); ok {
				return []string{of(bmc)}
			}
			return nil
		}
	}
	byLabel := func(object client.Object) []string {
		return []string{object.GetLabels()[v1beta1.LabelVirtualMachineBMCName]}
	}
	for _, index := range []struct {
		object client.Object
		name   string
		value  client.IndexerFunc
	}{
		{&v1beta1.VirtualMachineBMC{}, indexMachine, value((*v1beta1.VirtualMachineBMC).MachineName)},
		{&v1beta1.VirtualMachineBMC{}, indexSecret, value((*v1beta1.VirtualMachineBMC).AuthSecretName)},
		{&v1beta1.VirtualMachineBMC{}, indexCertificate, value((*v1beta1.VirtualMachineBMC).CertificateSecretName)},
		{&corev1.Service{}, indexBMC, byLabel},
		{&discoveryv1.EndpointSlice{}, indexBMC, byLabel},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.value); err != nil {
			return fmt.Errorf("index %s: %w", index.name, err)
		}
	}
	return nil
}

func (s *Source) setupBMCs(ctx context.Context, accounts Accounts) error {
	r := &bmcs{
		client: s.manager.GetClient(), live: s.manager.GetAPIReader(), registry: s.registry, apis: s.apis, ports: s.ports,
		accounts: accounts, defaults: s.config.Defaults, events: s.manager.GetEventRecorder(EventSource), log: s.config.Log,
		start: s.start, rights: s.rights, scope: s.scope, webhooks: s.webhooksProblem, routes: &s.routes, again: &s.bmcs, moves: s.moves, taken: &s.taken,
		waiting: map[registry.Ref]struct{}{}, ipmi: map[registry.Ref]struct{}{}, secrets: map[registry.Ref]readSecret{}, applied: map[registry.Ref]service{},
		routedSince: map[registry.Ref]time.Time{}, routeTime: s.config.RouteTime, leftTime: s.config.LeftTime,
		certificates: s.config.Certificates, domain: s.config.ClusterDomain,
		provided: map[registry.Ref]*provided{}, issued: map[registry.Ref]*served{}, expiries: s.expiries,
	}
	s.removeLeft = r.removeLeft
	b := builder.ControllerManagedBy(s.manager).Named("virtualmachinebmc").
		WithOptions(controller.Options{MaxConcurrentReconciles: bmcWorkers}).
		// A BMC's machine may be another's too, who gets it or loses it.
		Watches(&v1beta1.VirtualMachineBMC{}, s.bmcHandler()).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(s.ofNamed)).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) []reconcile.Request {
			return append(s.indexed(ctx, secret.GetNamespace(), indexSecret, secret.GetName()),
				s.indexed(ctx, secret.GetNamespace(), indexCertificate, secret.GetName())...)
		})).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(ofLabel)).
		WatchesRawSource(&s.bmcs)
	if s.config.Agents.Enabled() {
		if err := s.setupAgents(ctx, r); err != nil {
			return err
		}
	}
	return b.Complete(r)
}

// setupAgents makes what keeps dedicated agents. Without an image of theirs there
// are none, and the controller needs no rights to their objects.
func (s *Source) setupAgents(ctx context.Context, r *bmcs) error {
	whole, metadata := agent.Watched()
	objects := map[client.Object]cache.ByObject{
		whole:         {Label: hasBMC(), Transform: agent.Trim},
		&corev1.Pod{}: {Label: hasBMC(), Transform: podAddress},
	}
	for _, object := range metadata {
		objects[object] = cache.ByObject{Label: agent.Selector()}
	}
	var err error
	s.agents, err = s.optional(ctx, &roleDedicated, s.config.Namespaces, objects, func(object client.Object) {
		for _, request := range ofLabel(ctx, object) {
			ref := registry.Ref{Namespace: request.Namespace, Name: request.Name}
			if pod, ok := object.(*corev1.Pod); ok {
				s.drain(ctx, registry.ReplicaID{Agent: agent.IdentityOf(pod), Name: pod.Name})
				s.routes.add(ref)
			} else {
				s.bmcs.add(ref)
			}
		}
	})
	if err != nil {
		return err
	}
	r.agents = agent.New(agent.Config{
		Options: s.config.Agents, Client: reading{r.client, s.agents}, Live: r.live, FieldManager: fieldManager,
		Again: func(namespace, name string) { s.bmcs.add(registry.Ref{Namespace: namespace, Name: name}) },
	})
	if err := s.config.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "vbmc_controller_agents_outdated", Help: "Dedicated agents that wait for their turn to get a new version.",
	}, func() float64 { return float64(r.agents.Outdated()) })); err != nil {
		return err
	}
	r.agentObjects, r.networks = s.agents, s.config.Agents.Networks
	return s.manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
		s.config.Agents.WatchCA(ctx, func() { s.addAll(ctx) })
		return nil
	}))
}

// webhooksProblem is why admission webhooks are not called; empty: they are, if that
// is known.
func (s *Source) webhooksProblem() (problem string, known bool) {
	if s.config.Webhooks == nil {
		return "the controller has no admission webhooks", true
	}
	return s.config.Webhooks.Problem()
}

func (s *Source) setupRouting() error {
	requests := rest.CopyConfig(s.config.REST)
	requests.QPS, requests.Burst = routingRequests, 2*routingRequests
	own, err := client.New(requests, client.Options{
		Scheme: s.manager.GetScheme(), Mapper: s.manager.GetRESTMapper(),
		Cache: &client.CacheOptions{Reader: s.manager.GetCache()},
	})
	if err != nil {
		return fmt.Errorf("make client of routing: %w", err)
	}
	r := &routing{
		client: own, live: s.manager.GetAPIReader(), registry: s.registry, taken: &s.taken, bmcs: &s.bmcs, ports: s.ports, defaults: s.config.Defaults, start: s.start, moves: s.moves, namespace: s.config.Namespace, agents: s.agents,
	}
	return builder.ControllerManagedBy(s.manager).Named("routing").
		WithOptions(controller.Options{MaxConcurrentReconciles: routingWorkers}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(s.ofNamed)).
		Watches(&corev1.Pod{}, handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				s.podChanged(ctx, e.Object, q)
			},
			UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				s.podChanged(ctx, e.ObjectNew, q)
			},
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				s.podChanged(ctx, e.Object, q)
			},
		}, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		WatchesRawSource(&s.routes).
		Complete(r)
}

// lead runs the registry once all BMCs are known.
func (s *Source) lead(ctx context.Context) error {
	select {
	case <-s.apis.known:
	case <-ctx.Done():
		return nil
	}
	for _, o := range []*optional{s.agents, s.labeled} {
		if o == nil {
			continue
		}
		select {
		case <-o.known:
		case <-ctx.Done():
			return nil
		}
	}
	if s.config.Certificates != nil {
		// Nobody is told of a BMC without its certificate because of a CA that has
		// not been read yet.
		select {
		case <-s.config.Certificates.Known():
		case <-ctx.Done():
			return nil
		}
	}
	list, err := s.list(ctx)
	if err != nil {
		return err
	}
	s.ports.restore(list)
	refs := make([]registry.Ref, len(list))
	var expected []registry.ReplicaID
	seen := map[registry.ReplicaID]bool{}
	for i, bmc := range list {
		refs[i] = registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name}
		for _, protocol := range protocols {
			id := registry.ReplicaID{Protocol: protocol, Name: replicaIn(bmc.Status.Frontend, protocol)}
			if wanted := wantedOf(bmc, s.config.Defaults); seen[id] || wanted.agent() != "" || !s.hasPod(ctx, id.Name) {
				continue
			}
			seen[id] = true
			expected = append(expected, id)
		}
	}
	s.config.Log.InfoContext(ctx, "this controller leads", "bmcs", len(list))
	s.start.begin(refs)
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() {
		if !s.start.all(ctx, s.config.OpenTime) {
			return
		}
		unknown := s.start.left()
		if len(unknown) > 0 {
			s.config.Log.WarnContext(ctx, "some BMCs can't be reconciled; frontends serve them as they did before", "bmcs", len(unknown))
		}
		s.start.open()
		s.registry.Open(unknown, expected...)
		s.addAll(ctx)
		s.removeLeft(ctx, s.list)
	})
	group.Go(func() {
		for {
			select {
			case <-s.reissue:
				s.addAll(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return s.registry.Run(ctx)
}

// hasPod tells whether a pod of the shared frontends is there and stays.
func (s *Source) hasPod(ctx context.Context, name string) bool {
	if name == "" {
		return false
	}
	var pod corev1.Pod
	err := s.manager.GetClient().Get(ctx, client.ObjectKey{Namespace: s.config.Namespace, Name: name}, &pod)
	return err == nil && pod.DeletionTimestamp == nil
}

// drain tells the registry whether a replica's pod is ending.
func (s *Source) drain(ctx context.Context, id registry.ReplicaID) {
	namespace, pods := s.config.Namespace, client.Reader(s.manager.GetClient())
	if id.Agent != "" {
		if s.agents == nil {
			return
		}
		namespace = agent.NamespaceOf(id.Agent)
		if pods, _ = s.agents.reader(namespace); pods == nil {
			return
		}
	}
	s.draining.Lock()
	defer s.draining.Unlock()
	var pod corev1.Pod
	if pods.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id.Name}, &pod) != nil {
		return
	}
	for _, id.Protocol = range protocols {
		s.registry.SetDraining(id, pod.DeletionTimestamp != nil)
	}
}

// podChanged looks again at the BMCs of a pod.
func (s *Source) podChanged(ctx context.Context, pod client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if len(ofLabel(ctx, pod)) > 0 {
		return // It is an agent's, in the controller's own namespace.
	}
	s.drain(ctx, registry.ReplicaID{Name: pod.GetName()})
	list, err := s.list(ctx)
	if err != nil {
		s.config.Log.ErrorContext(ctx, "can't list BMCs", logkey.Error, err.Error())
		return
	}
	for _, bmc := range list {
		ref := registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name}
		for _, protocol := range protocols {
			status, _ := s.registry.Status(ref, protocol)
			if status.Replica == pod.GetName() || replicaIn(bmc.Status.Frontend, protocol) == pod.GetName() {
				q.Add(requestFor(ref))
			}
		}
	}
}

// list returns all BMCs, the oldest first.
func (s *Source) list(ctx context.Context) ([]*v1beta1.VirtualMachineBMC, error) {
	var all v1beta1.VirtualMachineBMCList
	if err := s.manager.GetCache().List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list BMCs: %w", err)
	}
	return byAge(all.Items), nil
}

func (s *Source) addAll(ctx context.Context) {
	list, err := s.list(ctx)
	if err != nil {
		s.config.Log.ErrorContext(ctx, "can't list BMCs", logkey.Error, err.Error())
		return
	}
	for _, bmc := range list {
		s.bmcs.add(registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name})
	}
}

func (s *Source) machineChanged(ctx context.Context, namespace, name string) {
	s.machines.add(registry.Ref{Namespace: namespace, Name: name})
	for _, request := range s.indexed(ctx, namespace, indexMachine, name) {
		s.bmcs.add(registry.Ref{Namespace: request.Namespace, Name: request.Name})
	}
}

// indexed returns the BMCs that an index has under a value.
func (s *Source) indexed(ctx context.Context, namespace, index, value string) []reconcile.Request {
	var list v1beta1.VirtualMachineBMCList
	if err := s.manager.GetClient().List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{index: value}); err != nil {
		s.config.Log.ErrorContext(ctx, "can't list BMCs", logkey.Error, err.Error())
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i] = requestFor(registry.Ref{Namespace: namespace, Name: list.Items[i].Name})
	}
	return requests
}

// bmcHandler looks at a BMC and at those that name the same machine.
func (s *Source) bmcHandler() handler.EventHandler {
	add := func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request], objects ...client.Object) {
		for _, object := range objects {
			bmc, ok := object.(*v1beta1.VirtualMachineBMC)
			if !ok {
				continue
			}
			q.Add(requestFor(registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name}))
			if machine := bmc.MachineName(); machine != "" {
				for _, request := range s.indexed(ctx, bmc.Namespace, indexMachine, machine) {
					q.Add(request)
				}
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(ctx, q, e.Object)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(ctx, q, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(ctx, q, e.Object)
		},
	}
}

// ofNamed returns the BMC that a Service or EndpointSlice belongs to, and those that
// wait for its name.
func (s *Source) ofNamed(ctx context.Context, object client.Object) []reconcile.Request {
	return append(ofLabel(ctx, object), s.indexed(ctx, object.GetNamespace(), indexMachine, object.GetLabels()[v1beta1.LabelVMName])...)
}

// ofLabel returns the BMC that an object belongs to.
func ofLabel(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[v1beta1.LabelVirtualMachineBMCName]
	if name == "" {
		return nil
	}
	return []reconcile.Request{requestFor(registry.Ref{Namespace: object.GetNamespace(), Name: name})}
}

func requestFor(ref registry.Ref) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}
}

// queue passes BMCs on to a controller. Before the controller has begun it drops
// them: it begins with all.
type queue struct {
	mu sync.RWMutex
	to workqueue.TypedRateLimitingInterface[reconcile.Request]
}

var _ source.Source = (*queue)(nil)

// Start implements source.Source.
func (q *queue) Start(_ context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.to = to
	return nil
}

func (q *queue) add(ref registry.Ref) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.to != nil {
		q.to.Add(requestFor(ref))
	}
}

// nameOnly leaves of an object's metadata what identifies it.
func nameOnly(in any) (any, error) {
	if object, ok := in.(client.Object); ok {
		object.SetLabels(nil)
		object.SetAnnotations(nil)
		object.SetManagedFields(nil)
		object.SetOwnerReferences(nil)
		object.SetFinalizers(nil)
	}
	return in, nil
}

// machineTransform leaves of a VirtualMachine what is looked at.
func (s *Source) machineTransform() func(any) (any, error) {
	if s.config.Provision.Machines == nil {
		return nameOnly
	}
	return labelsOnly
}

// labelsOnly leaves of an object's metadata what identifies it, and its labels.
func labelsOnly(in any) (any, error) {
	object, ok := in.(client.Object)
	if !ok {
		return in, nil
	}
	labels := object.GetLabels()
	out, err := nameOnly(in)
	object.SetLabels(labels)
	return out, err
}

// podAddress leaves of a pod where it is, and whose if it is an agent's.
func podAddress(in any) (any, error) {
	pod, ok := in.(*corev1.Pod)
	if !ok {
		return nameOnly(in)
	}
	bmc, has := pod.Labels[v1beta1.LabelVirtualMachineBMCName]
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName}
	pod.Status = corev1.PodStatus{PodIP: pod.Status.PodIP}
	if _, err := nameOnly(pod); err != nil {
		return nil, err
	}
	if has {
		pod.Labels = map[string]string{v1beta1.LabelVirtualMachineBMCName: bmc}
	}
	return pod, nil
}

// convert copies what an API server answered.
func convert(from, to any) error {
	content, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, to)
}
