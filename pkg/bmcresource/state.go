// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// machineAnnotation is the UID of the machine that the state is about: one
	// that was made anew under the same name has nothing of it.
	machineAnnotation = "bmc.kubevirt.io/state-machine-uid"

	// requestTimeout bounds each request, watches aside.
	requestTimeout = 15 * time.Second
	// seenTimeout is how long a write waits for the watch to show it.
	seenTimeout = 10 * time.Second
	// writeAttempts is how often a write is tried that others' changes of the
	// resource, not of the state, have overtaken.
	writeAttempts = 5
)

// State returns the state in a BMC that is about the machine with that UID; nil
// when there is none.
func State(bmc *v1beta1.VirtualMachineBMC, machineUID string) []byte {
	state, ok := bmc.Annotations[v1beta1.AnnotationState]
	if !ok || bmc.Annotations[machineAnnotation] != machineUID {
		return nil
	}
	return []byte(state)
}

// StateAnnotations are the annotations of a BMC with that state about a machine; nil:
// without any.
func StateAnnotations(machineUID string, state []byte) map[string]*string {
	annotations := map[string]*string{v1beta1.AnnotationState: nil, machineAnnotation: nil}
	if state != nil {
		text := string(state)
		annotations[v1beta1.AnnotationState], annotations[machineAnnotation] = &text, &machineUID
	}
	return annotations
}

// SetState replaces the state about a machine if it still is old (nil: none),
// with the errors of hypervisor.State; hypervisor.ErrNotFound where the machine
// has no BMC.
func (s *Store) SetState(ctx context.Context, machine hypervisor.Ref, machineUID string, old, state []byte) error {
	if err := s.checkReady(); err != nil {
		return err
	}
	bmc := s.Of(machine)
	if bmc == nil {
		return hypervisor.ErrNotFound
	}
	for attempt := range writeAttempts {
		if current := State(bmc, machineUID); (current == nil) != (old == nil) || string(current) != string(old) {
			if attempt > 0 {
				// The caller reads the cache again: not before it has what overtook
				// this write.
				if err := s.awaitSeen(ctx, machine, bmc); err != nil && !errors.Is(err, hypervisor.ErrUnseen) {
					return err
				}
			}
			return hypervisor.ErrStale
		}
		written, err := s.write(ctx, bmc, machineUID, state)
		switch {
		case err == nil:
			return s.awaitSeen(ctx, machine, written)
		case apierrors.IsNotFound(err):
			return hypervisor.ErrNotFound
		case apierrors.IsConflict(err):
			fresh, err := s.read(ctx, bmc)
			if err != nil {
				return err
			}
			bmc = fresh
		case ctx.Err() != nil, !apierrors.IsInvalid(err) && !apierrors.IsRequestEntityTooLargeError(err):
			return s.resolve(ctx, machine, bmc, machineUID, state, err)
		default:
			return hypervisor.Invalidf("state of %s: %s", machine, err)
		}
	}
	return hypervisor.ErrStale
}

// write patches the annotations of the very version of a BMC that was read.
func (s *Store) write(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, machineUID string, state []byte) (*v1beta1.VirtualMachineBMC, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": bmc.UID, "resourceVersion": bmc.ResourceVersion, "annotations": StateAnnotations(machineUID, state),
	}})
	if err != nil {
		return nil, fmt.Errorf("patch BMC: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	written := &v1beta1.VirtualMachineBMC{}
	err = s.client.Patch(types.MergePatchType).Namespace(bmc.Namespace).Resource(resource).Name(bmc.Name).Body(patch).Do(within).Into(written)
	return written, err
}

// read returns a BMC from the API; hypervisor.ErrNotFound when it has gone, be it
// that another one has its name.
func (s *Store) read(ctx context.Context, bmc *v1beta1.VirtualMachineBMC) (*v1beta1.VirtualMachineBMC, error) {
	within, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	fresh := &v1beta1.VirtualMachineBMC{}
	err := s.client.Get().Namespace(bmc.Namespace).Resource(resource).Name(bmc.Name).Do(within).Into(fresh)
	switch {
	case apierrors.IsNotFound(err), err == nil && fresh.UID != bmc.UID:
		return nil, hypervisor.ErrNotFound
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: read BMC %s/%s: %w", hypervisor.ErrUnavailable, bmc.Namespace, bmc.Name, err)
	}
	return fresh, nil
}

// resolve finds out whether a write that got no answer has been carried out: the
// API server may have done it before the connection was lost.
func (s *Store) resolve(ctx context.Context, machine hypervisor.Ref, bmc *v1beta1.VirtualMachineBMC, machineUID string, state []byte, failed error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fresh, err := s.read(ctx, bmc)
	if err != nil || string(State(fresh, machineUID)) != string(state) {
		return fmt.Errorf("%w: write state of %s: %w", hypervisor.ErrUnavailable, machine, failed)
	}
	return s.awaitSeen(ctx, machine, fresh)
}

// awaitSeen waits until the cache shows that version of a BMC, or a later one;
// hypervisor.ErrUnseen when that takes too long.
func (s *Store) awaitSeen(ctx context.Context, machine hypervisor.Ref, bmc *v1beta1.VirtualMachineBMC) error {
	err := s.await(ctx, machine, seenTimeout, func() bool {
		cached := s.cached(machine, bmc.UID)
		if cached == nil {
			return true
		}
		order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, bmc.ResourceVersion)
		return err != nil || order >= 0
	})
	if errors.Is(err, errTimeout) {
		return hypervisor.ErrUnseen
	}
	return err
}
