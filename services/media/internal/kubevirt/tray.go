// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kvv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	// ownTray is the drive that Insert adds to a machine.
	ownTray = "virtbmc-media"
	// namePrefix begins the names of all media.
	namePrefix = "virtbmc-media-"

	// machineLabel has the UID of the machine that a DataVolume is a medium of.
	machineLabel = "bmc.kubevirt.io/machine"
	// deviceAnnotation has the tray that it is for, urlAnnotation where its image
	// came from.
	deviceAnnotation = "bmc.kubevirt.io/media-device"
	urlAnnotation    = "bmc.kubevirt.io/media-url"

	// failedAttempts is how often CDI's importer may fail before the import
	// counts as failed. CDI itself goes on for ever.
	failedAttempts = 3
)

// gates are the feature gates that say whether a tray can be changed while its
// machine runs.
const (
	gateDeclarative = "DeclarativeHotplugVolumes"
	// gateHotplug is the older one, which switches the other off.
	gateHotplug = "HotplugVolumes"
)

// Capability says what the cluster lets Insert and Eject do.
type Capability struct {
	// CDI says that images can be imported; Trouble why not.
	CDI     bool
	Trouble string
	// Live says that a tray changes while its machine runs.
	Live bool
}

// Capability tells what the cluster can do in a namespace now.
func (h *Hypervisor) Capability(namespace string) Capability {
	var c Capability
	if caches := h.of(namespace); caches != nil {
		c.CDI, c.Trouble = caches.volumes.synced()
	}
	for _, kv := range list[kvv1.KubeVirt](h.kubevirts) {
		if developer := kv.Spec.Configuration.DeveloperConfiguration; developer != nil {
			c.Live = live(developer.FeatureGates)
		}
	}
	return c
}

func live(gates []string) bool {
	return slices.Contains(gates, gateDeclarative) && !slices.Contains(gates, gateHotplug)
}

// prefix begins the names of a machine's media: no other object has such a name by
// chance.
func prefix(vm *kvv1.VirtualMachine) string {
	sum := sha256.Sum256([]byte(vm.UID))
	return namePrefix + hex.EncodeToString(sum[:5]) + "-"
}

// medium names the DataVolume of ours that is in a tray; empty when there is none.
func medium(vm *kvv1.VirtualMachine, volume *kvv1.Volume) string {
	if volume != nil && volume.DataVolume != nil && strings.HasPrefix(volume.DataVolume.Name, prefix(vm)) {
		return volume.DataVolume.Name
	}
	return ""
}

func volumeOf(spec *kvv1.VirtualMachineInstanceSpec, name string) *kvv1.Volume {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == name {
			return &spec.Volumes[i]
		}
	}
	return nil
}

// drive returns a CD-ROM drive; nil when there is no such drive.
func drive(spec *kvv1.VirtualMachineInstanceSpec, name string) *kvv1.Disk {
	for i := range spec.Domain.Devices.Disks {
		if d := &spec.Domain.Devices.Disks[i]; d.Name == name && d.CDRom != nil {
			return d
		}
	}
	return nil
}

func template(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstanceSpec {
	if vm.Spec.Template == nil {
		return &kvv1.VirtualMachineInstanceSpec{}
	}
	return &vm.Spec.Template.Spec
}

// devices lists a machine's trays by name, the one that Insert had best use
// first: one that has our medium, then one that a running guest sees, then our
// own, which Insert adds where there is none yet. Those that somebody else has
// filled come last.
func devices(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance, live bool) []string {
	spec := template(vm)
	names := []string{ownTray}
	for i := range spec.Domain.Devices.Disks {
		d := &spec.Domain.Devices.Disks[i]
		switch {
		case d.Name == ownTray && d.CDRom == nil:
			names = slices.DeleteFunc(names, func(name string) bool { return name == ownTray })
		case d.CDRom != nil && d.Name != ownTray:
			names = append(names, d.Name)
		}
	}
	rank := func(name string) int {
		volume := volumeOf(spec, name)
		switch {
		case medium(vm, volume) != "":
			return 0
		case volume != nil:
			return 3
		case live && vmi != nil && drive(&vmi.Spec, name) != nil:
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// trayOf describes one of those trays. volume is its medium's DataVolume, nil
// when that is gone; volumes are known unless CDI's are not.
func trayOf(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance, name string, live bool, dataVolume func(string) *cdiv1.DataVolume, known bool) hypervisor.Tray {
	tray := hypervisor.Tray{Device: name, Pending: pending(vm, vmi, name, live)}
	volume := volumeOf(template(vm), name)
	if volume == nil {
		return tray
	}
	ours := medium(vm, volume)
	if ours == "" {
		tray.Medium = &hypervisor.Medium{Phase: hypervisor.MediumInserted, Progress: 100, Foreign: true}
		return tray
	}
	dv := dataVolume(ours)
	if dv == nil {
		tray.Medium = &hypervisor.Medium{Phase: hypervisor.MediumFailed, Message: "DataVolume " + ours + " is gone"}
		if !known {
			tray.Medium = &hypervisor.Medium{Message: "CDI does not answer"}
		}
		return tray
	}
	tray.Medium = progress(dv)
	tray.Changed = changed(dv)
	return tray
}

// pending tells whether only the next instance shows what the template has in a
// tray.
func pending(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance, name string, live bool) bool {
	if vmi == nil {
		return false
	}
	wanted, present := volumeOf(template(vm), name), volumeOf(&vmi.Spec, name)
	if claim(wanted) == claim(present) && (wanted == nil) == (present == nil) {
		return false
	}
	fixed := func(v *kvv1.Volume) bool {
		return v != nil && (v.DataVolume == nil || !v.DataVolume.Hotpluggable)
	}
	return !live || drive(&vmi.Spec, name) == nil || fixed(wanted) || fixed(present)
}

// claim names what fills a tray.
func claim(v *kvv1.Volume) string {
	switch {
	case v == nil:
		return ""
	case v.DataVolume != nil:
		return "dv/" + v.DataVolume.Name
	case v.PersistentVolumeClaim != nil:
		return "pvc/" + v.PersistentVolumeClaim.ClaimName
	default:
		return "other"
	}
}

// progress tells how far the import of a DataVolume is.
func progress(dv *cdiv1.DataVolume) *hypervisor.Medium {
	m := &hypervisor.Medium{URL: dv.Annotations[urlAnnotation], Phase: hypervisor.MediumImporting, Message: "waiting for CDI"}
	running := condition(dv, cdiv1.DataVolumeRunning)
	if percent, ok := strings.CutSuffix(string(dv.Status.Progress), "%"); ok {
		if f, err := strconv.ParseFloat(percent, 64); err == nil && f >= 0 && f <= 100 {
			m.Progress = int(f)
		}
	}
	switch {
	case dv.DeletionTimestamp != nil:
		m.Phase, m.Message = hypervisor.MediumFailed, "its DataVolume is being deleted"
	case dv.Status.Phase == cdiv1.Succeeded:
		m.Phase, m.Progress, m.Message = hypervisor.MediumInserted, 100, ""
	case dv.Status.Phase == cdiv1.Failed, running != nil && dv.Status.RestartCount >= failedAttempts && running.Status == corev1.ConditionFalse:
		m.Phase, m.Message = hypervisor.MediumFailed, "import failed"
		if running != nil && running.Message != "" {
			m.Message = running.Message
		}
	case running != nil && running.Status == corev1.ConditionFalse && running.Message != "":
		m.Message = running.Message
	case dv.Status.Phase == cdiv1.ImportInProgress:
		m.Message = "importing"
	case dv.Status.Phase != "":
		m.Message = string(dv.Status.Phase)
	}
	return m
}

func condition(dv *cdiv1.DataVolume, kind cdiv1.DataVolumeConditionType) *cdiv1.DataVolumeCondition {
	for i := range dv.Status.Conditions {
		if dv.Status.Conditions[i].Type == kind {
			return &dv.Status.Conditions[i]
		}
	}
	return nil
}

// changed is when a DataVolume last changed its phase; the zero time when that is
// unknown.
func changed(dv *cdiv1.DataVolume) time.Time {
	last := dv.CreationTimestamp.Time
	for i := range dv.Status.Conditions {
		if at := dv.Status.Conditions[i].LastTransitionTime.Time; at.After(last) {
			last = at
		}
	}
	return last
}
