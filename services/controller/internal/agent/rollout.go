// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations of a Deployment, by which a controller knows what an earlier one has
// made of it, and why it is to change.
const (
	// annotationDigest is the digest of what was applied.
	annotationDigest = "bmc.kubevirt.io/agent-digest"
	// annotationGeneration is the generation of the VirtualMachineBMC that it was
	// applied for.
	annotationGeneration = "bmc.kubevirt.io/agent-generation"
)

// DefaultMaxUnavailable is how many agents may be unavailable while others get a new
// version.
const DefaultMaxUnavailable = 10

// mark notes in a Deployment that is to be applied what it is made of.
func (o Objects) mark(generation int64) error {
	digest, err := digestOf(o.Deployment)
	if err != nil {
		return err
	}
	o.Deployment.WithAnnotations(map[string]string{
		annotationDigest:     hex.EncodeToString(digest[:]),
		annotationGeneration: strconv.FormatInt(generation, 10),
	})
	return nil
}

// rollout bounds how many agents get a new version of the controller's at once. It
// is a DaemonSet's way: one that is unavailable gets it at once, others while fewer
// than so many are unavailable. It is in the Keeper's lock.
type rollout struct {
	max int
	// begun are Deployments that were changed for a new version, which the cache may
	// not show yet.
	begun map[types.NamespacedName]begun
	// waiting are the BMCs whose agents wait for their turn, the first one first.
	waiting []types.NamespacedName
}

// begun is a Deployment as it was changed.
type begun struct {
	uid types.UID
	// generation it got; 0: it is not known yet, or the Deployment was deleted to be
	// made anew.
	generation int64
}

// upgrades tells whether a Deployment is to change for a new version of the
// controller's, and not for what its BMC asks for.
func upgrades(is *appsv1.Deployment, b BMC, digest string) bool {
	return is.Annotations[annotationDigest] != digest &&
		(is.Annotations[annotationGeneration] == "" || is.Annotations[annotationGeneration] == strconv.FormatInt(b.Generation, 10))
}

// available tells whether a Deployment's pod is the one that it is to be, and ready.
func available(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas > 0 &&
		d.Status.Replicas == d.Status.UpdatedReplicas && d.Status.AvailableReplicas == d.Status.Replicas
}

// bmcOf is the BMC that a Deployment is an agent's of.
func bmcOf(d *appsv1.Deployment) (types.NamespacedName, bool) {
	owner := metav1.GetControllerOfNoCopy(d)
	if owner == nil || owner.Kind != "VirtualMachineBMC" || d.DeletionTimestamp != nil {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: d.Namespace, Name: owner.Name}, true
}

// unavailable are the BMCs whose agents are unavailable, or may be.
func (k *Keeper) unavailable(ctx context.Context) (map[types.NamespacedName]bool, error) {
	var all appsv1.DeploymentList
	if err := k.config.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Deployments of agents: %w", err)
	}
	list := map[types.NamespacedName]bool{}
	for i := range all.Items {
		d := &all.Items[i]
		key, ok := bmcOf(d)
		if !ok {
			continue
		}
		if b, ok := k.rollout.begun[key]; ok && (d.UID != b.uid || b.generation > 0 && d.Generation >= b.generation) {
			delete(k.rollout.begun, key)
		}
		if !available(d) {
			list[key] = true
		}
	}
	for key := range k.rollout.begun {
		list[key] = true
	}
	return list, nil
}

// admit tells whether an agent may get a new version now. If not it is its turn
// later.
func (k *Keeper) admit(ctx context.Context, key types.NamespacedName, is *appsv1.Deployment) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	unavailable, err := k.unavailable(ctx)
	if err != nil {
		return false, err
	}
	k.rollout.forget(key, false)
	if !unavailable[key] && len(unavailable) >= k.rollout.max {
		k.rollout.waiting = append(k.rollout.waiting, key)
		return false, nil
	}
	k.rollout.begun[key] = begun{uid: is.UID}
	return true, nil
}

// started notes what became of an agent that was admitted; nil: nothing.
func (k *Keeper) started(key types.NamespacedName, is *version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if is == nil {
		delete(k.rollout.begun, key)
		return
	}
	if b, ok := k.rollout.begun[key]; ok && is.generation > 0 {
		k.rollout.begun[key] = begun{uid: b.uid, generation: is.generation}
	}
}

// forget drops a BMC from those that wait, and with begun from all.
func (r *rollout) forget(key types.NamespacedName, all bool) {
	for i, other := range r.waiting {
		if other == key {
			r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
			break
		}
	}
	if all {
		delete(r.begun, key)
	}
}

// next calls for another look at those whose turn it is.
func (k *Keeper) next(ctx context.Context) error {
	k.mu.Lock()
	if len(k.rollout.waiting) == 0 {
		k.mu.Unlock()
		return nil
	}
	unavailable, err := k.unavailable(ctx)
	free := min(max(k.rollout.max-len(unavailable), 0), len(k.rollout.waiting))
	turn := k.rollout.waiting[:free:free]
	k.mu.Unlock()
	if err != nil {
		return err
	}
	for _, key := range turn {
		k.config.Again(key.Namespace, key.Name)
	}
	return nil
}

// Outdated returns how many agents wait for their turn to get a new version.
func (k *Keeper) Outdated() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.rollout.waiting)
}
