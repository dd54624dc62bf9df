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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/credential"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// fieldManager is who we are for server-side apply; the same as in earlier lines,
// whose fields become ours.
const fieldManager = "kubevirtbmc-controller"

// retryTime is after how long something is tried again that only others can
// mend and that is not watched.
const retryTime = 30 * time.Second

// portOwner is a listener of a BMC, which has a port.
type portOwner struct {
	ref      registry.Ref
	listener listener
}

// ports are those of all BMCs. UDP and TCP do not get in each other's way.
type ports struct {
	udp, tcp *port.Allocator[portOwner]
}

func newPorts(r port.Range) *ports {
	return &ports{udp: port.New[portOwner](r), tcp: port.New[portOwner](r)}
}

func (p *ports) of(l listener) *port.Allocator[portOwner] {
	if l == listenIPMI {
		return p.udp
	}
	return p.tcp
}

// restore takes over what the BMCs' status says, oldest BMC first.
func (p *ports) restore(bmcs []*v1beta1.VirtualMachineBMC) {
	claims := map[*port.Allocator[portOwner]][]port.Claim[portOwner]{}
	for _, bmc := range bmcs {
		ref := registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name}
		if f := bmc.Status.Frontend; f != nil && f.Mode == v1beta1.FrontendModeDedicated {
			continue // Its agent's, which are no others'.
		}
		for l, n := range portsIn(bmc.Status.Frontend) {
			claims[p.of(l)] = append(claims[p.of(l)], port.Claim[portOwner]{Owner: portOwner{ref, l}, Port: n})
		}
	}
	for allocator, list := range claims {
		allocator.Restore(list)
		for _, claim := range list {
			// One that lost its port to an older one comes before those that had none.
			allocator.Allocate(claim.Owner)
		}
	}
}

// release takes a BMC's ports back; false: it had none.
func (p *ports) release(ref registry.Ref) bool {
	had := len(p.allocated(ref)) > 0
	for _, l := range []listener{listenIPMI, listenHTTPS, listenHTTP} {
		p.of(l).Release(portOwner{ref, l})
	}
	return had
}

// ofBMC are the ports at which a BMC is served: its agent's, or those that it has
// among all BMCs.
func (p *ports) ofBMC(w *wanted) map[listener]int32 {
	if w.mode == v1beta1.FrontendModeDedicated {
		return agentPorts(w)
	}
	return p.allocated(w.ref)
}

// allocated are the ports that a BMC has, of those that it is to have now or had
// before.
func (p *ports) allocated(ref registry.Ref) map[listener]int32 {
	has := map[listener]int32{}
	for _, l := range []listener{listenIPMI, listenHTTPS, listenHTTP} {
		if n, ok := p.of(l).Port(portOwner{ref, l}); ok {
			has[l] = n
		}
	}
	return has
}

// portsIn are the ports in a status.
func portsIn(status *v1beta1.FrontendStatus) map[listener]int32 {
	has := map[listener]int32{}
	if status == nil {
		return has
	}
	add := func(l listener, n *int32) {
		if n != nil {
			has[l] = *n
		}
	}
	if status.IPMI != nil {
		add(listenIPMI, status.IPMI.Port)
	}
	if status.Redfish != nil {
		add(listenHTTPS, status.Redfish.HTTPSPort)
		add(listenHTTP, status.Redfish.HTTPPort)
	}
	return has
}

// replicaIn is the replica that a status names; empty: none.
func replicaIn(status *v1beta1.FrontendStatus, protocol registryv1.Protocol) string {
	switch {
	case status == nil:
	case protocol == registryv1.Protocol_PROTOCOL_IPMI && status.IPMI != nil:
		return status.IPMI.Replica
	case protocol == registryv1.Protocol_PROTOCOL_REDFISH && status.Redfish != nil:
		return status.Redfish.Replica
	}
	return ""
}

// bmcs reconciles VirtualMachineBMCs.
type bmcs struct {
	client client.Client
	// live reads from the API server what no cache has.
	live     client.Reader
	registry *registry.Registry
	apis     *apis
	ports    *ports
	accounts Accounts
	defaults Defaults
	events   events.EventRecorder
	log      *slog.Logger
	start    *start
	// routeTime is Config.RouteTime.
	routeTime time.Duration
	// leftTime is Config.LeftTime.
	leftTime time.Duration
	// certificates issues those of BMCs; nil: frontends serve their own.
	certificates Certificates
	// domain of the cluster.
	domain string
	// agents keeps dedicated agents; nil: there are none.
	agents *agent.Keeper
	// agentObjects are what the agents' keeper sees; nil: there are none.
	agentObjects *optional
	// networks are those of agent.Options.
	networks []string
	// rights are asked about the rights that an installation may leave out, in the
	// namespace that scope returns.
	rights *rights
	scope  func(namespace string) string
	// webhooks says why the admission webhooks are not called; empty: they are, if
	// that is known.
	webhooks func() (problem string, known bool)
	// routes is told of BMCs whose EndpointSlices may have to change.
	routes *queue
	// again is told of BMCs to look at again.
	again *queue
	moves *moves
	// taken is what routing knows of EndpointSlices of others.
	taken *takenSlices

	mu sync.Mutex
	// waiting are the BMCs that wait for a port.
	waiting map[registry.Ref]struct{}
	// ipmi are the BMCs that were to be served over IPMI at some time.
	ipmi    map[registry.Ref]struct{}
	secrets map[registry.Ref]readSecret
	applied map[registry.Ref]service
	// routedSince is when a BMC was first seen to be served that is not Ready yet.
	routedSince map[registry.Ref]time.Time
	// provided and issued are the certificates that frontends were told of.
	provided map[registry.Ref]*provided
	issued   map[registry.Ref]*served
	// expiries is told of all of them.
	expiries *expiries
}

// readSecret is a Secret as it was read last.
type readSecret struct {
	uid         types.UID
	version     string
	credentials credential.Credentials
}

// Reconcile implements reconcile.Reconciler.
func (r *bmcs) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := r.start.wait(ctx); err != nil {
		return reconcile.Result{}, err
	}
	ref := registry.Ref{Namespace: request.Namespace, Name: request.Name}
	var bmc v1beta1.VirtualMachineBMC
	if err := r.client.Get(ctx, request.NamespacedName, &bmc); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(ref)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if bmc.DeletionTimestamp != nil {
		r.registry.Remove(ref)
		r.start.done(ref)
		return reconcile.Result{}, nil
	}
	result, err := r.reconcile(ctx, &bmc)
	if conflictsAlone(err) {
		// Another BMC has the name by now, or the cache is behind.
		r.log.DebugContext(ctx, "object has changed", logkey.Namespace, ref.Namespace, logkey.BMC, ref.Name, logkey.Error, err.Error())
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err == nil {
		r.start.done(ref)
		r.routes.add(ref)
	}
	return result, err
}

// conflictsAlone tells whether conflicts are all that an error is made of. One among
// others must not hide those.
func conflictsAlone(err error) bool {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		return !slices.ContainsFunc(several.Unwrap(), func(one error) bool { return !conflictsAlone(one) })
	}
	return apierrors.IsConflict(err)
}

// forget drops all that is known of a BMC that is gone. What it owned goes by
// itself.
func (r *bmcs) forget(ref registry.Ref) {
	r.registry.Remove(ref)
	if r.agents != nil {
		r.agents.Forget(ref.Namespace, ref.Name)
	}
	r.mu.Lock()
	delete(r.ipmi, ref)
	delete(r.secrets, ref)
	delete(r.provided, ref)
	delete(r.issued, ref)
	r.expiries.set(ref, madeHere, nil)
	delete(r.applied, ref)
	delete(r.routedSince, ref)
	r.mu.Unlock()
	r.moves.forget(ref)
	r.release(ref)
	r.start.done(ref)
	r.routes.add(ref)
}

func (r *bmcs) reconcile(ctx context.Context, bmc *v1beta1.VirtualMachineBMC) (reconcile.Result, error) {
	o := observation{want: wantedOf(bmc, r.defaults)}
	o.observeWebhooks(bmc, r.webhooks)
	if err := r.observeMachine(ctx, bmc, &o); err != nil {
		return reconcile.Result{}, err
	}
	has, err := r.services(ctx, o.want)
	if err != nil {
		return reconcile.Result{}, err
	}
	o.unseen = !o.hypervisor && slices.ContainsFunc(has, func(is *corev1.Service) bool { return is.Name == o.want.serviceName() })
	o.want.mode = modeInUse(bmc.Status.Frontend, o.want.target, !o.served() || r.connected(o.want))
	w := o.want
	credentials, err := r.readCredentials(ctx, &o)
	if err != nil {
		return reconcile.Result{}, err
	}
	others, err := r.accounts.Accounts(ctx, w.ref)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read further accounts: %w", err)
	}
	o.lostIPMI = losesIPMI(bmc, w, has, r.hadIPMI(w))
	if w.mode != v1beta1.FrontendModeDedicated && o.served() {
		for _, l := range w.listeners() {
			if _, ok := r.ports.of(l).Allocate(portOwner{w.ref, l}); !ok {
				o.exhausted = append(o.exhausted, l)
			}
		}
	}
	r.waits(w.ref, len(o.exhausted) > 0)
	allocated := r.ports.ofBMC(&w)
	if early := o.early(bmc.Status, allocated); early != nil {
		if err := r.writeStatus(ctx, bmc, *early); err != nil {
			return reconcile.Result{}, err
		}
	}
	// What goes wrong with the Service must not keep the frontends from serving.
	result, serviceErr := r.reconcileServices(ctx, bmc, &o, has)
	pair, renewAt, err := r.certify(ctx, &o)
	if err != nil {
		return reconcile.Result{}, errors.Join(err, serviceErr)
	}
	entry := entryOf(w, credentials, others, allocated, o.service, pair)
	if o.served() && o.kept == "" && (entry.BMC.Ipmi != nil || entry.BMC.Redfish != nil) {
		r.registry.Put(entry)
	} else {
		r.registry.Remove(w.ref)
	}
	later, agentErr := r.reconcileAgent(ctx, &o)
	result.RequeueAfter = soonest(result.RequeueAfter, later)
	serviceErr = errors.Join(serviceErr, agentErr)
	if err := r.observeFrontends(ctx, bmc, &o); err != nil {
		return reconcile.Result{}, errors.Join(err, serviceErr)
	}
	if o.former != nil {
		result.RequeueAfter = soonest(result.RequeueAfter, graceTime)
	}
	if left := r.hold(bmc, &o); left > 0 {
		return reconcile.Result{RequeueAfter: soonest(result.RequeueAfter, left)}, serviceErr
	}
	result.RequeueAfter = soonest(result.RequeueAfter, r.settle(bmc, &o))
	result.RequeueAfter = sooner(result.RequeueAfter, renewAt, time.Now())
	adopted, err := r.carryOver(ctx, bmc, &o)
	if err != nil {
		return reconcile.Result{}, errors.Join(err, serviceErr)
	}
	status := r.statusOf(bmc, &o, allocated)
	if err := r.writeStatus(ctx, bmc, status); err != nil {
		return reconcile.Result{}, errors.Join(err, serviceErr)
	}
	for _, a := range append(announcements(bmc.Status.Conditions, status.Conditions), adopted...) {
		r.events.Eventf(bmc, nil, a.kind, a.reason, a.action, "%s", a.message)
	}
	return result, serviceErr
}

// soonest returns the shorter of two delays; 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// release takes a BMC's ports back, for those that wait for one.
func (r *bmcs) release(ref registry.Ref) {
	r.waits(ref, false)
	if !r.ports.release(ref) {
		return
	}
	r.mu.Lock()
	waiting := slices.Collect(maps.Keys(r.waiting))
	r.mu.Unlock()
	for _, other := range waiting {
		r.again.add(other)
	}
}

// hadIPMI tells whether a BMC was to be served over IPMI at an earlier look of this
// controller, whose defaults do not change.
func (r *bmcs) hadIPMI(w wanted) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, had := r.ipmi[w.ref]
	if w.ipmi {
		r.ipmi[w.ref] = struct{}{}
	}
	return had
}

// waits says whether a BMC waits for a port.
func (r *bmcs) waits(ref registry.Ref, waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if waiting {
		r.waiting[ref] = struct{}{}
	} else {
		delete(r.waiting, ref)
	}
}

func (r *bmcs) observeMachine(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, o *observation) error {
	o.hypervisor, o.media = r.apis.state()
	if o.want.machine == "" {
		return nil
	}
	var all v1beta1.VirtualMachineBMCList
	if err := r.client.List(ctx, &all, client.InNamespace(bmc.Namespace), client.MatchingFields{indexMachine: o.want.machine}); err != nil {
		return fmt.Errorf("list BMCs of VirtualMachine %s: %w", o.want.machine, err)
	}
	o.taken = takenBy(bmc, all.Items)
	var err error
	if o.machine, o.hypervisor, err = r.apis.machine(ctx, bmc.Namespace, o.want.machine); err != nil {
		return fmt.Errorf("find VirtualMachine %s: %w", o.want.machine, err)
	}
	if o.machine == "" || o.taken != "" {
		return nil
	}
	if o.override, o.bypassed, err = bootoverride.ViewOf(bmcresource.State(bmc, string(o.machine))); err != nil {
		// The power service says so to whoever asks for something.
		r.log.WarnContext(ctx, "can't read a BMC's state", logkey.Namespace, bmc.Namespace, logkey.BMC, bmc.Name, logkey.Error, err.Error())
	}
	return nil
}

// observeWebhooks notes whether the admission webhooks are called. While that is not
// known, as when another controller begins to lead, what was known last counts on.
func (o *observation) observeWebhooks(bmc *v1beta1.VirtualMachineBMC, webhooks func() (string, bool)) {
	problem, known := webhooks()
	o.webhooks, o.webhooksUnknown = problem, !known
	if known {
		return
	}
	if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionBootOverrideAvailable); c != nil {
		switch {
		case c.Status == metav1.ConditionTrue && c.Reason == v1beta1.ReasonAdmission:
			o.webhooksUnknown = false
		case c.Status == metav1.ConditionFalse && c.Reason == v1beta1.ReasonWebhookUnavailable:
			o.webhooks, o.webhooksUnknown = c.Message, false
		}
	}
}

// readCredentials reads the Secret, anew only when it has changed.
func (r *bmcs) readCredentials(ctx context.Context, o *observation) (*credential.Credentials, error) {
	w := o.want
	if w.secret == "" {
		o.secret = &trouble{v1beta1.ReasonSecretNotFound, "spec.authSecretRef names no Secret"}
		return &credential.Credentials{}, nil
	}
	key := client.ObjectKey{Namespace: w.ref.Namespace, Name: w.secret}
	read, err := r.readSecret(ctx, w.ref, key)
	if apierrors.IsNotFound(err) {
		o.secret = &trouble{v1beta1.ReasonSecretNotFound, fmt.Sprintf("Secret %s does not exist", w.secret)}
		return &credential.Credentials{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", w.secret, err)
	}
	if problem := read.Problem(w.ipmi); problem != "" {
		o.secret = &trouble{v1beta1.ReasonSecretInvalid, fmt.Sprintf("Secret %s: %s", w.secret, problem)}
	}
	return read, nil
}

func (r *bmcs) readSecret(ctx context.Context, ref registry.Ref, key client.ObjectKey) (*credential.Credentials, error) {
	known := metadataOf(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := r.client.Get(ctx, key, known); err != nil {
		return nil, err
	}
	r.mu.Lock()
	read, ok := r.secrets[ref]
	r.mu.Unlock()
	if !ok || read.uid != known.UID || read.version != known.ResourceVersion {
		var secret corev1.Secret
		if err := r.live.Get(ctx, key, &secret); err != nil {
			return nil, err
		}
		read = readSecret{secret.UID, secret.ResourceVersion, credential.Parse(secret.Data)}
		r.mu.Lock()
		r.secrets[ref] = read
		r.mu.Unlock()
	}
	return &read.credentials, nil
}

// services are the BMC's own.
func (r *bmcs) services(ctx context.Context, w wanted) ([]*corev1.Service, error) {
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list, client.InNamespace(w.ref.Namespace), client.MatchingFields{indexBMC: w.ref.Name}); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	var has []*corev1.Service
	for i := range list.Items {
		if ownedBy(&list.Items[i], w.uid) {
			has = append(has, &list.Items[i])
		}
	}
	return has, nil
}

// reconcileServices makes the Service what it is to be and removes others that
// are the BMC's, as of a machine that it had before, and what earlier lines have
// left.
func (r *bmcs) reconcileServices(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, o *observation, has []*corev1.Service) (reconcile.Result, error) {
	w := o.want
	var is *corev1.Service
	var others []*corev1.Service
	for _, one := range has {
		if o.served() && one.Name == w.serviceName() {
			is = one
		} else {
			others = append(others, one)
		}
	}
	adopt := legacy(&bmc.Status, is)
	if adopt {
		lacks, err := r.rights.lack(ctx, &roleAdoption, r.scope(w.ref.Namespace))
		switch {
		case err != nil:
			return reconcile.Result{}, err
		case lacks != "" && is != nil && len(is.Spec.Selector) > 0:
			// Half of it would lead clients to the agent and to us by turns.
			o.service, o.legacy, o.kept = is, true, lacks
			return reconcile.Result{RequeueAfter: retryTime}, nil
		case lacks != "":
			r.log.DebugContext(ctx, "can't look for what an earlier version has left", logkey.Namespace, w.ref.Namespace, logkey.BMC, w.ref.Name, logkey.Error, lacks)
			adopt = false
		}
	}
	if adopt {
		if is != nil && len(is.Spec.Selector) > 0 && r.start.settling() && !r.serving(w) {
			// Its agent serves until we do.
			o.service, o.legacy = is, true
			return reconcile.Result{RequeueAfter: adoptTime}, nil
		}
		if err := r.removeAgent(ctx, w); err != nil {
			return reconcile.Result{}, err
		}
	}
	for _, one := range others {
		uid := one.UID
		if err := r.client.Delete(ctx, one, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("delete Service %s: %w", one.Name, err)
		}
	}
	if !o.served() {
		return reconcile.Result{}, nil
	}
	result, err := r.reconcileService(ctx, o, is)
	if err != nil || o.service == nil || len(o.service.Spec.Selector) > 0 {
		return result, err
	}
	return result, r.removeSelected(ctx, w, adopt)
}

// reconcileService makes the Service what it is to be, which is now.
func (r *bmcs) reconcileService(ctx context.Context, o *observation, is *corev1.Service) (reconcile.Result, error) {
	w := o.want
	want := serviceOf(w)
	r.mu.Lock()
	last, ok := r.applied[w.ref]
	r.mu.Unlock()
	same := ok && cmp.Equal(last, want, cmp.AllowUnexported(service{}, servicePort{}))
	// A new leader has applied none. What that may take out of a Service, as a label
	// that the BMC has no more, is nothing that clients wait for.
	if is != nil && (same || r.start.opening()) && want.inSync(is) {
		o.service = is
		return reconcile.Result{}, nil
	}
	applied, t, err := r.applyService(ctx, w, &want)
	if err != nil {
		return reconcile.Result{}, err
	}
	if t != nil {
		// What there is goes on to be what clients reach.
		o.service, o.serviceTrouble = is, t
		return reconcile.Result{RequeueAfter: retryTime}, nil
	}
	r.mu.Lock()
	r.applied[w.ref] = want
	r.mu.Unlock()
	o.service = applied
	return reconcile.Result{}, nil
}

// applyService makes the Service what it is to be, if it is ours or not there. A
// trouble is what only the user can mend.
func (r *bmcs) applyService(ctx context.Context, w wanted, want *service) (*corev1.Service, *trouble, error) {
	// One that somebody else has made is not in the cache.
	is := &corev1.Service{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: want.namespace, Name: want.name}, is)
	switch {
	case apierrors.IsNotFound(err):
		is.UID = ""
	case err != nil:
		return nil, nil, fmt.Errorf("get Service %s: %w", want.name, err)
	case !ownedBy(is, w.uid):
		t := notOwned(ctx, r.client, "Service", is, w.machine, v1beta1.ReasonServiceNotOwned, v1beta1.ReasonServiceNotReady)
		return nil, &t, nil
	default:
		if patch := want.alien(is); patch != nil {
			if err := r.client.Patch(ctx, is, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
				return nil, nil, fmt.Errorf("repair Service %s: %w", want.name, err)
			}
		}
	}
	apply := want.apply(is.UID)
	err = r.client.Apply(ctx, apply, client.ForceOwnership, client.FieldOwner(fieldManager))
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The BMC goes with all that is in the namespace.
		return nil, &trouble{v1beta1.ReasonServiceNotReady, fmt.Sprintf("namespace %s is being deleted", want.namespace)}, nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return nil, &trouble{v1beta1.ReasonServiceRefused, shorten(err.Error())}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("apply Service %s: %w", want.name, err)
	}
	// What the API server made of it, cluster address and node ports.
	applied := &corev1.Service{}
	if err := convert(apply, applied); err != nil {
		return nil, nil, fmt.Errorf("read Service %s: %w", want.name, err)
	}
	return applied, nil, nil
}

// entryOf is what the registry is told of a BMC.
func entryOf(w wanted, c *credential.Credentials, others []*registryv1.Account, allocated map[listener]int32, is *corev1.Service, pair *registryv1.Certificate) registry.Entry {
	at := func(l listener) *registryv1.Listener {
		n, ok := allocated[l]
		if !ok {
			return nil
		}
		return &registryv1.Listener{Port: uint32(n), ClientPort: clientPort(is, l)} //nolint:gosec // It has 16 bits.
	}
	bmc := &registryv1.BMC{
		Bmc:      &referencev1.BMCReference{Namespace: w.ref.Namespace, Name: w.ref.Name},
		Uuid:     string(w.uid),
		Accounts: c.Accounts(w.redfish(), w.ipmi, others),
	}
	if udp := at(listenIPMI); w.ipmi && c.IPMI != nil && udp != nil {
		bmc.Ipmi = &registryv1.IPMIEndpoint{Udp: udp, CipherSuites: w.suites, Kg: c.Kg, ClientAddress: clientAddress(is), Lan: w.lan}
	}
	if w.redfish() && c.Redfish != nil {
		redfish := &registryv1.RedfishEndpoint{}
		if w.https {
			redfish.Https, redfish.Certificate = at(listenHTTPS), pair
		}
		if w.http {
			redfish.Http = at(listenHTTP)
		}
		if redfish.Https != nil || redfish.Http != nil {
			bmc.Redfish = redfish
		}
	}
	return registry.Entry{BMC: bmc, Agent: w.agent()}
}

// observeFrontends finds out what the frontends say.
func (r *bmcs) observeFrontends(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, o *observation) error {
	if !o.served() || o.kept != "" {
		return nil
	}
	for _, protocol := range o.want.protocols() {
		f := frontend{protocol: protocol}
		var told bool
		if f.status, told = r.registry.Status(o.want.ref, protocol); !told {
			f.status = registry.Status{Connected: true, Problem: "nobody could log in, or there is no port"}
		}
		if f.status.Replica == "" && r.start.settling() {
			f.status.Replica = replicaIn(bmc.Status.Frontend, protocol)
		}
		if f.status.State == registry.Serving {
			f.taken = r.taken.of(o.want.ref, sliceName(o.want, protocol))
			var slice discoveryv1.EndpointSlice
			err := r.client.Get(ctx, client.ObjectKey{Namespace: o.want.ref.Namespace, Name: sliceName(o.want, protocol)}, &slice)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("get EndpointSlice: %w", err)
			}
			at := o.want
			at.mode = modeOf(f.status.Agent)
			f.routed = err == nil && ownedBy(&slice, o.want.uid) && routes(&slice, f.status.Replica, r.ports.ofBMC(&at))
		}
		o.frontends = append(o.frontends, f)
	}
	r.releaseShared(o)
	if c := meta.FindStatusCondition(bmc.Status.Conditions, v1beta1.ConditionFrontendReady); c != nil && c.Status == metav1.ConditionTrue &&
		c.ObservedGeneration == bmc.Generation && r.start.settling() {
		o.former = c
	}
	return nil
}

// hold returns for how long the status of a BMC that is Ready waits for its
// hand-over to be done; 0: it does not.
func (r *bmcs) hold(bmc *v1beta1.VirtualMachineBMC, o *observation) time.Duration {
	is := o.frontendReady()
	unanswered := is.Status != metav1.ConditionTrue && is.Reason == v1beta1.ReasonFrontendPending
	if !o.served() || !unanswered && is.Status != metav1.ConditionTrue ||
		bmc.Status.ObservedGeneration != bmc.Generation ||
		!meta.IsStatusConditionTrue(bmc.Status.Conditions, v1beta1.ConditionFrontendReady) {
		r.moves.forget(o.want.ref)
		return 0
	}
	return r.moves.hold(o.want.ref, unanswered)
}

// settle holds a BMC back that could not be reached and is served now, for as long
// as the nodes may not know where to send its clients. It returns how long that
// still is.
func (r *bmcs) settle(bmc *v1beta1.VirtualMachineBMC, o *observation) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.frontendReady().Status != metav1.ConditionTrue ||
		meta.IsStatusConditionTrue(bmc.Status.Conditions, v1beta1.ConditionFrontendReady) {
		delete(r.routedSince, o.want.ref)
		return 0
	}
	since, ok := r.routedSince[o.want.ref]
	if !ok {
		since = time.Now()
		r.routedSince[o.want.ref] = since
	}
	left := max(r.routeTime-time.Since(since), 0)
	o.settling = left > 0
	return left
}

// routes tells whether an EndpointSlice sends clients to a pod.
func routes(slice *discoveryv1.EndpointSlice, pod string, allocated map[listener]int32) bool {
	for _, port := range slice.Ports {
		for _, l := range []listener{listenIPMI, listenHTTPS, listenHTTP} {
			if port.Name != nil && *port.Name == portOf(l).name && (port.Port == nil || *port.Port != allocated[l]) {
				return false
			}
		}
	}
	return len(slice.Endpoints) == 1 && slice.Endpoints[0].TargetRef != nil && slice.Endpoints[0].TargetRef.Name == pod
}

// statusOf is the status that an observation makes.
func (r *bmcs) statusOf(bmc *v1beta1.VirtualMachineBMC, o *observation, allocated map[listener]int32) v1beta1.VirtualMachineBMCStatus {
	status := v1beta1.VirtualMachineBMCStatus{
		ObservedGeneration: bmc.Generation,
		Conditions:         transitions(bmc.Status.Conditions, o.conditions(), metav1.Now()),
		NodePorts:          nodePortsOf(o.service),
		Frontend:           frontendStatus(o.want, allocated, o.frontends),
		BootOverride:       overrideStatus(o.machine, o.override),
	}
	if o.unseen {
		status.BootOverride = bmc.Status.BootOverride
	}
	if o.legacy {
		status.ObservedGeneration = 0 // It has not been taken over.
	}
	if (o.legacy || o.unseen) && leftover(bmc, o.machine) != nil {
		// It is the agent's for as long as that serves the BMC, and can't be carried over
		// without the machine.
		status.ObservedGeneration, status.BootOverride = 0, bmc.Status.BootOverride
	}
	if o.service != nil {
		status.ClusterIP = o.service.Spec.ClusterIP
		if o.service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			for _, ingress := range o.service.Status.LoadBalancer.Ingress {
				if status.LoadBalancerIP == "" {
					status.LoadBalancerIP = ingress.IP
				}
				if status.LoadBalancerHostname == "" {
					status.LoadBalancerHostname = ingress.Hostname
				}
			}
		}
	}
	return status
}

// early is the status that has to be written before anything else is done; nil:
// nothing has to. Ports are on record before anybody is told of them, and that
// IPMI was served before it no longer is.
func (o *observation) early(status v1beta1.VirtualMachineBMCStatus, allocated map[listener]int32) *v1beta1.VirtualMachineBMCStatus {
	lost := o.lostIPMI && !meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionIPMIDisabledByUpgrade)
	if !lost && maps.Equal(allocated, portsIn(status.Frontend)) {
		return nil
	}
	status = withPorts(status, o.want, allocated)
	if lost {
		status.Conditions = slices.Clone(status.Conditions)
		for _, c := range o.conditions() {
			if c.Type == v1beta1.ConditionIPMIDisabledByUpgrade {
				meta.SetStatusCondition(&status.Conditions, c)
			}
		}
	}
	return &status
}

// overrideStatus is the view of an override.
func overrideStatus(machine types.UID, o *bootoverride.View) *v1beta1.BootOverrideStatus {
	if o == nil {
		return nil
	}
	status := &v1beta1.BootOverrideStatus{
		Mode: v1beta1.BootOverrideModeOneshot, VMUID: machine, VMIUID: types.UID(o.InstanceUID), ID: o.ID,
		Strategy: v1beta1.BootOverrideStrategyTemplate, Target: targets[o.Device],
		Firmware: firmwares[o.Mode], OriginalFirmware: firmwares[o.OwnMode],
	}
	if o.Continuous {
		status.Mode = v1beta1.BootOverrideModePersistent
	}
	if o.ByAdmission {
		status.Strategy = v1beta1.BootOverrideStrategyAdmission
	}
	for _, device := range o.Own {
		if status.BootOrders == nil {
			status.BootOrders = map[string]int64{}
		}
		status.BootOrders[bootoverride.DeviceKey(device)] = int64(device.Order)
	}
	return status
}

var (
	targets = map[hypervisor.DeviceKind]v1beta1.BootTarget{
		hypervisor.DeviceInterface: v1beta1.BootTargetPXE, hypervisor.DeviceDisk: v1beta1.BootTargetHDD, hypervisor.DeviceCDROM: v1beta1.BootTargetCD,
	}
	firmwares = map[hypervisor.FirmwareMode]v1beta1.BootFirmware{
		hypervisor.FirmwareBIOS: v1beta1.BootFirmwareLegacy, hypervisor.FirmwareUEFI: v1beta1.BootFirmwareUEFI,
	}
)

// withPorts is a status with ports.
func withPorts(status v1beta1.VirtualMachineBMCStatus, w wanted, allocated map[listener]int32) v1beta1.VirtualMachineBMCStatus {
	var frontends []frontend
	for _, protocol := range w.protocols() {
		frontends = append(frontends, frontend{protocol: protocol, status: registry.Status{Replica: replicaIn(status.Frontend, protocol)}})
	}
	status.Frontend = frontendStatus(w, allocated, frontends)
	return status
}

func frontendStatus(w wanted, allocated map[listener]int32, frontends []frontend) *v1beta1.FrontendStatus {
	status := &v1beta1.FrontendStatus{Mode: w.mode}
	at := func(l listener) *int32 {
		if n, ok := allocated[l]; ok {
			return &n
		}
		return nil
	}
	ipmi := v1beta1.IPMIFrontendStatus{Port: at(listenIPMI)}
	redfish := v1beta1.RedfishFrontendStatus{HTTPSPort: at(listenHTTPS), HTTPPort: at(listenHTTP)}
	for _, f := range frontends {
		if f.protocol == registryv1.Protocol_PROTOCOL_IPMI {
			ipmi.Replica = f.status.Replica
		} else {
			redfish.Replica = f.status.Replica
		}
	}
	if ipmi != (v1beta1.IPMIFrontendStatus{}) {
		status.IPMI = &ipmi
	}
	if redfish != (v1beta1.RedfishFrontendStatus{}) {
		status.Redfish = &redfish
	}
	return status
}

// own is the part of a status that this package writes.
func own(status v1beta1.VirtualMachineBMCStatus) v1beta1.VirtualMachineBMCStatus {
	part := v1beta1.VirtualMachineBMCStatus{
		ObservedGeneration: status.ObservedGeneration, ClusterIP: status.ClusterIP,
		LoadBalancerIP: status.LoadBalancerIP, LoadBalancerHostname: status.LoadBalancerHostname,
		NodePorts: status.NodePorts, Frontend: status.Frontend, BootOverride: status.BootOverride,
	}
	for _, kind := range ours {
		if c := meta.FindStatusCondition(status.Conditions, kind); c != nil {
			part.Conditions = append(part.Conditions, *c)
		}
	}
	return part
}

// writeStatus writes the part of a status that is ours, if it differs.
func (r *bmcs) writeStatus(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, status v1beta1.VirtualMachineBMCStatus) error {
	part, is := own(status), own(bmc.Status)
	if equality.Semantic.DeepEqual(part, is) {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&part)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	had, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&is)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	if err := r.clearStatus(ctx, bmc, dropped(had, content)); err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	object.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("VirtualMachineBMC"))
	object.SetNamespace(bmc.Namespace)
	object.SetName(bmc.Name)
	object.SetUID(bmc.UID)
	err = r.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, client.FieldOwner(fieldManager))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write status: %w", err))
	}
	return nil
}

// clearStatus takes fields out of a status that server-side apply would leave,
// since the controller of an earlier line has them too.
func (r *bmcs) clearStatus(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, fields map[string]any) error {
	if len(fields) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": bmc.UID}, "status": fields})
	if err != nil {
		return fmt.Errorf("clear status: %w", err)
	}
	err = r.client.Status().Patch(ctx, bmc.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("clear status: %w", err))
	}
	return nil
}

// dropped returns, as a merge patch, the fields that objects no longer have.
func dropped(had, has map[string]any) map[string]any {
	fields := map[string]any{}
	for key, old := range had {
		now, ok := has[key]
		if !ok {
			fields[key] = nil
			continue
		}
		oldMap, one := old.(map[string]any)
		nowMap, two := now.(map[string]any)
		if one && two {
			if inner := dropped(oldMap, nowMap); len(inner) > 0 {
				fields[key] = inner
			}
		}
	}
	return fields
}

// shorten cuts a text to what a condition should have.
func shorten(text string) string {
	const most = 1024
	if len(text) > most {
		text = text[:most]
	}
	return text
}
