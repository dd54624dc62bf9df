// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// BMCs is the resource of BMCs.
var BMCs = schema.GroupVersionResource{Group: "bmc.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinebmcs"}

const (
	// maxTries is how often a change is made that others overtake.
	maxTries = 12
	// firstPause is the longest pause before the second try; it doubles.
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
	// cachedStates is how many BMCs' event logs are kept in memory.
	cachedStates = 256
	// unseenTime is how long an object that was just created counts as there
	// although the watch has not seen it.
	unseenTime = 10 * time.Second
	// writeTime is how long a batch may take to be written.
	writeTime = 20 * time.Second
)

// Config of a store.
type Config struct {
	// Core reads and writes ConfigMaps and Secrets.
	Core typedcorev1.CoreV1Interface
	// Metadata watches BMCs, ConfigMaps and Secrets.
	Metadata metadata.Interface
	// Namespaces to serve; empty: all.
	Namespaces []string
	Log        *slog.Logger
	// Objects reads BMCs.
	Objects dynamic.Interface
	// AccountsChanged is told of BMCs whose accounts may have changed; nil: nobody
	// is.
	AccountsChanged func(bmc registry.Ref)
}

// Store keeps the state of BMCs.
type Store struct {
	config   Config
	bmcs     []cache.SharedIndexInformer
	states   *keeper
	accounts *keeper
	// subscriptions are apart from the log: their headers are secrets.
	subscriptions *keeper
	logs          *logs
	hub           *hub
	troubles      sync.Map // what was last said of each resource
}

// New makes a store. It answers nothing before Run has read which BMCs there
// are.
func New(config Config) (*Store, error) {
	if config.Core == nil || config.Metadata == nil || config.Objects == nil || config.Log == nil {
		return nil, errors.New("make state store: clients and log are needed")
	}
	if len(config.Namespaces) == 0 {
		config.Namespaces = []string{metav1.NamespaceAll}
	}
	s := &Store{config: config}
	s.states = &keeper{
		store: s, kind: configMaps{config.Core}, content: contentState, suffix: stateSuffix, seen: lru.New(cachedStates), keep: true,
	}
	s.accounts = &keeper{store: s, kind: secrets{config.Core}, content: contentAccounts, suffix: accountsSuffix, seen: lru.New(cachedStates)}
	s.subscriptions = &keeper{store: s, kind: secrets{config.Core}, content: contentSubscriptions, suffix: subscriptionsSuffix, seen: lru.New(cachedStates)}
	s.hub = newHub(s)
	s.logs = &logs{store: s, writers: map[registry.Ref]*writer{}}
	for _, namespace := range config.Namespaces {
		if err := s.watch(namespace); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// watch makes the caches of one namespace, or of all.
func (s *Store) watch(namespace string) error {
	informer := func(resource schema.GroupVersionResource, content string, handle func(changed *metav1.PartialObjectMetadata, gone bool)) (cache.SharedIndexInformer, error) {
		i := metadatainformer.NewFilteredMetadataInformer(s.config.Metadata, resource, namespace, 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			func(options *metav1.ListOptions) {
				if content != "" {
					options.LabelSelector = LabelContent + "=" + content
				}
			}).Informer()
		if err := i.SetTransform(trim); err != nil {
			return nil, err
		}
		if err := i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			s.watchFailed(ctx, resource.Resource, err)
		}); err != nil {
			return nil, err
		}
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { told(object, false, handle) },
			UpdateFunc: func(_, object any) { told(object, false, handle) },
			DeleteFunc: func(object any) { told(object, true, handle) },
		})
		return i, err
	}
	core := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	for _, w := range []struct {
		resource schema.GroupVersionResource
		content  string
		to       *[]cache.SharedIndexInformer
		handle   func(*metav1.PartialObjectMetadata, bool)
	}{
		{BMCs, "", &s.bmcs, s.bmcChanged},
		{core("configmaps"), contentState, &s.states.informers, s.states.changed},
		{core("secrets"), contentAccounts, &s.accounts.informers, s.accounts.changed},
		{core("secrets"), contentSubscriptions, &s.subscriptions.informers, s.subscriptions.changed},
	} {
		i, err := informer(w.resource, w.content, w.handle)
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.resource.Resource, err)
		}
		*w.to = append(*w.to, i)
	}
	return nil
}

// watchFailed says why a cache is not filled, once.
func (s *Store) watchFailed(ctx context.Context, resource string, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	if before, _ := s.troubles.Swap(resource, err.Error()); before != err.Error() {
		s.config.Log.LogAttrs(ctx, slog.LevelWarn, "can't watch what a BMC's state is kept in",
			slog.String("resource", resource), slog.String(logkey.Error, err.Error()))
	}
}

// trim drops what the caches have no use for.
func trim(in any) (any, error) {
	if m, ok := in.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations = nil, nil
	}
	return in, nil
}

func told(object any, gone bool, handle func(*metav1.PartialObjectMetadata, bool)) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if m, ok := object.(*metav1.PartialObjectMetadata); ok {
		handle(m, gone)
	}
}

// Run keeps the caches until the context ends, and then writes what has been
// accepted.
func (s *Store) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, informers := range [][]cache.SharedIndexInformer{s.bmcs, s.states.informers, s.accounts.informers, s.subscriptions.informers} {
		for _, i := range informers {
			group.Go(func() { i.RunWithContext(ctx) })
		}
	}
	group.Go(func() { s.hub.run(ctx) })
	group.Wait()
	s.logs.wait()
	return nil
}

// Ready tells whether the caches are filled.
func (s *Store) Ready() bool {
	return synced(s.bmcs) && synced(s.states.informers) && synced(s.accounts.informers) && synced(s.subscriptions.informers)
}

func synced(informers []cache.SharedIndexInformer) bool {
	for _, i := range informers {
		if !i.HasSynced() {
			return false
		}
	}
	return true
}

// find returns what the caches know of an object; nil: it is not there.
func find(informers []cache.SharedIndexInformer, namespace, name string) *metav1.PartialObjectMetadata {
	for _, i := range informers {
		if object, ok, err := i.GetStore().GetByKey(namespace + "/" + name); err == nil && ok {
			m, _ := object.(*metav1.PartialObjectMetadata)
			return m
		}
	}
	return nil
}

// uid returns the UID of a BMC. Errors: BMC_NOT_FOUND, HYPERVISOR_UNAVAILABLE
// while that is not known.
func (s *Store) uid(ref registry.Ref) (types.UID, error) {
	if bmc := find(s.bmcs, ref.Namespace, ref.Name); bmc != nil {
		return bmc.UID, nil
	}
	if !s.Ready() {
		return "", errNotReady()
	}
	return "", errNotFound(ref)
}

// UID returns the UID of a BMC; empty when none of that name is known.
func (s *Store) UID(namespace, name string) types.UID {
	if bmc := find(s.bmcs, namespace, name); bmc != nil {
		return bmc.UID
	}
	return ""
}

// bmcChanged is told of each change of a BMC.
func (s *Store) bmcChanged(m *metav1.PartialObjectMetadata, gone bool) {
	ref := registry.Ref{Namespace: m.Namespace, Name: m.Name}
	if gone {
		s.hub.end(ref, errNotFound(ref))
	}
}

// keeper keeps one object for each BMC.
type keeper struct {
	store     *Store
	kind      kind
	content   string
	suffix    string
	informers []cache.SharedIndexInformer
	// seen are objects that were read or written; without contents unless keep.
	seen *lru.Cache
	keep bool
}

// seen is an object as it was last read or written.
type seen struct {
	object *object
	at     time.Time
}

// changed is told of each change of an object.
func (k *keeper) changed(m *metav1.PartialObjectMetadata, gone bool) {
	for _, owner := range m.OwnerReferences {
		if owner.Kind != ownerKind {
			continue
		}
		ref := registry.Ref{Namespace: m.Namespace, Name: owner.Name}
		if gone {
			k.seen.Remove(ref)
		}
		switch {
		case k.content == contentState:
			k.store.hub.refresh(ref)
		case k.content == contentAccounts && k.store.config.AccountsChanged != nil:
			k.store.config.AccountsChanged(ref)
		}
	}
}

// read returns the object of a BMC, from memory if it is the newest that the
// watch knows of; nil when it has none. It must not be changed.
func (k *keeper) read(ctx context.Context, ref registry.Ref, uid types.UID) (*object, error) {
	name := nameOf(ref.Name, k.suffix)
	known := find(k.informers, ref.Namespace, name)
	if value, ok := k.seen.Get(ref); ok && k.keep {
		last, _ := value.(seen)
		if known == nil && time.Since(last.at) < unseenTime || known != nil && known.UID == last.object.UID && !newer(known.ResourceVersion, last.object.ResourceVersion) {
			return k.ours(uid, last.object)
		}
	}
	if known == nil && synced(k.informers) {
		if _, written := k.seen.Get(ref); !written {
			return nil, nil
		}
	}
	o, err := k.get(ctx, ref, name)
	if err != nil || o == nil {
		return nil, err
	}
	return k.ours(uid, o)
}

// get reads the object; nil when it is not there.
func (k *keeper) get(ctx context.Context, ref registry.Ref, name string) (*object, error) {
	o, err := k.kind.get(ctx, ref.Namespace, name)
	if apierrors.IsNotFound(err) {
		k.seen.Remove(ref)
		return nil, nil
	}
	if err == nil {
		k.remember(ref, o)
	}
	return o, err
}

func (k *keeper) remember(ref registry.Ref, o *object) {
	if !k.keep {
		o = &object{ObjectMeta: metav1.ObjectMeta{UID: o.UID, ResourceVersion: o.ResourceVersion}}
	}
	k.seen.Add(ref, seen{o, time.Now()})
}

// newer tells whether a resource version is newer than another; one that can't
// be compared is.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// ours returns the object if it is that of the BMC; nil when it was that of an
// earlier one of the same name; an error when it is somebody else's.
func (k *keeper) ours(uid types.UID, o *object) (*object, error) {
	switch owner := o.owner(); {
	case owner == uid:
		return o, nil
	case owner != "":
		return nil, nil
	case o.Labels[LabelContent] == k.content:
		return o, nil
	default:
		return nil, grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "%s %s is not the BMC's own", o.Namespace, o.Name)
	}
}

// change changes the object of a BMC and returns it. The function gets the newest
// contents, which it may be called for several times; when it returns errUnchanged
// nothing is written.
func (k *keeper) change(ctx context.Context, ref registry.Ref, apply func(data map[string][]byte) error) (*object, error) {
	pause := firstPause
	for try := range maxTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(rand.N(pause)): //nolint:gosec // Jitter is no secret.
			}
			pause = min(2*pause, maxPause)
		}
		o, err := k.try(ctx, ref, try > 0, apply)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !errors.Is(err, errGone) {
			return o, k.store.translate(ctx, ref, err)
		}
	}
	return nil, grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "the state of %s is being changed by others", ref)
}

var (
	// errUnchanged says that there is nothing to write.
	errUnchanged = errors.New("unchanged")
	// errGone says that the object was deleted while it was being changed.
	errGone = errors.New("object is gone")
)

// try makes one attempt at a change.
func (k *keeper) try(ctx context.Context, ref registry.Ref, again bool, apply func(map[string][]byte) error) (*object, error) {
	uid, err := k.store.uid(ref)
	if err != nil {
		return nil, err
	}
	name := nameOf(ref.Name, k.suffix)
	if again {
		k.seen.Remove(ref) // It was not the newest.
	}
	before, err := k.current(ctx, ref, uid, name)
	if err != nil {
		return nil, err
	}
	after := &object{metav1.ObjectMeta{Namespace: ref.Namespace, Name: name}, map[string][]byte{}}
	if before != nil {
		after = before.clone()
		if after.data == nil {
			after.data = map[string][]byte{}
		}
	}
	if err := apply(after.data); errors.Is(err, errUnchanged) {
		return after, nil
	} else if err != nil {
		return nil, err
	}
	after.own(ref, uid, k.content)
	write := k.kind.create
	if before != nil {
		write = k.kind.update
	}
	written, err := write(ctx, after)
	if before != nil && apierrors.IsNotFound(err) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	k.remember(ref, written)
	return written, nil
}

// current returns the object to change; nil when there is none. One that an
// earlier BMC of that name left is deleted.
func (k *keeper) current(ctx context.Context, ref registry.Ref, uid types.UID, name string) (*object, error) {
	if value, ok := k.seen.Get(ref); ok && k.keep {
		last, _ := value.(seen)
		if o, err := k.ours(uid, last.object); o != nil && err == nil {
			return o, nil // If it is not the newest, the API server will say so.
		}
	}
	o, err := k.get(ctx, ref, name)
	if err != nil || o == nil {
		return nil, err
	}
	own, err := k.ours(uid, o)
	if own != nil || err != nil {
		return own, err
	}
	k.store.config.Log.InfoContext(ctx, "state of an earlier BMC of the same name is deleted",
		logkey.Namespace, ref.Namespace, logkey.BMC, ref.Name, "object", name)
	err = k.kind.delete(ctx, ref.Namespace, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	k.seen.Remove(ref)
	return nil, nil
}
