// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"bytes"
	"context"

	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// stateAnnotation is the annotation that holds the services' state.
const stateAnnotation = "bmc.kubevirt.io/state"

// SetState patches the annotation that keeps the services' state.
func (h *Hypervisor) SetState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	vm, err := h.vm(ref)
	if err != nil {
		return err
	}
	current, ok := vm.Annotations[stateAnnotation]
	if ok != (old != nil) || !bytes.Equal([]byte(current), old) {
		return hypervisor.ErrStale
	}
	p := statePatch(vm, old, state)
	if len(p) == 0 {
		return nil
	}
	return h.patch(ctx, ref, p)
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

// addAnnotation adds an annotation, and the map where there is none.
func addAnnotation(vm *kvv1.VirtualMachine, key, value string) operation {
	if vm.Annotations == nil {
		return add("/metadata/annotations", map[string]string{key: value})
	}
	return add(annotationPath(key), value)
}
