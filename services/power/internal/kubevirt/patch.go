// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// patch is a JSON patch (RFC 6902). All of it applies, or none.
type patch []operation

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// MarshalJSON leaves the value out where an operation has none: null is a value
// to test for.
func (o operation) MarshalJSON() ([]byte, error) {
	if o.Op == "remove" {
		return json.Marshal(map[string]string{"op": o.Op, "path": o.Path})
	}
	type plain operation
	return json.Marshal(plain(o))
}

// test lets the patch apply only where path has that value; nil: where it has
// none.
func test(path string, value any) operation { return operation{"test", path, value} }

func add(path string, value any) operation { return operation{"add", path, value} }

func replace(path string, value any) operation { return operation{"replace", path, value} }

func remove(path string) operation { return operation{"remove", path, nil} }

// annotationPath is the path of an annotation, escaped as RFC 6901 says.
func annotationPath(key string) string {
	return "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// addAnnotation adds an annotation, and the map where there is none.
func addAnnotation(vm *kvv1.VirtualMachine, key, value string) operation {
	if vm.Annotations == nil {
		return add("/metadata/annotations", map[string]string{key: value})
	}
	return add(annotationPath(key), value)
}

// annotationsPatch sets annotations, and takes away those that are nil.
func annotationsPatch(vm *kvv1.VirtualMachine, changes map[string]*string) patch {
	var p patch
	fresh := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		_, present := vm.Annotations[key]
		switch value := changes[key]; {
		case value == nil && present:
			p = append(p, remove(annotationPath(key)))
		case value == nil:
		case vm.Annotations == nil:
			fresh[key] = *value
		default:
			p = append(p, add(annotationPath(key), *value))
		}
	}
	if len(fresh) > 0 {
		p = append(p, add("/metadata/annotations", fresh))
	}
	return p
}

// patch changes a machine's object and waits until the caches show it.
func (h *Hypervisor) patch(ctx context.Context, ref hypervisor.Ref, p patch) error {
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("patch machine: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	vm, err := h.client.VirtualMachines(ref.Namespace).Patch(within, ref.Name, types.JSONPatchType, body, metav1.PatchOptions{})
	if err != nil {
		return translate(ctx, err)
	}
	return h.awaitVM(ctx, vm)
}

// awaitVM waits until the caches show that version of a machine's object, or a
// later one; hypervisor.ErrUnseen when that takes too long.
func (h *Hypervisor) awaitVM(ctx context.Context, vm *kvv1.VirtualMachine) error {
	ref := hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name}
	return unseen(h.await(ctx, ref, settleTimeout, func() bool {
		cached, _ := h.objects(ref)
		return cached == nil || cached.UID != vm.UID || shows(cached.ResourceVersion, vm.ResourceVersion)
	}))
}
