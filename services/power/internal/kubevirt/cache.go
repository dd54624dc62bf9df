// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
)

// ownerIndex finds instances by the UID of their machine.
const ownerIndex = "owner"

// caches hold the objects of one namespace, or of all.
type caches struct {
	vms, vmis cache.SharedIndexInformer
	handlers  []cache.ResourceEventHandlerRegistration
}

// made is a snapshot and what it was made of.
type made struct {
	vm      *kvv1.VirtualMachine
	vmi     *kvv1.VirtualMachineInstance
	seen    *sighting
	machine *hypervisor.Machine
}

func (h *Hypervisor) newCaches(namespace string) (*caches, error) {
	vms, vmis := h.client.VirtualMachines(namespace), h.client.VirtualMachineInstances(namespace)
	c := &caches{
		vms: cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return vms.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return vms.Watch(ctx, options)
			},
		}, &kvv1.VirtualMachine{}, cache.SharedIndexInformerOptions{}),
		vmis: cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return vmis.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return vmis.Watch(ctx, options)
			},
		}, &kvv1.VirtualMachineInstance{}, cache.SharedIndexInformerOptions{
			Indexers: cache.Indexers{ownerIndex: func(object any) ([]string, error) {
				if owner := owner(object); owner != nil {
					return []string{string(owner.UID)}, nil
				}
				return nil, nil
			}},
		}),
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{"virtualmachines": c.vms, "virtualmachineinstances": c.vmis} {
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, err)
		}
		if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			h.watchFailed(kind, err)
		}); err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind, err)
		}
	}
	for _, on := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.vms, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { h.vmChanged(object, false) },
			UpdateFunc: func(_, object any) { h.vmChanged(object, false) },
			DeleteFunc: func(object any) { h.vmChanged(object, true) },
		}},
		{c.vmis, cache.ResourceEventHandlerFuncs{
			AddFunc:    h.vmiChanged,
			UpdateFunc: func(_, object any) { h.vmiChanged(object) },
			DeleteFunc: h.vmiChanged,
		}},
	} {
		registration, err := on.informer.AddEventHandler(on.handler)
		if err != nil {
			return nil, fmt.Errorf("watch machines: %w", err)
		}
		c.handlers = append(c.handlers, registration)
	}
	return c, nil
}

// watchFailed notes why the caches are not filled, and says it once.
func (h *Hypervisor) watchFailed(kind string, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	text := kind + ": " + err.Error()
	if before := h.trouble.Swap(&text); before == nil || *before != text {
		h.log.Warn("can't watch KubeVirt's machines", slog.String(logkey.Error, text))
	}
}

func (c *caches) synced() bool {
	for _, handler := range c.handlers {
		if !handler.HasSynced() {
			return false
		}
	}
	return c.vms.HasSynced() && c.vmis.HasSynced()
}

// owner returns the reference of an instance to its machine.
func owner(object any) *metav1.OwnerReference {
	vmi, ok := object.(*kvv1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	if ref := metav1.GetControllerOf(vmi); ref != nil && ref.Kind == "VirtualMachine" {
		return ref
	}
	return nil
}

// vmChanged is told of each change of a machine's object.
func (h *Hypervisor) vmChanged(object any, deleted bool) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	vm, ok := object.(*kvv1.VirtualMachine)
	if !ok {
		return
	}
	ref := hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name}
	if deleted {
		h.mu.Lock()
		delete(h.sightings, ref)
		delete(h.snapshots, ref)
		h.mu.Unlock()
	}
	// One that could not be expanded has its next attempt ahead.
	if !deleted && h.expansions.NumRequeues(ref) == 0 && !expanded(vm, h.sighting(ref)) {
		h.expansions.Add(ref)
	}
	h.notify(ref)
}

// sighting returns what is remembered of a machine; nil when nothing.
func (h *Hypervisor) sighting(ref hypervisor.Ref) *sighting {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.sightings[ref]
}

// vmiChanged is told of each change of an instance's object.
func (h *Hypervisor) vmiChanged(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	vmi, ok := object.(*kvv1.VirtualMachineInstance)
	if !ok {
		return
	}
	of := owner(vmi)
	if of == nil {
		return
	}
	ref := hypervisor.Ref{Namespace: vmi.Namespace, Name: of.Name}
	h.mu.Lock()
	// An instance may outlive its machine; what is remembered of it may not.
	if vm, _ := h.objects(ref); vm != nil && vm.UID == of.UID {
		h.sightings[ref] = sight(vmi, h.sightings[ref])
	}
	h.mu.Unlock()
	h.notify(ref)
}

// of returns the caches that hold a namespace; nil when none do.
func (h *Hypervisor) of(namespace string) *caches {
	if c := h.caches[namespace]; c != nil {
		return c
	}
	return h.caches[metav1.NamespaceAll]
}

// objects returns a machine's objects from the caches; nil where there is none.
func (h *Hypervisor) objects(ref hypervisor.Ref) (*kvv1.VirtualMachine, *kvv1.VirtualMachineInstance) {
	c := h.of(ref.Namespace)
	if c == nil {
		return nil, nil
	}
	object, ok, err := c.vms.GetIndexer().GetByKey(ref.String())
	if err != nil || !ok {
		return nil, nil
	}
	vm, ok := object.(*kvv1.VirtualMachine)
	if !ok {
		return nil, nil
	}
	return vm, c.vmi(vm)
}

func (c *caches) listVMs() []*kvv1.VirtualMachine {
	objects := c.vms.GetIndexer().List()
	vms := make([]*kvv1.VirtualMachine, 0, len(objects))
	for _, object := range objects {
		if vm, ok := object.(*kvv1.VirtualMachine); ok {
			vms = append(vms, vm)
		}
	}
	return vms
}

// vmi returns a machine's instance: the one that it owns, not one of an earlier
// machine of the same name.
func (c *caches) vmi(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstance {
	objects, err := c.vmis.GetIndexer().ByIndex(ownerIndex, string(vm.UID))
	if err != nil {
		return nil
	}
	for _, object := range objects {
		if vmi, ok := object.(*kvv1.VirtualMachineInstance); ok && vmi.Name == vm.Name {
			return vmi
		}
	}
	return nil
}

// machine returns the snapshot of what the caches hold, a new one only where
// that has changed.
func (h *Hypervisor) machine(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance) *hypervisor.Machine {
	ref := hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name}
	h.mu.RLock()
	last, seen := h.snapshots[ref], h.sightings[ref]
	h.mu.RUnlock()
	if last.machine != nil && last.vm == vm && last.vmi == vmi && last.seen == seen {
		return last.machine
	}
	m := snapshot(vm, vmi, seen)
	h.mu.Lock()
	defer h.mu.Unlock()
	// The reader may be late, and the machine gone.
	if current, _ := h.objects(ref); current != nil && current.UID == vm.UID {
		h.snapshots[ref] = made{vm: vm, vmi: vmi, seen: seen, machine: m}
	}
	return m
}

// shows tells whether a cached version is at least the wanted one.
func shows(cached, wanted string) bool {
	if cached == wanted {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(cached, wanted)
	return err == nil && order >= 0
}
