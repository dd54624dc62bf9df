// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// patchAttempts is how often a change of a template is tried that others'
	// changes have overtaken.
	patchAttempts = 8

	// clearInterval is how often leftovers are looked for. One has to be older
	// than leftoverAge: an insert names its DataVolume in the template after it
	// has made it.
	clearInterval = 30 * time.Second
	leftoverAge   = 10 * time.Minute

	// roundBytes is what sizes are rounded up to: storage is given out in such
	// pieces, and block devices need whole sectors.
	roundBytes = 1 << 20
)

// Trays returns a machine's trays, the one that Insert had best use first.
func (h *Hypervisor) Trays(ref hypervisor.Ref) ([]hypervisor.Tray, error) {
	if err := h.checkMachines(); err != nil {
		return nil, err
	}
	vm := h.vm(ref)
	if vm == nil {
		return nil, hypervisor.ErrNotFound
	}
	capability, vmi := h.Capability(ref.Namespace), h.vmi(vm)
	volumes := h.of(ref.Namespace).volumes
	dataVolume := func(name string) *cdiv1.DataVolume {
		return get[cdiv1.DataVolume](volumes, ref.Namespace+"/"+name)
	}
	names := devices(vm, vmi, capability.Live)
	trays := make([]hypervisor.Tray, len(names))
	for n, name := range names {
		trays[n] = trayOf(vm, vmi, name, capability.Live, dataVolume, capability.CDI)
	}
	return trays, nil
}

// read returns a machine's object from the API, and tells whether Insert and
// Eject may touch a tray of it.
func (h *Hypervisor) read(ctx context.Context, ref hypervisor.Ref, device string) (*kvv1.VirtualMachine, error) {
	vm := &kvv1.VirtualMachine{}
	err := h.kubevirt.Get().Namespace(ref.Namespace).Resource(resourceVMs).Name(ref.Name).Timeout(requestTimeout).Do(ctx).Into(vm)
	if err != nil {
		return nil, translate(ctx, err)
	}
	switch volume := volumeOf(template(vm), device); {
	case vm.DeletionTimestamp != nil:
		return nil, hypervisor.ErrNotFound
	case !slices.Contains(devices(vm, nil, false), device):
		return nil, hypervisor.ErrNoTray
	case volume != nil && medium(vm, volume) == "":
		return nil, hypervisor.ErrForeignMedium
	default:
		return vm, nil
	}
}

// Insert has CDI import an image and names the volume in the machine's template.
func (h *Hypervisor) Insert(ctx context.Context, ref hypervisor.Ref, device string, image hypervisor.Image) error {
	if err := h.checkMachines(); err != nil {
		return err
	}
	vm, err := h.read(ctx, ref, device)
	if err != nil {
		return err
	}
	capability := h.Capability(ref.Namespace)
	if !capability.CDI {
		return fmt.Errorf("%w: CDI can't import: %s", hypervisor.ErrUnsupported, capability.Trouble)
	}
	if done, err := h.has(ctx, vm, device, image.URL); done || err != nil {
		return err
	}
	preferences := h.prefers(ref)
	prepared, err := h.source.Prepare(ctx, image, preferences.Trust)
	if err != nil {
		return err
	}
	dv, err := h.create(ctx, vm, device, image.URL, prepared, preferences)
	if err != nil {
		return err
	}
	for range patchAttempts {
		var p patch
		if p, err = insertPatch(vm, device, dv.Name, capability.Live); err != nil {
			break
		}
		var now *kvv1.VirtualMachine
		if now, err = h.patch(ctx, vm, p); err == nil {
			if err := h.settle(ctx, now, dv); err != nil {
				return err
			}
			return h.drop(ctx, vm, medium(vm, volumeOf(template(vm), device)))
		}
		if !errors.Is(err, hypervisor.ErrStale) {
			break
		}
		if vm, err = h.read(ctx, ref, device); err != nil {
			break
		}
		// Another replica may have been faster.
		done, hasErr := h.has(ctx, vm, device, image.URL)
		if done || hasErr != nil {
			err = hasErr
			break
		}
	}
	if errors.Is(err, hypervisor.ErrUnavailable) {
		// Perhaps it is carried out: what no template names is cleared away later.
		return err
	}
	return errors.Join(err, h.delete(ctx, dv))
}

// has tells whether a tray has the image of a URL, or will.
func (h *Hypervisor) has(ctx context.Context, vm *kvv1.VirtualMachine, device, url string) (bool, error) {
	name := medium(vm, volumeOf(template(vm), device))
	if name == "" {
		return false, nil
	}
	dv := &cdiv1.DataVolume{}
	err := h.cdi.Get().Namespace(vm.Namespace).Resource(resourceDataVolumes).Name(name).Timeout(requestTimeout).Do(ctx).Into(dv)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, translate(ctx, err)
	}
	m := progress(dv)
	if m.URL != url || m.Phase == hypervisor.MediumFailed {
		return false, nil
	}
	return true, h.settle(ctx, vm, dv)
}

// settle waits until the caches show a template and the DataVolume that it names.
func (h *Hypervisor) settle(ctx context.Context, vm *kvv1.VirtualMachine, dv *cdiv1.DataVolume) error {
	if err := h.awaitVM(ctx, vm); err != nil {
		return err
	}
	ref := hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name}
	return h.await(ctx, ref, func() bool {
		return get[cdiv1.DataVolume](h.of(dv.Namespace).volumes, dv.Namespace+"/"+dv.Name) != nil
	})
}

// create makes the DataVolume of a medium.
func (h *Hypervisor) create(ctx context.Context, vm *kvv1.VirtualMachine, device, url string, prepared Prepared, preferences Preferences) (*cdiv1.DataVolume, error) {
	size := (prepared.Bytes + h.storage.MarginBytes + roundBytes - 1) / roundBytes * roundBytes
	dv := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:      prefix(vm) + strings.ToLower(rand.Text()[:10]),
			Namespace: vm.Namespace,
			Labels:    map[string]string{machineLabel: string(vm.UID)},
			Annotations: map[string]string{
				deviceAnnotation: device,
				urlAnnotation:    url,
				// Import now: nobody has asked for the machine to start yet.
				"cdi.kubevirt.io/storage.bind.immediate.requested": "true",
				// It is the record of the medium.
				"cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kvv1.GroupVersion.String(), Kind: kvv1.VirtualMachineGroupVersionKind.Kind, Name: vm.Name, UID: vm.UID,
			}},
		},
		Spec: cdiv1.DataVolumeSpec{
			Source:      &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: prepared.URL, CertConfigMap: prepared.CertConfigMap}},
			ContentType: cdiv1.DataVolumeKubeVirt,
			// CDI adds what a file system needs to a request for storage.
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			}},
		},
	}
	if class := cmp.Or(preferences.Class, h.storage.Class); class != "" {
		dv.Spec.Storage.StorageClassName = &class
	}
	if mode := cmp.Or(preferences.VolumeMode, h.storage.VolumeMode); mode != "" {
		dv.Spec.Storage.VolumeMode = new(corev1.PersistentVolumeMode(mode))
	}
	created := &cdiv1.DataVolume{}
	err := h.cdi.Post().Namespace(vm.Namespace).Resource(resourceDataVolumes).Body(dv).Timeout(requestTimeout).Do(ctx).Into(created)
	if err != nil {
		return nil, translate(ctx, err)
	}
	return created, nil
}

// Eject takes our volume out of the machine's template.
func (h *Hypervisor) Eject(ctx context.Context, ref hypervisor.Ref, device string) error {
	if err := h.checkMachines(); err != nil {
		return err
	}
	for range patchAttempts {
		vm, err := h.read(ctx, ref, device)
		if err != nil {
			return err
		}
		name := medium(vm, volumeOf(template(vm), device))
		if name == "" {
			return h.awaitVM(ctx, vm)
		}
		now, err := h.patch(ctx, vm, ejectPatch(vm, device, h.Capability(ref.Namespace).Live))
		if errors.Is(err, hypervisor.ErrStale) {
			continue
		}
		if err != nil {
			return err
		}
		if err := h.awaitVM(ctx, now); err != nil {
			return err
		}
		return h.drop(ctx, vm, name)
	}
	return hypervisor.ErrStale
}

// patch is a JSON patch (RFC 6902).
type patch []operation

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const (
	disksPath   = "/spec/template/spec/domain/devices/disks"
	volumesPath = "/spec/template/spec/volumes"
)

// insertPatch puts a DataVolume into a tray, and the tray into the machine where it
// is not there yet.
func insertPatch(vm *kvv1.VirtualMachine, device, dataVolume string, live bool) (patch, error) {
	spec := template(vm)
	if vm.Spec.Template == nil {
		return nil, hypervisor.Invalidf("machine has no template")
	}
	volume := map[string]any{"name": device, "dataVolume": map[string]any{"name": dataVolume, "hotpluggable": live}}
	var p patch
	if drive(spec, device) == nil {
		bus := kvv1.DiskBusSATA
		if spec.Architecture != "" && spec.Architecture != string(hypervisor.ArchitectureAMD64) {
			bus = kvv1.DiskBusSCSI // Those machines have no SATA.
		}
		p = append(p, appended(disksPath, len(spec.Domain.Devices.Disks),
			map[string]any{"name": device, "cdrom": map[string]any{"bus": bus, "readonly": true}}))
	}
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == device {
			return append(p, operation{"replace", fmt.Sprintf("%s/%d", volumesPath, i), volume}), nil
		}
	}
	return append(p, appended(volumesPath, len(spec.Volumes), volume)), nil
}

// appended adds a value to a list that has n.
func appended(path string, n int, value any) operation {
	if n == 0 {
		return operation{"add", path, []any{value}}
	}
	return operation{"add", path + "/-", value}
}

// ejectPatch empties a tray. KubeVirt has empty trays only where they can be
// filled live; else our own goes with its medium.
func ejectPatch(vm *kvv1.VirtualMachine, device string, live bool) patch {
	spec := template(vm)
	var p patch
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == device {
			p = append(p, operation{Op: "remove", Path: fmt.Sprintf("%s/%d", volumesPath, i)})
		}
	}
	if live || device != ownTray {
		return p
	}
	for i := range spec.Domain.Devices.Disks {
		if spec.Domain.Devices.Disks[i].Name == device {
			p = append(p, operation{Op: "remove", Path: fmt.Sprintf("%s/%d", disksPath, i)})
		}
	}
	return p
}

// patch changes a machine if it is still the version that was read, else
// hypervisor.ErrStale.
func (h *Hypervisor) patch(ctx context.Context, vm *kvv1.VirtualMachine, p patch) (*kvv1.VirtualMachine, error) {
	body, err := json.Marshal(append(patch{{"test", "/metadata/resourceVersion", vm.ResourceVersion}}, p...))
	if err != nil {
		return nil, fmt.Errorf("patch machine: %w", err)
	}
	now := &kvv1.VirtualMachine{}
	err = h.kubevirt.Patch(types.JSONPatchType).Namespace(vm.Namespace).Resource(resourceVMs).Name(vm.Name).
		Body(body).Timeout(requestTimeout).Do(ctx).Into(now)
	if err != nil {
		return nil, translate(ctx, err)
	}
	return now, nil
}

// drop deletes a medium that no template names any longer, unless an instance
// still has it: then it is cleared away with the instance.
func (h *Hypervisor) drop(ctx context.Context, vm *kvv1.VirtualMachine, name string) error {
	if name == "" {
		return nil
	}
	if vmi := h.vmi(vm); vmi != nil && uses(vmi, name) {
		return nil
	}
	return h.delete(ctx, &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: name}})
}

// uses tells whether an instance has a volume, or still lets go of it.
func uses(vmi *kvv1.VirtualMachineInstance, name string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v kvv1.Volume) bool { return v.DataVolume != nil && v.DataVolume.Name == name }) ||
		slices.ContainsFunc(vmi.Status.VolumeStatus, func(s kvv1.VolumeStatus) bool {
			return s.PersistentVolumeClaimInfo != nil && s.PersistentVolumeClaimInfo.ClaimName == name
		})
}

// delete deletes a DataVolume; one that is gone is no error.
func (h *Hypervisor) delete(ctx context.Context, dv *cdiv1.DataVolume) error {
	options := &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if dv.UID != "" {
		options.Preconditions = &metav1.Preconditions{UID: &dv.UID}
	}
	err := h.cdi.Delete().Namespace(dv.Namespace).Resource(resourceDataVolumes).Name(dv.Name).Body(options).Timeout(requestTimeout).Do(ctx).Error()
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return translate(ctx, err)
}

// clear deletes leftovers from time to time.
func (h *Hypervisor) clear(ctx context.Context) {
	ticker := time.NewTicker(clearInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			h.clearOnce(ctx, leftoverAge)
		}
	}
}

// clearOnce deletes the media of at least an age that neither a template nor an
// instance names. Those of machines that are gone go with them.
func (h *Hypervisor) clearOnce(ctx context.Context, age time.Duration) {
	if !h.ready.Load() {
		return
	}
	for _, c := range h.caches {
		for _, dv := range list[cdiv1.DataVolume](c.volumes) {
			if dv.DeletionTimestamp != nil || time.Since(dv.CreationTimestamp.Time) < age {
				continue
			}
			if left, err := h.leftover(ctx, dv); err != nil || !left {
				continue
			}
			if err := h.delete(ctx, dv); err != nil {
				h.log.Warn("can't delete the leftover of a medium", slog.String(logkey.Error, err.Error()))
			}
		}
	}
}

// leftover tells whether nobody names a DataVolume, by the API's word: a cache may
// be late.
func (h *Hypervisor) leftover(ctx context.Context, dv *cdiv1.DataVolume) (bool, error) {
	for _, owner := range dv.OwnerReferences {
		cached := h.vm(hypervisor.Ref{Namespace: dv.Namespace, Name: owner.Name})
		if owner.Kind != kvv1.VirtualMachineGroupVersionKind.Kind || cached == nil || cached.UID != owner.UID {
			continue
		}
		if vmi := h.vmi(cached); names(template(cached), dv.Name) || vmi != nil && uses(vmi, dv.Name) {
			return false, nil
		}
		vm := &kvv1.VirtualMachine{}
		err := h.kubevirt.Get().Namespace(dv.Namespace).Resource(resourceVMs).Name(owner.Name).Timeout(requestTimeout).Do(ctx).Into(vm)
		if err != nil {
			return false, translate(ctx, err)
		}
		return vm.UID == owner.UID && strings.HasPrefix(dv.Name, prefix(vm)) && !names(template(vm), dv.Name), nil
	}
	return false, nil
}

// names tells whether a volume of a template is a DataVolume.
func names(spec *kvv1.VirtualMachineInstanceSpec, dataVolume string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v kvv1.Volume) bool { return v.DataVolume != nil && v.DataVolume.Name == dataVolume })
}
