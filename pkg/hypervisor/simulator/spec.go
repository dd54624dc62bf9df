// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

const (
	gibibyte = 1 << 30

	defaultDiskBytes   = 20 * gibibyte
	defaultMemoryBytes = 4 * gibibyte
	defaultCores       = 2
	defaultGracePeriod = 30 * time.Second
)

// Spec describes a machine to make. Only Ref is needed: the default machine has
// 2 cores, 4 GiB, UEFI, a 20 GiB disk that it boots from, a network interface
// that it boots from next, an empty CD-ROM tray, and is Halted.
type Spec struct {
	Ref hypervisor.Ref
	// RunStrategy is Halted when empty.
	RunStrategy hypervisor.RunStrategy

	Sockets, CoresPerSocket, ThreadsPerCore int

	MemoryBytes int64
	// GracePeriod is 30 s when zero.
	GracePeriod time.Duration
	// Mode is UEFI when empty.
	Mode hypervisor.FirmwareMode
	// Modes are what the mode can be changed to; Mode alone when nil.
	Modes      []hypervisor.FirmwareMode
	KernelBoot bool

	// Disks, Trays and Interfaces are the default machine's when nil; none when
	// empty.
	Disks      []DiskSpec
	Trays      []TraySpec
	Interfaces []InterfaceSpec

	// NoSerialConsole takes the serial port away.
	NoSerialConsole bool
	// NoHotplug makes inserted and ejected media count at the next start only.
	NoHotplug bool
	// IgnoreACPI makes the guest deaf to requests to shut down.
	IgnoreACPI bool
	// Agent makes a guest agent connect when the guest is up.
	Agent bool
}

// DiskSpec describes a disk.
type DiskSpec struct {
	Name string
	// Bytes is 20 GiB when 0.
	Bytes int64
	// Bus is virtio when empty.
	Bus   string
	Order int
	// Blank disks have nothing to boot.
	Blank    bool
	ReadOnly bool
}

// TraySpec describes a CD-ROM tray.
type TraySpec struct {
	Name  string
	Order int
	// Volume is a medium that somebody put into the tray by other means.
	Volume string
}

// InterfaceSpec describes a network interface.
type InterfaceSpec struct {
	Name string
	// MAC follows from the names of machine and interface when empty.
	MAC   string
	Order int
}

func (s *Spec) setDefaults() {
	if s.RunStrategy == "" {
		s.RunStrategy = hypervisor.RunStrategyHalted
	}
	if s.Sockets == 0 {
		s.Sockets = 1
	}
	if s.CoresPerSocket == 0 {
		s.CoresPerSocket = defaultCores
	}
	if s.ThreadsPerCore == 0 {
		s.ThreadsPerCore = 1
	}
	if s.MemoryBytes == 0 {
		s.MemoryBytes = defaultMemoryBytes
	}
	if s.GracePeriod == 0 {
		s.GracePeriod = defaultGracePeriod
	}
	if s.Mode == "" {
		s.Mode = hypervisor.FirmwareUEFI
	}
	if s.Modes == nil {
		s.Modes = []hypervisor.FirmwareMode{s.Mode}
	}
	if s.Disks == nil {
		s.Disks = []DiskSpec{{Name: "rootdisk", Order: 1}}
	}
	if s.Interfaces == nil {
		s.Interfaces = []InterfaceSpec{{Name: "default", Order: 2}}
	}
	if s.Trays == nil {
		s.Trays = []TraySpec{{Name: "cdrom"}}
	}
}

// hardware describes the machine as its inventory does.
func (s *Spec) hardware() hypervisor.Hardware {
	h := hypervisor.Hardware{
		Sockets:        s.Sockets,
		CoresPerSocket: s.CoresPerSocket,
		ThreadsPerCore: s.ThreadsPerCore,
		CPUModel:       "host-model",
		Architecture:   hypervisor.ArchitectureAMD64,
		MemoryBytes:    s.MemoryBytes,
		MachineType:    "q35",
		Manufacturer:   "KubeVirt",
		Product:        "Simulated",
		SerialConsole:  !s.NoSerialConsole,
	}
	for _, d := range s.Disks {
		disk := hypervisor.Disk{
			Name: d.Name, CapacityBytes: d.Bytes, Bus: d.Bus, ReadOnly: d.ReadOnly,
			Serial: fmt.Sprintf("%.5X", digest("disk", s.Ref, d.Name)),
		}
		if disk.CapacityBytes == 0 {
			disk.CapacityBytes = defaultDiskBytes
		}
		if disk.Bus == "" {
			disk.Bus = "virtio"
		}
		h.Disks = append(h.Disks, disk)
	}
	for _, i := range s.Interfaces {
		nic := hypervisor.Interface{Name: i.Name, MAC: i.MAC, Model: "virtio"}
		if nic.MAC == "" {
			nic.MAC = mac(s.Ref, i.Name)
		}
		h.Interfaces = append(h.Interfaces, nic)
	}
	return h
}

// devices lists the boot devices: disks, then trays, then interfaces.
func (s *Spec) devices() []hypervisor.BootDevice {
	var devices []hypervisor.BootDevice
	for _, d := range s.Disks {
		devices = append(devices, hypervisor.BootDevice{Name: d.Name, Kind: hypervisor.DeviceDisk, Order: d.Order, Volume: d.Name})
	}
	for _, t := range s.Trays {
		devices = append(devices, hypervisor.BootDevice{Name: t.Name, Kind: hypervisor.DeviceCDROM, Order: t.Order, Volume: t.Volume})
	}
	for _, i := range s.Interfaces {
		devices = append(devices, hypervisor.BootDevice{Name: i.Name, Kind: hypervisor.DeviceInterface, Order: i.Order})
	}
	return devices
}

// digest makes names into bytes that are the same in each run.
func digest(what string, ref hypervisor.Ref, name string) []byte {
	sum := sha256.Sum256([]byte(what + "\x00" + ref.String() + "\x00" + name))
	return sum[:]
}

// uuid is a name-based UUID (RFC 9562, version 8).
func uuid(what string, ref hypervisor.Ref, name string) string {
	b := digest(what, ref, name)[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// mac is a locally administered unicast address. 46 bits of the digest keep
// ten thousand machines apart, which the 24 bits below QEMU's own prefix do not.
func mac(ref hypervisor.Ref, name string) string {
	b := digest("mac", ref, name)
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0]&0xfc|0x02, b[1], b[2], b[3], b[4], b[5])
}

// addressed returns interfaces with the addresses that they have while the
// machine runs, of a cluster's pod network.
func addressed(ref hypervisor.Ref, interfaces []hypervisor.Interface) []hypervisor.Interface {
	interfaces = slices.Clone(interfaces)
	for n := range interfaces {
		b := digest("ip", ref, interfaces[n].Name)
		interfaces[n].IPs = []string{netip.AddrFrom4([4]byte{10, 244, b[0], max(b[1], 1)}).String()}
	}
	return interfaces
}

// checkDevices refuses what KubeVirt's webhook refuses.
func checkDevices(devices []hypervisor.BootDevice) error {
	names := map[string]bool{}
	orders := map[int]string{}
	for _, d := range devices {
		if d.Name == "" || names[d.Name] {
			return hypervisor.Invalidf("device name %q is empty or used twice", d.Name)
		}
		names[d.Name] = true
		if d.Order < 0 {
			return hypervisor.Invalidf("boot order of %s must be greater than 0", d.Name)
		}
		if other := orders[d.Order]; d.Order > 0 && other != "" {
			return hypervisor.Invalidf("boot order %d of %s is used by %s already", d.Order, d.Name, other)
		}
		orders[d.Order] = d.Name
	}
	return nil
}
