// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/logkey"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// Earlier lines ran an agent for each BMC, a Pod or a Deployment with a
// ServiceAccount and a RoleBinding, and their Services selected it. The Service is
// kept, with its address, and all else goes.

// What an earlier line's controller makes anew that ran on when its BMCs were taken
// over, or what there was no right to remove then, is looked for when a controller
// becomes the leader and every leftTime after, one BMC in leftPause, which is at most
// 40 requests a second.
const (
	leftTime  = 10 * time.Minute
	leftPause = 100 * time.Millisecond
)

// adoptTime is how often it is looked whether our frontends serve a BMC whose
// agent still does.
const adoptTime = time.Second

// selectorManagers are those of EndpointSlices that are made of a Service's
// selector, and of Endpoints that were.
var selectorManagers = []string{"endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"}

// legacy tells whether an earlier line may have objects of a BMC: it has written
// the status and we have not, or there is a Service that we did not make. A selector
// in a Service that we have made is somebody's, and no reason to leave the BMC alone.
func legacy(status *v1beta1.VirtualMachineBMCStatus, is *corev1.Service) bool {
	return status.ObservedGeneration == 0 && (is != nil || status.ClusterIP != "" || len(status.Conditions) > 0)
}

// serving tells whether all frontends that are wanted serve a BMC, so that there
// is no need of others.
func (r *bmcs) serving(w wanted) bool {
	return !slices.ContainsFunc(w.protocols(), func(protocol registryv1.Protocol) bool {
		status, ok := r.registry.Status(w.ref, protocol)
		return !ok || status.State != registry.Serving
	})
}

// losesIPMI tells whether a BMC has been served over IPMI that says nothing of it and
// is not any more, as by an earlier line, or under another default. One whose owner
// has taken it out since this controller leads (had) knows.
func losesIPMI(bmc *v1beta1.VirtualMachineBMC, w wanted, has []*corev1.Service, had bool) bool {
	switch {
	case w.ipmi, w.ipmiAsked:
		return false
	case meta.IsStatusConditionTrue(bmc.Status.Conditions, v1beta1.ConditionIPMIDisabledByUpgrade):
		return true
	case had:
		return false
	case bmc.Status.Frontend != nil && bmc.Status.Frontend.IPMI != nil && bmc.Status.Frontend.IPMI.Port != nil:
		return true
	}
	return slices.ContainsFunc(has, func(is *corev1.Service) bool {
		return slices.ContainsFunc(is.Spec.Ports, func(port corev1.ServicePort) bool {
			return port.Port == serviceIPMI && port.Protocol == corev1.ProtocolUDP
		})
	})
}

// leftover is a one-time boot override that an earlier line has written to the
// machine's template; nil: there is none, or it was for another machine of the name.
func leftover(bmc *v1beta1.VirtualMachineBMC, machine types.UID) *bootoverride.Leftover {
	armed := bmc.Status.BootOverride
	if armed == nil || armed.ID != "" || armed.Mode != v1beta1.BootOverrideModeOneshot || bmc.Status.ObservedGeneration != 0 ||
		armed.VMUID != "" && machine != "" && armed.VMUID != machine {
		return nil
	}
	left := &bootoverride.Leftover{ID: rand.Text(), InstanceUID: string(armed.VMIUID), Orders: map[string]int{}}
	for device, order := range armed.BootOrders {
		left.Orders[device] = int(order)
	}
	for mode, firmware := range firmwares {
		if firmware == armed.OriginalFirmware {
			left.Mode = mode
		}
	}
	return left
}

// carryOver hands a boot override of an earlier line to the power service, which uses
// it and restores the template as it does with its own. It returns what to tell the
// user.
func (r *bmcs) carryOver(ctx context.Context, bmc *v1beta1.VirtualMachineBMC, o *observation) ([]announcement, error) {
	left := leftover(bmc, o.machine)
	if left == nil || o.legacy || o.unseen { // The agent that serves the BMC may restore it.
		return nil, nil
	}
	if o.machine == "" || o.taken != "" {
		return abandoned(bmc, o.want, "no machine of this BMC has that template"), nil
	}
	state, err := bootoverride.AddLeftover(bmcresource.State(bmc, string(o.machine)), left)
	if err != nil {
		return abandoned(bmc, o.want, err.Error()), nil
	}
	if state != nil {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": bmc.UID, "resourceVersion": bmc.ResourceVersion, "annotations": bmcresource.StateAnnotations(string(o.machine), state),
		}})
		if err != nil {
			return nil, fmt.Errorf("carry boot override over: %w", err)
		}
		err = r.client.Patch(ctx, metadataOfBMC(bmc), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager))
		switch {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return abandoned(bmc, o.want, err.Error()), nil
		case err != nil:
			return nil, fmt.Errorf("carry boot override over: %w", err)
		}
	}
	return []announcement{{corev1.EventTypeNormal, "BootOverrideCarriedOver", "Adopt", fmt.Sprintf(
		"a one-time boot override of an earlier version counts for the next start of VirtualMachine %s, whose template is restored then", o.want.machine)}}, nil
}

// metadataOfBMC is a BMC to be patched, which leaves the cache's alone.
func metadataOfBMC(bmc *v1beta1.VirtualMachineBMC) *metav1.PartialObjectMetadata {
	object := metadataOf(v1beta1.GroupVersion.WithKind("VirtualMachineBMC"))
	object.Namespace, object.Name = bmc.Namespace, bmc.Name
	return object
}

// abandoned tells of a boot override of an earlier line that is left in the machine's
// template, and why.
func abandoned(bmc *v1beta1.VirtualMachineBMC, w wanted, why string) []announcement {
	armed := bmc.Status.BootOverride
	orders := make([]string, 0, len(armed.BootOrders))
	for _, device := range slices.Sorted(maps.Keys(armed.BootOrders)) {
		orders = append(orders, fmt.Sprintf("%s %d", device, armed.BootOrders[device]))
	}
	message := fmt.Sprintf("the template of VirtualMachine %s may have a one-time boot override of an earlier version, which is not taken back (%s); its boot orders were (0: none): %s",
		w.machine, why, strings.Join(orders, ", "))
	if armed.OriginalFirmware != "" {
		message += fmt.Sprintf("; its firmware was %s", armed.OriginalFirmware)
	}
	return []announcement{{corev1.EventTypeWarning, "BootOverrideLeft", "Adopt", shorten(message)}}
}

// removeLeft removes, until the context ends, agents of earlier lines from BMCs that
// have been taken over.
func (r *bmcs) removeLeft(ctx context.Context, list func(context.Context) ([]*v1beta1.VirtualMachineBMC, error)) {
	wait := func(while time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(while):
			return true
		}
	}
	for {
		all, err := list(ctx)
		if err != nil {
			r.log.WarnContext(ctx, "can't look for what earlier versions have left", logkey.Error, err.Error())
		}
		for _, bmc := range all {
			if err := r.removeLeftOf(ctx, bmc); err != nil && ctx.Err() == nil {
				r.log.WarnContext(ctx, "can't remove what an earlier version has left", logkey.Namespace, bmc.Namespace, logkey.BMC, bmc.Name, logkey.Error, err.Error())
			}
			if !wait(leftPause) {
				return
			}
		}
		if !wait(r.leftTime) {
			return
		}
	}
}

func (r *bmcs) removeLeftOf(ctx context.Context, bmc *v1beta1.VirtualMachineBMC) error {
	if bmc.Status.ObservedGeneration == 0 || bmc.DeletionTimestamp != nil {
		return nil // Its agent serves it until it is taken over.
	}
	if lacks, err := r.rights.lack(ctx, &roleAdoption, r.scope(bmc.Namespace)); err != nil || lacks != "" {
		return err
	}
	w := wantedOf(bmc, r.defaults)
	w.mode = modeInUse(bmc.Status.Frontend, w.target, false)
	return r.removeAgent(ctx, w)
}

// removeAgent removes an earlier line's agent of a BMC: first what lets it act.
// What a dedicated agent of ours has too is left to that.
func (r *bmcs) removeAgent(ctx context.Context, w wanted) error {
	if w.machine == "" {
		return nil
	}
	type object struct {
		kind schema.GroupVersionKind
		name string
	}
	objects := []object{
		{rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), w.serviceName() + "-rolebinding"},
		{corev1.SchemeGroupVersion.WithKind("Pod"), w.serviceName()},
	}
	if w.mode != v1beta1.FrontendModeDedicated && w.target != v1beta1.FrontendModeDedicated {
		objects = append(objects,
			object{appsv1.SchemeGroupVersion.WithKind("Deployment"), w.serviceName()},
			object{corev1.SchemeGroupVersion.WithKind("ServiceAccount"), w.serviceName()})
	}
	for _, o := range objects {
		is := metadataOf(o.kind)
		err := r.live.Get(ctx, client.ObjectKey{Namespace: w.ref.Namespace, Name: o.name}, is)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get %s %s of an earlier version: %w", o.kind.Kind, o.name, err)
		}
		if err != nil || !ownedBy(is, w.uid) || is.DeletionTimestamp != nil {
			continue
		}
		uid := is.UID
		err = r.client.Delete(ctx, is, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s %s of an earlier version: %w", o.kind.Kind, o.name, err)
		}
		r.log.InfoContext(ctx, "removed what an earlier version has left", "kind", o.kind.Kind,
			logkey.Namespace, w.ref.Namespace, "name", o.name, logkey.BMC, w.ref.Name)
	}
	return nil
}

// removeSelected removes the endpoints of a BMC's Service that were made of a
// selector that it has no longer: nobody else does. They are looked for where the
// cache may not have them.
func (r *bmcs) removeSelected(ctx context.Context, w wanted, look bool) error {
	var list discoveryv1.EndpointSliceList
	reader, by := client.Reader(r.client), client.ListOption(client.MatchingFields{indexBMC: w.ref.Name})
	if look {
		reader, by = r.live, client.MatchingLabels{discoveryv1.LabelServiceName: w.serviceName()}
	}
	if err := reader.List(ctx, &list, client.InNamespace(w.ref.Namespace), by); err != nil {
		return fmt.Errorf("list EndpointSlices of Service %s: %w", w.serviceName(), err)
	}
	selected := slices.DeleteFunc(list.Items, func(is discoveryv1.EndpointSlice) bool {
		return is.Labels[discoveryv1.LabelServiceName] != w.serviceName() ||
			!slices.Contains(selectorManagers, is.Labels[discoveryv1.LabelManagedBy])
	})
	if len(selected) == 0 && !look {
		return nil
	}
	// First Endpoints, of which Kubernetes makes EndpointSlices.
	endpoints := metadataOf(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	err := r.live.Get(ctx, client.ObjectKey{Namespace: w.ref.Namespace, Name: w.serviceName()}, endpoints)
	if err == nil {
		uid := endpoints.UID
		err = r.client.Delete(ctx, endpoints, client.Preconditions{UID: &uid})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Endpoints %s: %w", w.serviceName(), err)
	}
	for i := range selected {
		uid := selected[i].UID
		if err := r.client.Delete(ctx, &selected[i], client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete EndpointSlice %s: %w", selected[i].Name, err)
		}
	}
	return nil
}
