// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubevirtbmc.dev/api/v1beta1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// protocols are those that frontends speak.
var protocols = []registryv1.Protocol{registryv1.Protocol_PROTOCOL_IPMI, registryv1.Protocol_PROTOCOL_REDFISH}

// behindTime is what a cache is given to learn of a change.
const behindTime = 100 * time.Millisecond

// routing keeps the EndpointSlices of BMCs: clients reach the replica that the
// registry says is the owner. It reads caches alone and writes what has changed.
type routing struct {
	client client.Client
	// live reads from the API server what no cache has.
	live     client.Reader
	registry *registry.Registry
	ports    *ports
	defaults Defaults
	start    *start
	moves    *moves
	// namespace is that of the shared frontends' pods.
	namespace string
	// fresh are EndpointSlices that the cache does not have yet.
	fresh freshSlices
	// agents are the objects of dedicated agents; nil: there are none.
	agents *optional
	// taken is told of EndpointSlices of others, and bmcs of the BMCs to look at again
	// for that.
	taken *takenSlices
	bmcs  *queue
}

// freshSlices are EndpointSlices as they were moved last, so that none is moved
// again because the cache is behind.
type freshSlices struct {
	mu sync.Mutex
	// list has the slices of each BMC, by their names.
	list map[registry.Ref]map[string]freshSlice
}

// freshSlice is an EndpointSlice that the cache had in another version before.
type freshSlice struct {
	before string
	is     *discoveryv1.EndpointSlice
}

// put notes what became of a BMC's EndpointSlice of the cache.
func (f *freshSlices) put(ref registry.Ref, cached, is *discoveryv1.EndpointSlice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		f.list = map[registry.Ref]map[string]freshSlice{}
	}
	if f.list[ref] == nil {
		f.list[ref] = map[string]freshSlice{}
	}
	f.list[ref][is.Name] = freshSlice{cached.ResourceVersion, is}
}

// newest returns a BMC's EndpointSlices of the cache, those as they are that the
// cache is behind with. What is known of others is dropped: the cache has seen it,
// or they are gone.
func (f *freshSlices) newest(ref registry.Ref, cached []discoveryv1.EndpointSlice) map[string]*discoveryv1.EndpointSlice {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := make(map[string]*discoveryv1.EndpointSlice, len(cached))
	behind := map[string]freshSlice{}
	for i := range cached {
		is := &cached[i]
		newest[is.Name] = is
		if fresh, ok := f.list[ref][is.Name]; ok && fresh.before == is.ResourceVersion && fresh.is.UID == is.UID {
			newest[is.Name], behind[is.Name] = fresh.is, fresh
		}
	}
	if len(behind) == 0 {
		delete(f.list, ref)
	} else {
		f.list[ref] = behind
	}
	return newest
}

// Reconcile implements reconcile.Reconciler.
func (r *routing) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := r.start.wait(ctx); err != nil {
		return reconcile.Result{}, err
	}
	ref := registry.Ref{Namespace: request.Namespace, Name: request.Name}
	result, err := r.reconcile(ctx, request, ref)
	if err == nil && result.RequeueAfter == 0 {
		r.moves.routed(ref)
	}
	return result, err
}

func (r *routing) reconcile(ctx context.Context, request reconcile.Request, ref registry.Ref) (reconcile.Result, error) {
	if r.start.pending(ref) {
		return reconcile.Result{}, nil // Until it is known whether it is served at all.
	}
	var bmc v1beta1.VirtualMachineBMC
	if err := r.client.Get(ctx, request.NamespacedName, &bmc); err != nil {
		if apierrors.IsNotFound(err) {
			r.fresh.newest(ref, nil) // Its EndpointSlices go with it.
			r.taken.set(ref, nil)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	w := wantedOf(&bmc, r.defaults)
	var has discoveryv1.EndpointSliceList
	if err := r.client.List(ctx, &has, client.InNamespace(w.ref.Namespace), client.MatchingFields{indexBMC: w.ref.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list EndpointSlices: %w", err)
	}
	newest := r.fresh.newest(ref, has.Items)
	wants := map[string]endpointSlice{}
	for _, protocol := range protocols {
		status, ok := r.registry.Status(ref, protocol)
		if !ok || bmc.DeletionTimestamp != nil {
			continue
		}
		w.mode = modeOf(status.Agent)
		replica := status.Replica
		if replica == "" {
			// No replica has subscribed, or none has to a controller that has just
			// started: clients stay where they are.
			replica = replicaIn(bmc.Status.Frontend, protocol)
		}
		pods, namespace := r.pods(w)
		if pods == nil {
			// An agent that can't be seen: its clients stay where they are.
			has.Items = slices.DeleteFunc(has.Items, func(is discoveryv1.EndpointSlice) bool { return is.Name == sliceName(w, protocol) })
			continue
		}
		pod, err := findPod(ctx, pods, client.ObjectKey{Namespace: namespace, Name: replica})
		if err != nil {
			return reconcile.Result{}, err
		}
		want := sliceOf(w, protocol, r.ports.ofBMC(&w), pod)
		wants[want.name] = want
	}
	behind := false // The cache is.
	for i := range has.Items {
		cached := &has.Items[i]
		is := newest[cached.Name]
		want, ok := wants[is.Name]
		switch {
		case ok && want.inSync(is):
			delete(wants, is.Name)
		case ok && want.moves(is):
			delete(wants, is.Name)
			moved := want.moved(is)
			err := r.client.Patch(ctx, moved, client.MergeFromWithOptions(is, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
			switch {
			case err == nil:
				r.fresh.put(ref, cached, moved)
			case apierrors.IsConflict(err), apierrors.IsNotFound(err):
				behind = true
			default:
				return reconcile.Result{}, fmt.Errorf("move EndpointSlice %s: %w", is.Name, err)
			}
		case ok && ownedBy(is, w.uid) && is.AddressType == want.family:
		case !ownedBy(is, w.uid):
		default:
			// Not served any more, or of another family, which can't be changed.
			uid := is.UID
			if err := r.client.Delete(ctx, is, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, fmt.Errorf("delete EndpointSlice %s: %w", is.Name, err)
			}
		}
	}
	taken := map[string]trouble{}
	for _, want := range wants {
		t, err := r.apply(ctx, w, &want)
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return reconcile.Result{}, nil
		case apierrors.IsConflict(err):
			behind = true // It has come or gone meanwhile.
		case err != nil:
			return reconcile.Result{}, err
		case t != nil:
			taken[want.name] = *t
		}
	}
	if r.taken.set(ref, taken) {
		r.bmcs.add(ref)
	}
	switch {
	case behind:
		return reconcile.Result{RequeueAfter: behindTime}, nil
	case len(taken) > 0:
		return reconcile.Result{RequeueAfter: retryTime}, nil
	}
	return reconcile.Result{}, nil
}

// apply makes an EndpointSlice what it is to be, if it is the BMC's or not there.
// What is somebody else's is left alone, which is the trouble.
func (r *routing) apply(ctx context.Context, w wanted, want *endpointSlice) (*trouble, error) {
	// One that somebody else has made may have no label and not be in the cache.
	is := &discoveryv1.EndpointSlice{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: want.namespace, Name: want.name}, is)
	switch {
	case apierrors.IsNotFound(err):
		is.UID = ""
	case err != nil:
		return nil, fmt.Errorf("get EndpointSlice %s: %w", want.name, err)
	case !ownedBy(is, w.uid):
		t := notOwned(ctx, r.client, "EndpointSlice", is, w.machine, v1beta1.ReasonEndpointSliceNotOwned, v1beta1.ReasonFrontendPending)
		return &t, nil
	}
	if err := r.client.Apply(ctx, want.apply(is.UID), client.ForceOwnership, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("apply EndpointSlice %s: %w", want.name, err)
	}
	return nil, nil
}

// pods reads the pods of what serves a BMC, and in which namespace those are; nil:
// they can't be seen.
func (r *routing) pods(w wanted) (client.Reader, string) {
	if w.agent() == "" {
		return r.client, r.namespace
	}
	if r.agents == nil {
		return nil, ""
	}
	pods, _ := r.agents.reader(w.ref.Namespace)
	return pods, w.ref.Namespace
}

// findPod returns the pod of a replica; nil: there is none, or it has no address yet.
func findPod(ctx context.Context, pods client.Reader, key client.ObjectKey) (*corev1.Pod, error) {
	if key.Name == "" {
		return nil, nil
	}
	var pod corev1.Pod
	err := pods.Get(ctx, key, &pod)
	if apierrors.IsNotFound(err) || err == nil && pod.Status.PodIP == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find pod of replica %s: %w", key.Name, err)
	}
	return &pod, nil
}
