// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bmcresource knows the BMCs of a cluster, which are its
// VirtualMachineBMC resources: whose machine each is, and the services' state
// that is kept in an annotation of each.
package bmcresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	"kubevirtbmc.dev/pkg/logkey"
)

const resource = "virtualmachinebmcs"

// Config of a store. REST and Log are needed.
type Config struct {
	// REST is the API server. Its limits of QPS are used as they are.
	REST *rest.Config
	// Namespaces to serve; empty: all.
	Namespaces []string
	Log        *slog.Logger
}

// Store has the BMCs of a cluster, from a watch. It implements
// hypervisor.Resolver.
type Store struct {
	log       *slog.Logger
	client    *rest.RESTClient
	informers map[string]cache.SharedIndexInformer
	// handlers tell when all that was there at the start has been looked at.
	handlers []cache.ResourceEventHandlerRegistration
	// trouble is why the cache is not filled.
	trouble atomic.Pointer[string]

	mu sync.RWMutex
	// machines has the BMCs of each machine, the one that has it first.
	machines    map[hypervisor.Ref][]*v1beta1.VirtualMachineBMC
	subscribers follow.Subscribers
}

// New makes a store. It knows nothing until Run has filled its cache.
func New(config Config) (*Store, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, v1beta1.GroupVersion)
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make BMC client: %w", err)
	}
	restConfig := rest.CopyConfig(config.REST)
	restConfig.APIPath, restConfig.GroupVersion = "/apis", &v1beta1.GroupVersion
	restConfig.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make BMC client: %w", err)
	}
	s := &Store{
		log:       config.Log,
		client:    client,
		informers: map[string]cache.SharedIndexInformer{},
		machines:  map[hypervisor.Ref][]*v1beta1.VirtualMachineBMC{},
	}
	namespaces := config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		if _, ok := s.informers[namespace]; ok {
			continue
		}
		if s.informers[namespace], err = s.newInformer(namespace); err != nil {
			return nil, fmt.Errorf("watch BMCs: %w", err)
		}
	}
	return s, nil
}

func (s *Store) newInformer(namespace string) (cache.SharedIndexInformer, error) {
	informer := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(s.client, resource, namespace, fields.Everything()),
		&v1beta1.VirtualMachineBMC{}, cache.SharedIndexInformerOptions{})
	if err := informer.SetTransform(trim); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		text := err.Error()
		if before := s.trouble.Swap(&text); before == nil || *before != text {
			s.log.Warn("can't watch BMCs", slog.String(logkey.Error, text))
		}
	}); err != nil {
		return nil, err
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.changed(nil, object) },
		UpdateFunc: s.changed,
		DeleteFunc: func(object any) { s.changed(object, nil) },
	})
	s.handlers = append(s.handlers, handler)
	return informer, err
}

// trim drops what is not asked for, before it is cached.
func trim(object any) (any, error) {
	bmc, ok := object.(*v1beta1.VirtualMachineBMC)
	if !ok {
		return object, nil
	}
	meta := metav1.ObjectMeta{
		Namespace:         bmc.Namespace,
		Name:              bmc.Name,
		UID:               bmc.UID,
		ResourceVersion:   bmc.ResourceVersion,
		CreationTimestamp: bmc.CreationTimestamp,
		DeletionTimestamp: bmc.DeletionTimestamp,
	}
	for _, key := range []string{v1beta1.AnnotationState, machineAnnotation} {
		if value, ok := bmc.Annotations[key]; ok {
			if meta.Annotations == nil {
				meta.Annotations = map[string]string{}
			}
			meta.Annotations[key] = value
		}
	}
	return &v1beta1.VirtualMachineBMC{ObjectMeta: meta, Spec: bmc.Spec}, nil
}

// Run keeps the cache filled until the context ends. A cluster without the
// resource, or without an API server that answers, is waited for.
func (s *Store) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	for _, informer := range s.informers {
		watches.Go(func() { informer.RunWithContext(ctx) })
	}
	watches.Wait()
	return nil
}

// Ready tells whether the cache is filled.
func (s *Store) Ready() bool {
	for _, handler := range s.handlers {
		if !handler.HasSynced() {
			return false
		}
	}
	return true
}

// checkReady is hypervisor.ErrUnavailable, with the reason where it is known,
// until the cache is filled.
func (s *Store) checkReady() error {
	if s.Ready() {
		return nil
	}
	if trouble := s.trouble.Load(); trouble != nil {
		return fmt.Errorf("%w: BMCs: %s", hypervisor.ErrUnavailable, *trouble)
	}
	return fmt.Errorf("%w: reading the cluster's BMCs", hypervisor.ErrUnavailable)
}

// Resolve returns the machine of a BMC; hypervisor.ErrNoBMC where there is none
// of that name, where it names no machine, and where another has its machine.
func (s *Store) Resolve(namespace, name string) (hypervisor.Ref, error) {
	if err := s.checkReady(); err != nil {
		return hypervisor.Ref{}, err
	}
	bmc, err := s.get(namespace, name)
	if err != nil {
		return hypervisor.Ref{}, err
	}
	if bmc == nil {
		return hypervisor.Ref{}, hypervisor.ErrNoBMC
	}
	machine, ok := machineOf(bmc)
	if !ok {
		return hypervisor.Ref{}, fmt.Errorf("%w: %s/%s names no machine", hypervisor.ErrNoBMC, namespace, name)
	}
	if owner := s.Of(machine); owner != nil && owner.Name != name {
		return hypervisor.Ref{}, fmt.Errorf("%w: %s belongs to BMC %s", hypervisor.ErrNoBMC, machine, owner.Name)
	}
	return machine, nil
}

// UID returns the UID of a BMC; empty when there is none of that name.
func (s *Store) UID(namespace, name string) types.UID {
	bmc, err := s.get(namespace, name)
	if err != nil || bmc == nil {
		return ""
	}
	return bmc.UID
}

func (s *Store) get(namespace, name string) (*v1beta1.VirtualMachineBMC, error) {
	informer := s.informers[namespace]
	if informer == nil {
		informer = s.informers[metav1.NamespaceAll]
	}
	if informer == nil {
		return nil, nil
	}
	object, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, err
	}
	return object.(*v1beta1.VirtualMachineBMC), nil
}

// Of returns the BMC that has a machine, not to be changed; nil when none has.
func (s *Store) Of(machine hypervisor.Ref) *v1beta1.VirtualMachineBMC {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if bmcs := s.machines[machine]; len(bmcs) > 0 {
		return bmcs[0]
	}
	return nil
}

// cached returns the BMC with that UID if it names the machine, else nil.
func (s *Store) cached(machine hypervisor.Ref, uid types.UID) *v1beta1.VirtualMachineBMC {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, bmc := range s.machines[machine] {
		if bmc.UID == uid {
			return bmc
		}
	}
	return nil
}

// machineOf returns the machine that a BMC names.
func machineOf(bmc *v1beta1.VirtualMachineBMC) (machine hypervisor.Ref, ok bool) {
	name := bmc.MachineName()
	return hypervisor.Ref{Namespace: bmc.Namespace, Name: name}, name != ""
}

// changed is told of each change of a BMC.
func (s *Store) changed(before, after any) {
	touched := map[hypervisor.Ref]bool{}
	s.mu.Lock()
	if gone, ok := before.(cache.DeletedFinalStateUnknown); ok {
		before = gone.Obj
	}
	if bmc, ok := before.(*v1beta1.VirtualMachineBMC); ok {
		if machine, ok := machineOf(bmc); ok {
			touched[machine] = true
			s.remove(machine, bmc)
		}
	}
	if bmc, ok := after.(*v1beta1.VirtualMachineBMC); ok {
		if machine, ok := machineOf(bmc); ok {
			touched[machine] = true
			s.insert(machine, bmc)
		}
	}
	s.mu.Unlock()
	for machine := range touched {
		s.subscribers.Changed(machine)
	}
}

func (s *Store) remove(machine hypervisor.Ref, bmc *v1beta1.VirtualMachineBMC) {
	var left []*v1beta1.VirtualMachineBMC
	for _, other := range s.machines[machine] {
		if other.Name != bmc.Name {
			left = append(left, other)
		}
	}
	if left == nil {
		delete(s.machines, machine)
		return
	}
	s.machines[machine] = left
}

// insert keeps those of a machine in the order that decides whose the machine is.
func (s *Store) insert(machine hypervisor.Ref, bmc *v1beta1.VirtualMachineBMC) {
	list := s.machines[machine]
	at := len(list)
	for at > 0 && Precedes(bmc, list[at-1]) {
		at--
	}
	fresh := make([]*v1beta1.VirtualMachineBMC, 0, len(list)+1)
	fresh = append(fresh, list[:at]...)
	fresh = append(fresh, bmc)
	s.machines[machine] = append(fresh, list[at:]...)
}

// Precedes tells whether of two BMCs with the same machine the first has it: one that
// is being deleted gives way, else the one that was made first has it, and by name
// one of two that were made in the same second.
func Precedes(a, b *v1beta1.VirtualMachineBMC) bool {
	if going := a.DeletionTimestamp != nil; going != (b.DeletionTimestamp != nil) {
		return !going
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// Subscribe calls changed after each change of a machine's BMC. The function must
// return at once.
func (s *Store) Subscribe(changed func(machine hypervisor.Ref)) (cancel func()) {
	return s.subscribers.Subscribe(changed)
}

// errTimeout says that the cache did not show a change in time.
var errTimeout = errors.New("the watch does not show the change yet")

// await waits until done, looking again at each change of the machine's BMC.
func (s *Store) await(ctx context.Context, machine hypervisor.Ref, limit time.Duration, done func() bool) error {
	changes := make(chan struct{}, 1)
	cancel := s.Subscribe(func(changed hypervisor.Ref) {
		if changed != machine {
			return
		}
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	defer cancel()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for !done() {
		select {
		case <-changes:
		case <-timeout.C:
			return errTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
