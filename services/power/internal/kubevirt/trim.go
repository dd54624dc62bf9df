// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"kubevirtbmc.dev/pkg/bootoverride"
)

// trim is the informers' transform: it keeps what snapshots and patches need.
// User data, credentials and the like never stay in memory.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *kvv1.VirtualMachine:
		return trimVM(o), nil
	case *kvv1.VirtualMachineInstance:
		return trimVMI(o), nil
	default:
		return object, nil
	}
}

func trimVM(vm *kvv1.VirtualMachine) *kvv1.VirtualMachine {
	trimmed := &kvv1.VirtualMachine{
		ObjectMeta: trimMeta(&vm.ObjectMeta),
		Spec: kvv1.VirtualMachineSpec{
			Running:      vm.Spec.Running,
			RunStrategy:  vm.Spec.RunStrategy,
			Instancetype: vm.Spec.Instancetype,
			Preference:   vm.Spec.Preference,
		},
		Status: kvv1.VirtualMachineStatus{
			StateChangeRequests: vm.Status.StateChangeRequests,
			InstancetypeRef:     vm.Status.InstancetypeRef,
			PreferenceRef:       vm.Status.PreferenceRef,
		},
	}
	for i := range vm.Spec.DataVolumeTemplates {
		t := &vm.Spec.DataVolumeTemplates[i]
		kept := kvv1.DataVolumeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: t.Name}}
		if t.Spec.Storage != nil {
			kept.Spec.Storage = &cdiv1.StorageSpec{Resources: t.Spec.Storage.Resources}
		}
		if t.Spec.PVC != nil {
			kept.Spec.PVC = t.Spec.PVC
		}
		trimmed.Spec.DataVolumeTemplates = append(trimmed.Spec.DataVolumeTemplates, kept)
	}
	for _, c := range vm.Status.Conditions {
		if c.Type == kvv1.VirtualMachineRestartRequired {
			trimmed.Status.Conditions = append(trimmed.Status.Conditions, kvv1.VirtualMachineCondition{Type: c.Type, Status: c.Status})
		}
	}
	if vm.Spec.Template != nil {
		trimmed.Spec.Template = &kvv1.VirtualMachineInstanceTemplateSpec{Spec: trimSpec(&vm.Spec.Template.Spec)}
	}
	return trimmed
}

func trimVMI(vmi *kvv1.VirtualMachineInstance) *kvv1.VirtualMachineInstance {
	trimmed := &kvv1.VirtualMachineInstance{
		ObjectMeta: trimMeta(&vmi.ObjectMeta),
		Spec:       trimSpec(&vmi.Spec),
		Status: kvv1.VirtualMachineInstanceStatus{
			Phase:                     vmi.Status.Phase,
			NodeName:                  vmi.Status.NodeName,
			PhaseTransitionTimestamps: vmi.Status.PhaseTransitionTimestamps,
			GuestOSInfo:               vmi.Status.GuestOSInfo,
			Machine:                   vmi.Status.Machine,
			CurrentCPUTopology:        vmi.Status.CurrentCPUTopology,
			Memory:                    vmi.Status.Memory,
		},
	}
	for _, c := range vmi.Status.Conditions {
		if c.Type == kvv1.VirtualMachineInstancePaused || c.Type == kvv1.VirtualMachineInstanceAgentConnected {
			trimmed.Status.Conditions = append(trimmed.Status.Conditions, kvv1.VirtualMachineInstanceCondition{Type: c.Type, Status: c.Status})
		}
	}
	for _, i := range vmi.Status.Interfaces {
		trimmed.Status.Interfaces = append(trimmed.Status.Interfaces, kvv1.VirtualMachineInstanceNetworkInterface{Name: i.Name, MAC: i.MAC, IPs: i.IPs})
	}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		kept := kvv1.VolumeStatus{Name: s.Name, Size: s.Size}
		if s.PersistentVolumeClaimInfo != nil {
			kept.PersistentVolumeClaimInfo = &kvv1.PersistentVolumeClaimInfo{Capacity: s.PersistentVolumeClaimInfo.Capacity}
		}
		trimmed.Status.VolumeStatus = append(trimmed.Status.VolumeStatus, kept)
	}
	return trimmed
}

// trimMeta keeps an object's identity. Annotations stay an empty map where
// there are others than ours: a patch has to know whether there are any.
func trimMeta(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Namespace:         meta.Namespace,
		Name:              meta.Name,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		Generation:        meta.Generation,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
		OwnerReferences:   meta.OwnerReferences,
	}
	if meta.Annotations != nil {
		trimmed.Annotations = map[string]string{}
		for _, key := range []string{stateAnnotation, bootloaderAnnotation, devicesAnnotation, bootoverride.InstanceAnnotation} {
			if value, ok := meta.Annotations[key]; ok {
				trimmed.Annotations[key] = value
			}
		}
	}
	return trimmed
}

func trimSpec(spec *kvv1.VirtualMachineInstanceSpec) kvv1.VirtualMachineInstanceSpec {
	trimmed := kvv1.VirtualMachineInstanceSpec{
		Architecture:                  spec.Architecture,
		TerminationGracePeriodSeconds: spec.TerminationGracePeriodSeconds,
		Domain: kvv1.DomainSpec{
			Resources: spec.Domain.Resources,
			CPU:       spec.Domain.CPU,
			Memory:    spec.Domain.Memory,
			Machine:   spec.Domain.Machine,
			Firmware:  spec.Domain.Firmware,
			Chassis:   spec.Domain.Chassis,
			Devices: kvv1.Devices{
				Disks:                   spec.Domain.Devices.Disks,
				Interfaces:              spec.Domain.Devices.Interfaces,
				AutoattachSerialConsole: spec.Domain.Devices.AutoattachSerialConsole,
				AutoattachPodInterface:  spec.Domain.Devices.AutoattachPodInterface,
			},
		},
	}
	for i := range spec.Domain.Devices.Filesystems {
		trimmed.Domain.Devices.Filesystems = append(trimmed.Domain.Devices.Filesystems,
			kvv1.Filesystem{Name: spec.Domain.Devices.Filesystems[i].Name})
	}
	for i := range spec.Networks {
		trimmed.Networks = append(trimmed.Networks, kvv1.Network{Name: spec.Networks[i].Name})
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		trimmed.Volumes = append(trimmed.Volumes, kvv1.Volume{
			Name: v.Name,
			VolumeSource: kvv1.VolumeSource{
				DataVolume:            v.DataVolume,
				PersistentVolumeClaim: v.PersistentVolumeClaim,
				ContainerDisk:         v.ContainerDisk,
				Ephemeral:             v.Ephemeral,
				EmptyDisk:             v.EmptyDisk,
				HostDisk:              v.HostDisk,
			},
		})
	}
	return trimmed
}
