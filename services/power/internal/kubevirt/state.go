// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// stateAnnotation is the annotation that holds the services' state.
const stateAnnotation = "bmc.kubevirt.io/state"

// stateAttempts is how often a write is tried that others' changes of the
// object, not of the state, have overtaken.
const stateAttempts = 5

// SetState patches the annotation that keeps the services' state.
func (h *Hypervisor) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	vm, err := h.vm(ref)
	if err != nil {
		return err
	}
	for attempt := range stateAttempts {
		switch {
		case stateIs(vm, old):
		case attempt == 0:
			return hypervisor.ErrStale
		default:
			return h.overtaken(ctx, vm)
		}
		p := statePatch(vm, old, state)
		if len(p) == 0 {
			return nil
		}
		err = h.patch(ctx, ref, p)
		switch {
		case errors.Is(err, hypervisor.ErrUnavailable) && !errors.Is(err, hypervisor.ErrUnseen):
			return h.resolve(ctx, vm, state, err)
		case !errors.Is(err, hypervisor.ErrStale):
			return err
		}
		// A new machine gets its first annotations from KubeVirt, and a patch that
		// adds them all is then refused although the state is as expected.
		if vm, err = h.read(ctx, ref); err != nil {
			return err
		}
	}
	return hypervisor.ErrStale
}

// overtaken is hypervisor.ErrStale once the caches have the version that overtook
// a write: the caller reads them again.
func (h *Hypervisor) overtaken(ctx context.Context, vm *kvv1.VirtualMachine) error {
	if err := h.awaitVM(ctx, vm); err != nil && !errors.Is(err, hypervisor.ErrUnseen) {
		return err
	}
	return hypervisor.ErrStale
}

// resolve finds out whether a write that got no answer has been carried out: the
// API server may have done it before the connection was lost. failed is what is
// returned when it has not, or when that can't be told either.
func (h *Hypervisor) resolve(ctx context.Context, vm *kvv1.VirtualMachine, state []byte, failed error) error {
	now, err := h.read(ctx, hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name})
	if err != nil || now.UID != vm.UID || !stateIs(now, state) {
		return failed
	}
	return h.awaitVM(ctx, now)
}

// read returns a machine's object from the API.
func (h *Hypervisor) read(ctx context.Context, ref hypervisor.Ref) (*kvv1.VirtualMachine, error) {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	vm, err := h.client.VirtualMachines(ref.Namespace).Get(within, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, translate(ctx, err)
	}
	return vm, nil
}

// stateIs tells whether an object holds that state.
func stateIs(vm *kvv1.VirtualMachine, state []byte) bool {
	current, ok := vm.Annotations[stateAnnotation]
	return ok == (state != nil) && current == string(state)
}

// statePatch replaces old by state.
func statePatch(vm *kvv1.VirtualMachine, old, state []byte) patch {
	path := annotationPath(stateAnnotation)
	switch {
	case old == nil && state == nil:
		return nil
	case old == nil && vm.Annotations == nil:
		return patch{test("/metadata/annotations", nil), addAnnotation(vm, stateAnnotation, string(state))}
	case old == nil:
		return patch{test(path, nil), addAnnotation(vm, stateAnnotation, string(state))}
	case state == nil:
		return patch{test(path, string(old)), remove(path)}
	default:
		return patch{test(path, string(old)), replace(path, string(state))}
	}
}
