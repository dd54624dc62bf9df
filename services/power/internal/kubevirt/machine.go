// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// defaultGracePeriod is KubeVirt's for templates that name none.
const defaultGracePeriod = 30 * time.Second

// snapshot makes a machine of its objects: vmi is nil where there is no
// instance, seen is what is remembered of earlier instances.
func snapshot(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance, seen *sighting) *hypervisor.Machine {
	seen = known(vm, vmi, seen)
	spec := effective(vm, seen)
	m := &hypervisor.Machine{
		Ref:             hypervisor.Ref{Namespace: vm.Namespace, Name: vm.Name},
		UID:             string(vm.UID),
		ResourceVersion: vm.ResourceVersion,
		Deleting:        vm.DeletionTimestamp != nil,
		RunStrategy:     runStrategy(vm),
		GracePeriod:     gracePeriod(spec),
		Instance:        instance(vmi),
		Devices:         devices(spec),
		Firmware:        firmware(vm, spec, vmi, seen),
		Hardware:        hardware(vm, spec, vmi, seen),
	}
	for _, c := range vm.Status.Conditions {
		if c.Type == kvv1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue {
			m.RestartRequired = true
		}
	}
	for _, r := range vm.Status.StateChangeRequests {
		switch r.Action {
		case kvv1.StartRequest:
			m.StartQueued = true
		case kvv1.StopRequest:
			m.StopQueued = true
		}
	}
	if state, ok := vm.Annotations[stateAnnotation]; ok {
		m.State = []byte(state)
	}
	return m
}

// template returns a VM's template, an empty one if it has none.
func template(vm *kvv1.VirtualMachine) *kvv1.VirtualMachineInstanceSpec {
	if vm.Spec.Template == nil {
		return &kvv1.VirtualMachineInstanceSpec{}
	}
	return &vm.Spec.Template.Spec
}

// runStrategy reads spec.runStrategy or the deprecated spec.running.
func runStrategy(vm *kvv1.VirtualMachine) hypervisor.RunStrategy {
	switch {
	case vm.Spec.RunStrategy != nil:
		return hypervisor.RunStrategy(*vm.Spec.RunStrategy)
	case vm.Spec.Running != nil && *vm.Spec.Running:
		return hypervisor.RunStrategyAlways
	default:
		return hypervisor.RunStrategyHalted
	}
}

func gracePeriod(spec *kvv1.VirtualMachineInstanceSpec) time.Duration {
	if spec.TerminationGracePeriodSeconds == nil {
		return defaultGracePeriod
	}
	const longest = int64(math.MaxInt64 / time.Second)
	return time.Duration(min(max(*spec.TerminationGracePeriodSeconds, 0), longest)) * time.Second
}

func instance(vmi *kvv1.VirtualMachineInstance) *hypervisor.Instance {
	if vmi == nil {
		return nil
	}
	i := &hypervisor.Instance{
		UID:         string(vmi.UID),
		Phase:       hypervisor.Phase(vmi.Status.Phase),
		Deleting:    vmi.DeletionTimestamp != nil,
		GracePeriod: gracePeriod(&vmi.Spec),
		Created:     vmi.CreationTimestamp.Time,
		BootOrder:   hypervisor.BootOrder(devices(&vmi.Spec)),
		Mode:        instanceMode(vmi),
		Node:        vmi.Status.NodeName,
		Override:    vmi.Annotations[bootoverride.InstanceAnnotation],
	}
	if i.Phase == "" {
		i.Phase = hypervisor.PhasePending
	}
	for _, c := range vmi.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case kvv1.VirtualMachineInstancePaused:
			i.Paused = !i.Phase.Final()
		case kvv1.VirtualMachineInstanceAgentConnected:
			i.AgentConnected = !i.Phase.Final()
		}
	}
	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if t.Phase == kvv1.Running {
			i.Started = t.PhaseTransitionTimestamp.Time
		}
	}
	return i
}

// devices lists what a guest could boot from.
func devices(spec *kvv1.VirtualMachineInstanceSpec) []hypervisor.BootDevice {
	d := &spec.Domain.Devices
	list := make([]hypervisor.BootDevice, 0, len(d.Disks)+len(d.Interfaces))
	for i := range d.Disks {
		disk := &d.Disks[i]
		device := hypervisor.BootDevice{
			Name:   disk.Name,
			Kind:   hypervisor.DeviceDisk,
			Order:  order(disk.BootOrder),
			Volume: volumeSource(spec.Volumes, disk.Name),
		}
		if disk.CDRom != nil {
			device.Kind = hypervisor.DeviceCDROM
		}
		list = append(list, device)
	}
	for i := range d.Interfaces {
		list = append(list, hypervisor.BootDevice{
			Name:  interfaceDevice(d, d.Interfaces[i].Name),
			Kind:  hypervisor.DeviceInterface,
			Order: order(d.Interfaces[i].BootOrder),
		})
	}
	return list
}

func order(bootOrder *uint) int {
	if bootOrder == nil || *bootOrder > math.MaxInt {
		return 0
	}
	return int(*bootOrder)
}

// interfaceDevice is the name of an interface among the boot devices: its own,
// unless a disk has that too.
func interfaceDevice(d *kvv1.Devices, name string) string {
	if slices.ContainsFunc(d.Disks, func(disk kvv1.Disk) bool { return disk.Name == name }) {
		return "interface/" + name
	}
	return name
}

// volumeSource names what fills a drive; empty when nothing does.
func volumeSource(volumes []kvv1.Volume, name string) string {
	for i := range volumes {
		v := &volumes[i]
		if v.Name != name {
			continue
		}
		switch {
		case v.DataVolume != nil:
			return v.DataVolume.Name
		case v.PersistentVolumeClaim != nil:
			return v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
			return v.Ephemeral.PersistentVolumeClaim.ClaimName
		default:
			return v.Name
		}
	}
	return ""
}

// firmware reads the template's, and what KubeVirt has filled in where the
// template is silent.
func firmware(vm *kvv1.VirtualMachine, spec *kvv1.VirtualMachineInstanceSpec, vmi *kvv1.VirtualMachineInstance, seen *sighting) hypervisor.Firmware {
	fw := spec.Domain.Firmware
	if fw == nil {
		fw = &kvv1.Firmware{}
	}
	f := hypervisor.Firmware{
		Mode:       templateMode(vm, seen),
		Modes:      modes(vm, seen),
		UUID:       strings.ToLower(string(fw.UUID)),
		Serial:     fw.Serial,
		SecureBoot: secureBoot(fw.Bootloader),
		KernelBoot: fw.KernelBoot != nil && fw.KernelBoot.Container != nil,
	}
	if vmi != nil && vmi.Spec.Domain.Firmware != nil {
		own := vmi.Spec.Domain.Firmware
		f.UUID = cmp.Or(f.UUID, strings.ToLower(string(own.UUID)))
		f.Serial = cmp.Or(f.Serial, own.Serial)
		if guessed(vm, seen) && bootloaderMode(fw.Bootloader) == "" {
			f.SecureBoot = secureBoot(own.Bootloader)
		}
	}
	return f
}

// secureBoot tells whether a boot loader checks signatures: KubeVirt's default
// for EFI.
func secureBoot(b *kvv1.Bootloader) bool {
	return b != nil && b.EFI != nil && (b.EFI.SecureBoot == nil || *b.EFI.SecureBoot)
}

// bootloaderMode is the mode that a boot loader names; empty when it names none.
func bootloaderMode(b *kvv1.Bootloader) hypervisor.FirmwareMode {
	switch {
	case b == nil:
		return ""
	case b.EFI != nil:
		return hypervisor.FirmwareUEFI
	case b.BIOS != nil:
		return hypervisor.FirmwareBIOS
	default:
		return ""
	}
}

// guessed tells that a preference has its part in a machine and was not read
// yet.
func guessed(vm *kvv1.VirtualMachine, seen *sighting) bool {
	return vm.Spec.Preference != nil && seen.expansion == nil
}

// templateMode is the mode that a new instance would have: that of the last
// instance seen while only an unread preference can tell.
func templateMode(vm *kvv1.VirtualMachine, seen *sighting) hypervisor.FirmwareMode {
	spec := effective(vm, seen)
	if spec.Domain.Firmware != nil {
		if mode := bootloaderMode(spec.Domain.Firmware.Bootloader); mode != "" {
			return mode
		}
	}
	if guessed(vm, seen) {
		return seen.mode
	}
	return defaultMode(spec.Architecture)
}

// modes are those that a machine can have: the one that its owner has chosen in
// template or preference, else what its architecture knows. A mode that SetBoot
// has put into the template is not the owner's.
func modes(vm *kvv1.VirtualMachine, seen *sighting) []hypervisor.FirmwareMode {
	spec := effective(vm, seen)
	var chosen hypervisor.FirmwareMode
	if own, kept, err := keptBootloader(vm); kept {
		if err != nil {
			return nil
		}
		chosen = bootloaderMode(own)
	} else if spec.Domain.Firmware != nil {
		chosen = bootloaderMode(spec.Domain.Firmware.Bootloader)
	}
	if chosen == "" && guessed(vm, seen) {
		chosen = seen.mode
		if chosen == "" {
			return nil
		}
	}
	switch {
	case chosen != "":
		return []hypervisor.FirmwareMode{chosen}
	case spec.Architecture == "" || hypervisor.Architecture(spec.Architecture) == hypervisor.ArchitectureAMD64:
		return []hypervisor.FirmwareMode{hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI}
	}
	if mode := defaultMode(spec.Architecture); mode != "" {
		return []hypervisor.FirmwareMode{mode}
	}
	return nil
}

func instanceMode(vmi *kvv1.VirtualMachineInstance) hypervisor.FirmwareMode {
	if fw := vmi.Spec.Domain.Firmware; fw != nil {
		if mode := bootloaderMode(fw.Bootloader); mode != "" {
			return mode
		}
	}
	return defaultMode(vmi.Spec.Architecture)
}

// defaultMode is what KubeVirt starts where no boot loader is named.
func defaultMode(architecture string) hypervisor.FirmwareMode {
	switch hypervisor.Architecture(architecture) {
	case hypervisor.ArchitectureARM64:
		return hypervisor.FirmwareUEFI
	case hypervisor.ArchitectureAMD64, "":
		return hypervisor.FirmwareBIOS
	default:
		return ""
	}
}

// keptBootloader is the boot loader that a template had before SetBoot changed
// its mode; not kept where it did not.
func keptBootloader(vm *kvv1.VirtualMachine) (own *kvv1.Bootloader, kept bool, err error) {
	document, kept := vm.Annotations[bootloaderAnnotation]
	if !kept {
		return nil, false, nil
	}
	if err := json.Unmarshal([]byte(document), &own); err != nil {
		return nil, true, fmt.Errorf("annotation %s: %w", bootloaderAnnotation, err)
	}
	return own, true, nil
}

// trays lists a machine's CD-ROM drives. What fills them was put there by others.
func trays(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance) []hypervisor.Tray {
	var list []hypervisor.Tray
	for _, d := range devices(template(vm)) {
		if d.Kind != hypervisor.DeviceCDROM {
			continue
		}
		tray := hypervisor.Tray{Device: d.Name}
		if d.Volume != "" {
			tray.Medium = &hypervisor.Medium{Phase: hypervisor.MediumInserted, Progress: 100, Foreign: true}
		}
		if vmi != nil && !vmi.IsFinal() {
			tray.Pending = !sameContent(template(vm).Volumes, vmi.Spec.Volumes, d.Name)
		}
		list = append(list, tray)
	}
	return list
}

// sameContent tells whether the same fills a drive in both lists.
func sameContent(a, b []kvv1.Volume, name string) bool {
	return volumeSource(a, name) == volumeSource(b, name) && image(a, name) == image(b, name)
}

// image is the container image that fills a drive.
func image(volumes []kvv1.Volume, name string) string {
	for i := range volumes {
		if volumes[i].Name == name && volumes[i].ContainerDisk != nil {
			return volumes[i].ContainerDisk.Image
		}
	}
	return ""
}

// sighting is what is known of a machine beyond its object: of its instances,
// past their end, and of its instance type and preference.
type sighting struct {
	owner types.UID // Of the machine: another of the same name inherits nothing.
	// macs and capacities are those of interfaces and disks.
	macs         map[string]string
	capacities   map[string]int64
	mode         hypervisor.FirmwareMode
	cpu          topology
	cpuModel     string
	memory       int64
	machineType  string
	architecture string
	// podInterface is the interface to the pod's network that KubeVirt adds by
	// itself; nil when unknown.
	podInterface *kvv1.Interface
	expansion    *expansion
}

func (s *sighting) equal(o *sighting) bool {
	return s.owner == o.owner && s.mode == o.mode && s.cpu == o.cpu && s.cpuModel == o.cpuModel &&
		s.memory == o.memory && s.machineType == o.machineType && s.architecture == o.architecture &&
		maps.Equal(s.macs, o.macs) && maps.Equal(s.capacities, o.capacities) &&
		reflect.DeepEqual(s.podInterface, o.podInterface) && s.expansion == o.expansion
}

// of is what counts for a machine: nothing that was seen of another.
func (s *sighting) of(vm *kvv1.VirtualMachine) *sighting {
	if s == nil || s.owner != vm.UID {
		return &sighting{}
	}
	return s
}

// known is what counts for a machine, its present instance included: that may
// have been seen before the machine was.
func known(vm *kvv1.VirtualMachine, vmi *kvv1.VirtualMachineInstance, seen *sighting) *sighting {
	if vmi != nil {
		seen = sight(vmi, seen)
	}
	return seen.of(vm)
}

// sight adds an instance to what was seen before.
func sight(vmi *kvv1.VirtualMachineInstance, before *sighting) *sighting {
	now := &sighting{
		macs:         map[string]string{},
		capacities:   map[string]int64{},
		mode:         instanceMode(vmi),
		cpu:          cpuTopology(&vmi.Spec.Domain),
		cpuModel:     cpuModel(&vmi.Spec.Domain),
		memory:       memoryBytes(&vmi.Spec.Domain),
		architecture: vmi.Spec.Architecture,
	}
	if m := vmi.Status.Memory; m != nil && m.GuestCurrent != nil {
		now.memory = m.GuestCurrent.Value()
	}
	if t := vmi.Status.CurrentCPUTopology; t != nil && t.Cores > 0 {
		now.cpu = topology{sockets: int(t.Sockets), cores: int(t.Cores), threads: int(t.Threads)}
	}
	for _, m := range []*kvv1.Machine{vmi.Spec.Domain.Machine, vmi.Status.Machine} {
		if m != nil {
			now.machineType = m.Type
		}
	}
	if of := owner(vmi); of != nil {
		now.owner = of.UID
	}
	if before != nil && before.owner != now.owner {
		before = nil
	}
	if before != nil {
		maps.Copy(now.macs, before.macs)
		maps.Copy(now.capacities, before.capacities)
		now.machineType = cmp.Or(now.machineType, before.machineType)
		now.podInterface, now.expansion = before.podInterface, before.expansion
	}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		nic := &vmi.Spec.Domain.Devices.Interfaces[i]
		if nic.MacAddress != "" {
			now.macs[nic.Name] = normalMAC(nic.MacAddress)
		}
		if nic.Name == podInterface {
			now.podInterface = &kvv1.Interface{Name: nic.Name, Model: nic.Model, InterfaceBindingMethod: nic.InterfaceBindingMethod}
		}
	}
	for i := range vmi.Status.VolumeStatus {
		if size := volumeSize(&vmi.Status.VolumeStatus[i]); size > 0 {
			now.capacities[vmi.Status.VolumeStatus[i].Name] = size
		}
	}
	for _, i := range vmi.Status.Interfaces {
		if i.Name != "" && i.MAC != "" {
			now.macs[i.Name] = normalMAC(i.MAC)
		}
	}
	if before != nil && now.equal(before) {
		return before
	}
	return now
}

// normalMAC is lower case with colons.
func normalMAC(mac string) string {
	return strings.ReplaceAll(strings.ToLower(mac), "-", ":")
}
