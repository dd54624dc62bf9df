// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// takenSlices are the EndpointSlices of BMCs whose names others have.
type takenSlices struct {
	mu sync.Mutex
	// list has what is the matter with each, by their names.
	list map[registry.Ref]map[string]trouble
}

// set says what is the matter with a BMC's EndpointSlices, and tells whether that is
// new.
func (t *takenSlices) set(ref registry.Ref, taken map[string]trouble) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if maps.Equal(t.list[ref], taken) {
		return false
	}
	if t.list == nil {
		t.list = map[registry.Ref]map[string]trouble{}
	}
	if len(taken) == 0 {
		delete(t.list, ref)
	} else {
		t.list[ref] = taken
	}
	return true
}

// of returns what is the matter with an EndpointSlice of a BMC; nil: nobody else
// has its name.
func (t *takenSlices) of(ref registry.Ref, name string) *trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	if is, ok := t.list[ref][name]; ok {
		return &is
	}
	return nil
}

// notOwned tells what is the matter with an object that has the name of one of a
// BMC and is not its own: refused where somebody has it, passing where it goes with
// an earlier BMC.
func notOwned(ctx context.Context, bmcs client.Reader, kind string, is client.Object, machine, refused, passing string) trouble {
	owner := metav1.GetControllerOfNoCopy(is)
	if owner == nil || owner.Kind != "VirtualMachineBMC" {
		return trouble{refused, fmt.Sprintf("%s %s is somebody else's and is left alone", kind, is.GetName())}
	}
	var other v1beta1.VirtualMachineBMC
	err := bmcs.Get(ctx, client.ObjectKey{Namespace: is.GetNamespace(), Name: owner.Name}, &other)
	if err == nil && other.UID == owner.UID && other.MachineName() == machine {
		return trouble{refused, fmt.Sprintf("%s %s is VirtualMachineBMC %s's", kind, is.GetName(), owner.Name)}
	}
	return trouble{passing, fmt.Sprintf("%s %s of an earlier VirtualMachineBMC is being deleted", kind, is.GetName())}
}
