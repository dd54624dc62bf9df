// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	expandMin = 100 * time.Millisecond
	expandMax = time.Minute
	// expanders is how many machines are read at a time.
	expanders = 4
)

// expansion is a machine's template with its instance type and preference, as
// KubeVirt's expand-spec subresource has it, without what SetBoot writes: that
// the template alone tells, also while the expansion is behind it.
type expansion struct {
	// key says what it was made of.
	key  string
	spec *kvv1.VirtualMachineInstanceSpec
}

func newExpansions() workqueue.TypedRateLimitingInterface[hypervisor.Ref] {
	return workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[hypervisor.Ref](expandMin, expandMax))
}

// expansionKey is another one for each version of what an expansion is made of;
// empty for a machine that has neither instance type nor preference.
func expansionKey(vm *kvv1.VirtualMachine) string {
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return ""
	}
	key := strconv.FormatInt(vm.Generation, 10)
	for _, ref := range []*kvv1.InstancetypeStatusRef{vm.Status.InstancetypeRef, vm.Status.PreferenceRef} {
		key += "/"
		if ref != nil && ref.ControllerRevisionRef != nil {
			key += ref.ControllerRevisionRef.Name
		}
	}
	return key
}

// expanded tells whether all is known that there is to know of a machine's
// instance type and preference.
func expanded(vm *kvv1.VirtualMachine, seen *sighting) bool {
	key := expansionKey(vm)
	if key == "" {
		return true
	}
	e := seen.of(vm).expansion
	return e != nil && e.key == key
}

// expand reads instance types and preferences in the background, once for each
// version of a machine, until the context ends: so that no read has to.
func (h *Hypervisor) expand(ctx context.Context) {
	context.AfterFunc(ctx, h.expansions.ShutDown)
	var workers sync.WaitGroup
	for range expanders {
		workers.Go(func() { h.expandEach(ctx) })
	}
	workers.Wait()
}

func (h *Hypervisor) expandEach(ctx context.Context) {
	for {
		ref, over := h.expansions.Get()
		if over {
			return
		}
		if h.expandOne(ctx, ref) {
			h.expansions.Forget(ref)
		} else {
			h.expansions.AddRateLimited(ref)
		}
		h.expansions.Done(ref)
	}
}

// expandOne reads one machine's instance type and preference; false when that
// has to be tried again.
func (h *Hypervisor) expandOne(ctx context.Context, ref hypervisor.Ref) bool {
	vm, _ := h.objects(ref)
	if vm == nil || expanded(vm, h.sighting(ref)) {
		return true
	}
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	whole, err := h.client.VirtualMachines(ref.Namespace).GetWithExpandedSpec(within, ref.Name)
	if apierrors.IsNotFound(err) {
		return true
	}
	if err != nil {
		h.log.Info("can't read the instance type of a machine", slog.String(logkey.Namespace, ref.Namespace),
			slog.String(logkey.VM, ref.Name), slog.String(logkey.Error, err.Error()))
		return false
	}
	if whole.UID != vm.UID || whole.Generation != vm.Generation || whole.Spec.Template == nil {
		// The caches are behind: they will come to it.
		return whole.UID != vm.UID
	}
	spec := added(&whole.Spec.Template.Spec, template(vm))
	h.mu.Lock()
	// Of a machine that has gone meanwhile nothing is kept.
	if current, _ := h.objects(ref); current != nil && current.UID == vm.UID {
		now := *h.sightings[ref].of(vm)
		now.owner = vm.UID
		now.expansion = &expansion{key: expansionKey(vm), spec: spec}
		h.sightings[ref] = &now
	}
	h.mu.Unlock()
	h.notify(ref)
	return true
}

// added is an expanded template without the boot orders and the boot loader that
// are the template's own.
func added(whole, own *kvv1.VirtualMachineInstanceSpec) *kvv1.VirtualMachineInstanceSpec {
	spec := trimSpec(whole)
	devices := &spec.Domain.Devices
	for i := range devices.Disks {
		devices.Disks[i].BootOrder = nil
	}
	for i := range devices.Interfaces {
		devices.Interfaces[i].BootOrder = nil
	}
	if fw := own.Domain.Firmware; fw != nil && bootloaderMode(fw.Bootloader) != "" && spec.Domain.Firmware != nil {
		spec.Domain.Firmware.Bootloader = nil
	}
	return &spec
}
