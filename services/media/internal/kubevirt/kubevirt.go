// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	kvv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// client-go's own limits of 5 and 10 are meant for one controller, not for
	// thousands of BMCs; the server has its own fairness.
	defaultQPS   = 100
	defaultBurst = 200

	// requestTimeout bounds each request, watches aside.
	requestTimeout = 15 * time.Second
	// settleTimeout bounds the wait until a watch shows a write.
	settleTimeout = 10 * time.Second

	resourceVMs         = "virtualmachines"
	resourceVMIs        = "virtualmachineinstances"
	resourceDataVolumes = "datavolumes"
	resourceKubeVirts   = "kubevirts"
)

// Prepared is an image that CDI can import.
type Prepared struct {
	// URL is where CDI fetches it.
	URL string
	// Bytes is the size of the medium in it.
	Bytes int64
	// CertConfigMap has the certificates that CDI has to trust; empty: none but the
	// usual.
	CertConfigMap string
}

// Trust says which certificates of an image's server are good. The zero Trust is
// those that the system trusts.
type Trust struct {
	// InsecureSkipVerify takes any.
	InsecureSkipVerify bool
	// Namespace and ConfigMap name the only ones that may sign; empty: the
	// system's.
	Namespace, ConfigMap string
}

// Preferences are what one machine's BMC has to say about its media.
type Preferences struct {
	// Class and VolumeMode take the place of those of Storage unless they are
	// empty.
	Class, VolumeMode string
	Trust             Trust
}

// Source makes images ready for CDI.
type Source interface {
	// Prepare finds the size of an image and a URL at which CDI gets it, as
	// often as it likes.
	Prepare(ctx context.Context, image hypervisor.Image, trust Trust) (Prepared, error)
}

// Storage says what media are stored on.
type Storage struct {
	// Class is the storage class; empty: CDI's default.
	Class string
	// VolumeMode is Filesystem or Block; empty: what CDI knows of the class.
	VolumeMode string
	// MarginBytes are added to the size of each medium. What a file system needs
	// is CDI's affair.
	MarginBytes int64
}

// Config of a hypervisor.
type Config struct {
	// REST is the API server.
	REST *rest.Config
	// Namespaces to serve; empty: all.
	Namespaces []string
	Source     Source
	Storage    Storage
	// Preferences returns those of a machine; nil: there are none.
	Preferences func(hypervisor.Ref) Preferences
	Log         *slog.Logger
}

// Hypervisor is KubeVirt with CDI. It implements hypervisor.Media.
type Hypervisor struct {
	log       *slog.Logger
	source    Source
	storage   Storage
	prefers   func(hypervisor.Ref) Preferences
	kubevirt  *rest.RESTClient
	cdi       *rest.RESTClient
	caches    map[string]*caches
	kubevirts *watch
	hub       *follow.Hub
	ready     atomic.Bool

	subscribers follow.Subscribers
}

var _ hypervisor.Media = (*Hypervisor)(nil)

// caches hold the objects of one namespace, or of all.
type caches struct{ vms, vmis, volumes *watch }

// watch is an informer that remembers what is wrong with it.
type watch struct {
	cache.SharedIndexInformer
	resource string
	handler  cache.ResourceEventHandlerRegistration
	trouble  atomic.Pointer[string]
}

// synced tells whether all that was there at the start is in the cache, and why
// not.
func (w *watch) synced() (bool, string) {
	if w.handler.HasSynced() {
		return true, ""
	}
	if trouble := w.trouble.Load(); trouble != nil {
		return false, *trouble
	}
	return false, "reading " + w.resource
}

// New makes a hypervisor. It knows nothing until Run has filled its caches.
func New(config Config) (*Hypervisor, error) {
	restConfig := rest.CopyConfig(config.REST)
	restConfig.QPS, restConfig.Burst = defaultQPS, defaultBurst
	restConfig.UserAgent = "kubevirtbmc-media"
	// What the API deprecates in a user's machine is the user's affair.
	restConfig.WarningHandlerWithContext = rest.NoWarnings{}
	h := &Hypervisor{
		log: config.Log, source: config.Source, storage: config.Storage,
		caches: map[string]*caches{}, hub: follow.NewHub(),
	}
	if h.prefers = config.Preferences; h.prefers == nil {
		h.prefers = func(hypervisor.Ref) Preferences { return Preferences{} }
	}
	var err error
	if h.kubevirt, err = client(restConfig, kvv1.GroupVersion, kvv1.AddToScheme); err != nil {
		return nil, fmt.Errorf("make KubeVirt client: %w", err)
	}
	if h.cdi, err = client(restConfig, cdiv1.SchemeGroupVersion, cdiv1.AddToScheme); err != nil {
		return nil, fmt.Errorf("make CDI client: %w", err)
	}
	if h.kubevirts, err = h.watch(h.kubevirt, resourceKubeVirts, metav1.NamespaceAll, "", &kvv1.KubeVirt{}); err != nil {
		return nil, err
	}
	namespaces := config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		if h.caches[namespace] != nil {
			continue
		}
		c := &caches{}
		if c.vms, err = h.watch(h.kubevirt, resourceVMs, namespace, "", &kvv1.VirtualMachine{}); err != nil {
			return nil, err
		}
		if c.vmis, err = h.watch(h.kubevirt, resourceVMIs, namespace, "", &kvv1.VirtualMachineInstance{}); err != nil {
			return nil, err
		}
		if c.volumes, err = h.watch(h.cdi, resourceDataVolumes, namespace, machineLabel, &cdiv1.DataVolume{}); err != nil {
			return nil, err
		}
		h.caches[namespace] = c
	}
	return h, nil
}

// client makes a client of one API group.
func client(config *rest.Config, group schema.GroupVersion, add func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, group)
	if err := add(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &group
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(config)
}

// watch makes an informer of what has a label, or of all.
func (h *Hypervisor) watch(client *rest.RESTClient, resource, namespace, label string, object runtime.Object) (*watch, error) {
	list := cache.NewFilteredListWatchFromClient(client, resource, namespace, func(options *metav1.ListOptions) {
		options.LabelSelector = label
	})
	w := &watch{SharedIndexInformer: cache.NewSharedIndexInformerWithOptions(list, object, cache.SharedIndexInformerOptions{}), resource: resource}
	if err := w.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	if err := w.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		text := resource + ": " + err.Error()
		if before := w.trouble.Swap(&text); before == nil || *before != text {
			h.log.Warn("can't watch", slog.String(logkey.Error, text))
		}
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	handler, err := w.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    h.changed,
		UpdateFunc: func(_, object any) { h.changed(object) },
		DeleteFunc: h.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	w.handler = handler
	return w, nil
}

// changed is told of each change of an object.
func (h *Hypervisor) changed(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	switch o := object.(type) {
	case *kvv1.VirtualMachine:
		h.notify(hypervisor.Ref{Namespace: o.Namespace, Name: o.Name})
	case *kvv1.VirtualMachineInstance:
		h.notify(hypervisor.Ref{Namespace: o.Namespace, Name: o.Name})
	case *cdiv1.DataVolume:
		for _, owner := range o.OwnerReferences {
			if owner.Kind == kvv1.VirtualMachineGroupVersionKind.Kind {
				h.notify(hypervisor.Ref{Namespace: o.Namespace, Name: owner.Name})
			}
		}
	case *kvv1.KubeVirt:
		// The feature gates concern each machine.
		for _, c := range h.caches {
			for _, vm := range list[kvv1.VirtualMachine](c.vms) {
				h.notify(hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name})
			}
		}
	}
}

// Run keeps the caches filled, and clears leftovers away, until the context ends.
// A cluster without KubeVirt or CDI is waited for.
func (h *Hypervisor) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(h.log.Handler()))
	var running sync.WaitGroup
	running.Go(func() { h.kubevirts.RunWithContext(ctx) })
	for _, c := range h.caches {
		for _, w := range []*watch{c.vms, c.vmis, c.volumes} {
			running.Go(func() { w.RunWithContext(ctx) })
		}
	}
	running.Go(func() { h.awaitSync(ctx) })
	running.Go(func() { h.clear(ctx) })
	running.Wait()
	return nil
}

// awaitSync waits until the machines are known and tells the subscribers of each.
func (h *Hypervisor) awaitSync(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for h.checkMachines() != nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	h.ready.Store(true)
	for _, c := range h.caches {
		for _, vm := range list[kvv1.VirtualMachine](c.vms) {
			h.notify(hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name})
		}
	}
}

// Ready tells whether the machines are known. CDI may be missing for good.
func (h *Hypervisor) Ready() bool { return h.ready.Load() }

// checkMachines is hypervisor.ErrUnavailable until the machines are known.
func (h *Hypervisor) checkMachines() error {
	if h.ready.Load() {
		return nil
	}
	for _, c := range h.caches {
		for _, w := range []*watch{c.vms, c.vmis} {
			if ok, why := w.synced(); !ok {
				return fmt.Errorf("%w: %s", hypervisor.ErrUnavailable, why)
			}
		}
	}
	return nil
}

// Subscribe calls changed after each change of a machine or of its media.
func (h *Hypervisor) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	return h.subscribers.Subscribe(changed)
}

func (h *Hypervisor) notify(ref hypervisor.Ref) {
	h.hub.Changed(ref)
	h.subscribers.Changed(ref)
}

// Resolve gives each machine a BMC of its own name: it is a hypervisor.Resolver.
func (h *Hypervisor) Resolve(namespace, name string) (hypervisor.Ref, error) {
	ref := hypervisor.Ref{Namespace: namespace, Name: name}
	if h.checkMachines() == nil && h.vm(ref) == nil {
		return hypervisor.Ref{}, hypervisor.ErrNoBMC
	}
	return ref, nil
}

// of returns the caches that hold a namespace; nil when none do.
func (h *Hypervisor) of(namespace string) *caches {
	if c := h.caches[namespace]; c != nil {
		return c
	}
	return h.caches[metav1.NamespaceAll]
}

// get returns an object from a cache; nil when there is none.
func get[T any](w *watch, key string) *T {
	object, ok, err := w.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	typed, _ := object.(*T)
	return typed
}

func list[T any](w *watch) []*T {
	objects := w.GetIndexer().List()
	typed := make([]*T, 0, len(objects))
	for _, object := range objects {
		if o, ok := object.(*T); ok {
			typed = append(typed, o)
		}
	}
	return typed
}

func (h *Hypervisor) vm(ref hypervisor.Ref) *kvv1.VirtualMachine {
	c := h.of(ref.Namespace)
	if c == nil {
		return nil
	}
	return get[kvv1.VirtualMachine](c.vms, ref.String())
}

// vmi returns a machine's live instance; nil when there is none.
func (h *Hypervisor) vmi(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstance {
	vmi := get[kvv1.VirtualMachineInstance](h.of(vm.Namespace).vmis, vm.Namespace+"/"+vm.Name)
	if vmi == nil || vmi.IsFinal() || !metav1.IsControlledBy(vmi, vm) {
		return nil
	}
	return vmi
}

// await waits until done, looking again at each change of the machine;
// hypervisor.ErrUnseen when that takes too long.
func (h *Hypervisor) await(ctx context.Context, ref hypervisor.Ref, done func() bool) error {
	changes, cancel := h.hub.Follow(ref)
	defer cancel()
	timeout := time.NewTimer(settleTimeout)
	defer timeout.Stop()
	for !done() {
		select {
		case <-changes:
		case <-timeout.C:
			return hypervisor.ErrUnseen
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// awaitVM waits until the cache shows that version of a machine's object, or a
// later one.
func (h *Hypervisor) awaitVM(ctx context.Context, vm *kvv1.VirtualMachine) error {
	ref := hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name}
	return h.await(ctx, ref, func() bool {
		cached := h.vm(ref)
		if cached == nil || cached.UID != vm.UID {
			return true
		}
		order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, vm.ResourceVersion)
		return err != nil || order >= 0
	})
}

// trim keeps of an object what trays are made of: user data and the like never
// stay in memory.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *kvv1.VirtualMachine:
		trimmed := &kvv1.VirtualMachine{ObjectMeta: trimMeta(&o.ObjectMeta)}
		if o.Spec.Template != nil {
			trimmed.Spec.Template = &kvv1.VirtualMachineInstanceTemplateSpec{Spec: trimSpec(&o.Spec.Template.Spec)}
		}
		return trimmed, nil
	case *kvv1.VirtualMachineInstance:
		trimmed := &kvv1.VirtualMachineInstance{ObjectMeta: trimMeta(&o.ObjectMeta), Spec: trimSpec(&o.Spec)}
		trimmed.Status.Phase = o.Status.Phase
		for i := range o.Status.VolumeStatus {
			s := &o.Status.VolumeStatus[i]
			trimmed.Status.VolumeStatus = append(trimmed.Status.VolumeStatus, kvv1.VolumeStatus{
				Name: s.Name, Phase: s.Phase, PersistentVolumeClaimInfo: s.PersistentVolumeClaimInfo,
			})
		}
		return trimmed, nil
	case *cdiv1.DataVolume:
		trimmed := *o
		trimmed.ManagedFields = nil
		trimmed.Spec = cdiv1.DataVolumeSpec{} // Its URL may hold secrets.
		return &trimmed, nil
	default:
		return object, nil
	}
}

func trimMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp, OwnerReferences: meta.OwnerReferences,
	}
}

func trimSpec(spec *kvv1.VirtualMachineInstanceSpec) kvv1.VirtualMachineInstanceSpec {
	trimmed := kvv1.VirtualMachineInstanceSpec{Architecture: spec.Architecture}
	trimmed.Domain.Devices.Disks = spec.Domain.Devices.Disks
	for i := range spec.Volumes {
		v := kvv1.Volume{Name: spec.Volumes[i].Name}
		v.DataVolume, v.PersistentVolumeClaim = spec.Volumes[i].DataVolume, spec.Volumes[i].PersistentVolumeClaim
		trimmed.Volumes = append(trimmed.Volumes, v)
	}
	return trimmed
}
