// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/bootorder"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// ImpossibleError says why an instance can't be booted as an override wants it.
type ImpossibleError struct{ Reason string }

// Error implements error.
func (e *ImpossibleError) Error() string { return e.Reason }

func impossible(format string, args ...any) error {
	return &ImpossibleError{Reason: fmt.Sprintf(format, args...)}
}

// Patch returns what makes an instance boot as an override wants it, and the
// annotation that says so; an ImpossibleError where it can't be made to. With
// terminate the instance ends when its guest reboots, so that the next one boots
// as the machine does. An instance that has been changed so already is left as it
// is.
func Patch(vmi *kvv1.VirtualMachineInstance, armed *bootoverride.Armed, terminate bool) ([]jsonpatch.Operation, error) {
	spec := &vmi.Spec
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		return nil, impossible("the machine boots a kernel of its own (kernelBoot)")
	}
	orders, err := ordersPatch(spec, armed.Device)
	if err != nil {
		return nil, err
	}
	mode, err := modePatch(spec, armed.Mode)
	if err != nil {
		return nil, err
	}
	patch := slices.Concat(orders, mode)
	if own := spec.Domain.RebootPolicy; terminate && (own == nil || *own != kvv1.RebootPolicyTerminate) {
		patch = append(patch, set("/spec/domain/rebootPolicy", kvv1.RebootPolicyTerminate))
	}
	if vmi.Annotations[bootoverride.InstanceAnnotation] == armed.ID {
		return patch, nil // It has been here before.
	}
	return append(patch, annotate(vmi, armed.ID)), nil
}

// Strip returns what takes an ID away from an instance that has one from its
// template, where it says nothing.
func Strip(vmi *kvv1.VirtualMachineInstance) []jsonpatch.Operation {
	if _, ok := vmi.Annotations[bootoverride.InstanceAnnotation]; !ok {
		return nil
	}
	return []jsonpatch.Operation{remove(annotationPath)}
}

const annotationsPath = "/metadata/annotations"

// annotationPath is that of the annotation, as RFC 6901 section 3 writes it.
var annotationPath = annotationsPath + "/" + strings.ReplaceAll(bootoverride.InstanceAnnotation, "/", "~1")

func annotate(vmi *kvv1.VirtualMachineInstance, id string) jsonpatch.Operation {
	if len(vmi.Annotations) == 0 {
		return set(annotationsPath, map[string]string{bootoverride.InstanceAnnotation: id})
	}
	return set(annotationPath, id)
}

// set adds a member or replaces it (RFC 6902 section 4.1).
func set(path string, value any) jsonpatch.Operation {
	return jsonpatch.NewOperation("add", path, value)
}

func remove(path string) jsonpatch.Operation { return jsonpatch.NewOperation("remove", path, nil) }

// device is a boot device and where the instance has it.
type device struct {
	hypervisor.BootDevice
	path string
}

// ordersPatch numbers all devices so that those of a kind come first; empty:
// none does.
func ordersPatch(spec *kvv1.VirtualMachineInstanceSpec, first hypervisor.DeviceKind) ([]jsonpatch.Operation, error) {
	if first == "" {
		return nil, nil
	}
	if first == hypervisor.DeviceInterface && spec.Domain.LaunchSecurity != nil {
		return nil, impossible("KubeVirt does not boot a machine with launchSecurity from the network")
	}
	devices := devicesOf(spec)
	boot := make([]hypervisor.BootDevice, len(devices))
	for n := range devices {
		boot[n] = devices[n].BootDevice
	}
	planned := bootorder.Plan(boot, bootorder.Orders(boot), first)
	if planned == nil {
		return nil, impossible("the machine has no %s", first)
	}
	keepInterfaces(boot, planned)
	var patch []jsonpatch.Operation
	for n := range devices {
		switch order := planned[devices[n].Name]; order {
		case devices[n].Order:
		case 0:
			patch = append(patch, remove(devices[n].path))
		default:
			patch = append(patch, set(devices[n].path, order))
		}
	}
	return patch, nil
}

// devicesOf lists what a guest could boot from. An interface is told from a disk
// of the same name.
func devicesOf(spec *kvv1.VirtualMachineInstanceSpec) []device {
	disks, interfaces := spec.Domain.Devices.Disks, spec.Domain.Devices.Interfaces
	list := make([]device, 0, len(disks)+len(interfaces))
	for n := range disks {
		kind := hypervisor.DeviceDisk
		if disks[n].CDRom != nil {
			kind = hypervisor.DeviceCDROM
		}
		list = append(list, device{
			hypervisor.BootDevice{Name: "disk/" + disks[n].Name, Kind: kind, Order: orderOf(disks[n].BootOrder)},
			fmt.Sprintf("/spec/domain/devices/disks/%d/bootOrder", n),
		})
	}
	for n := range interfaces {
		list = append(list, device{
			hypervisor.BootDevice{Name: "interface/" + interfaces[n].Name, Kind: hypervisor.DeviceInterface, Order: orderOf(interfaces[n].BootOrder)},
			fmt.Sprintf("/spec/domain/devices/interfaces/%d/bootOrder", n),
		})
	}
	return list
}

// maxOrder is the highest boot order that counts as one.
const maxOrder = 1 << 20

func orderOf(bootOrder *uint) int {
	if bootOrder == nil || *bootOrder > maxOrder {
		return 0
	}
	return int(*bootOrder)
}

// keepInterfaces changes numbers, not the sequence, so that interfaces keep their
// own wherever that can be: after a change of one, KubeVirt wants a restart for
// the next live change of the machine's interfaces.
func keepInterfaces(devices []hypervisor.BootDevice, planned map[string]int) {
	own := map[string]int{}
	for _, d := range devices {
		if d.Kind == hypervisor.DeviceInterface {
			own[d.Name] = d.Order
		}
	}
	sequence := slices.SortedFunc(maps.Keys(planned), func(a, b string) int { return cmp.Compare(planned[a], planned[b]) })
	last := 0
	for _, name := range sequence {
		if planned[name] > 0 {
			last = max(last+1, own[name])
			planned[name] = last
		}
	}
}

const (
	firmwarePath   = "/spec/domain/firmware"
	bootloaderPath = firmwarePath + "/bootloader"
)

// modePatch boots with firmware of a mode; empty: with the machine's own. What
// the machine has chosen within that mode, as Secure Boot, stays.
func modePatch(spec *kvv1.VirtualMachineInstanceSpec, mode hypervisor.FirmwareMode) ([]jsonpatch.Operation, error) {
	if mode == "" || mode == modeOf(spec) {
		return nil, nil
	}
	var wanted kvv1.Bootloader
	architecture := cmp.Or(hypervisor.Architecture(spec.Architecture), hypervisor.ArchitectureAMD64)
	switch {
	case architecture != hypervisor.ArchitectureAMD64:
		return nil, impossible("%s has no firmware mode %s", architecture, mode)
	case mode == hypervisor.FirmwareUEFI:
		// Secure Boot is KubeVirt's default, needs SMM, and refuses most of what
		// provisioners boot.
		off := false
		wanted.EFI = &kvv1.EFI{SecureBoot: &off}
	case mode != hypervisor.FirmwareBIOS:
		return nil, impossible("there is no firmware mode %q", mode)
	case spec.Domain.LaunchSecurity != nil:
		return nil, impossible("launchSecurity needs firmware mode %s", hypervisor.FirmwareUEFI)
	default:
		wanted.BIOS = &kvv1.BIOS{}
	}
	if spec.Domain.Firmware == nil {
		return []jsonpatch.Operation{set(firmwarePath, kvv1.Firmware{Bootloader: &wanted})}, nil
	}
	return []jsonpatch.Operation{set(bootloaderPath, wanted)}, nil
}

// modeOf is the firmware mode of an instance: where it names none, that of its
// architecture.
func modeOf(spec *kvv1.VirtualMachineInstanceSpec) hypervisor.FirmwareMode {
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.Bootloader != nil {
		switch {
		case firmware.Bootloader.EFI != nil:
			return hypervisor.FirmwareUEFI
		case firmware.Bootloader.BIOS != nil:
			return hypervisor.FirmwareBIOS
		}
	}
	switch hypervisor.Architecture(spec.Architecture) {
	case "", hypervisor.ArchitectureAMD64:
		return hypervisor.FirmwareBIOS
	case hypervisor.ArchitectureARM64:
		return hypervisor.FirmwareUEFI
	default:
		return ""
	}
}
