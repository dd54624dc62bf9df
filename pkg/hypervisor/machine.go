// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"maps"
	"time"
)

// Ref names a machine: namespace and name of its VirtualMachine.
type Ref struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// RunStrategy says when the hypervisor runs a machine. A strategy that is not
// listed here is passed on verbatim.
type RunStrategy string

// The run strategies that KubeVirt's start and stop know.
const (
	// RunStrategyAlways keeps an instance running whatever happens.
	RunStrategyAlways RunStrategy = "Always"
	// RunStrategyRerunOnFailure restarts an instance that failed; a guest that
	// switches itself off stays off.
	RunStrategyRerunOnFailure RunStrategy = "RerunOnFailure"
	// RunStrategyManual starts and stops on request only.
	RunStrategyManual RunStrategy = "Manual"
	// RunStrategyHalted keeps the machine off.
	RunStrategyHalted RunStrategy = "Halted"
	// RunStrategyOnce runs one instance and leaves it as it ends.
	RunStrategyOnce RunStrategy = "Once"
)

// Phase is how far an instance is.
type Phase string

// The phases of KubeVirt's VirtualMachineInstance.
const (
	PhasePending    Phase = "Pending"
	PhaseScheduling Phase = "Scheduling"
	PhaseScheduled  Phase = "Scheduled"
	PhaseRunning    Phase = "Running"
	PhaseSucceeded  Phase = "Succeeded"
	PhaseFailed     Phase = "Failed"
	PhaseUnknown    Phase = "Unknown"
)

// Final tells whether an instance in this phase has ended for good.
func (p Phase) Final() bool { return p == PhaseSucceeded || p == PhaseFailed }

// Machine is a consistent snapshot of a machine and its instance. Snapshots are
// shared: nobody may change what they point to.
type Machine struct {
	Ref Ref
	// UID is the identity of the VirtualMachine object.
	UID string
	// ResourceVersion names this version of the VirtualMachine for SetBoot.
	ResourceVersion string
	// Deleting is set once the machine itself is being deleted.
	Deleting bool

	RunStrategy RunStrategy
	// StartQueued and StopQueued tell of start and stop requests that the
	// hypervisor has accepted and not yet acted on.
	StartQueued bool
	StopQueued  bool
	// RestartRequired says that the machine's template has changed in a way
	// that only a new instance shows.
	RestartRequired bool
	// GracePeriod is how long a guest may take to shut down when a stop names
	// no grace period.
	GracePeriod time.Duration

	// Instance is the machine's instance; nil when there is none.
	Instance *Instance

	// Devices are the template's boot devices, disks first, in its order.
	Devices  []BootDevice
	Firmware Firmware
	Hardware Hardware

	// State is what SetState last wrote; nil when nothing.
	State []byte
}

// Instance is a running, starting or ended incarnation of a machine: KubeVirt's
// VirtualMachineInstance.
type Instance struct {
	UID   string
	Phase Phase
	// Paused says that the guest is frozen in memory.
	Paused bool
	// Deleting says that the instance is being torn down; the guest may still
	// run its grace period.
	Deleting bool
	// GracePeriod is how long the guest may take when it is asked to stop.
	GracePeriod time.Duration
	// AgentConnected says that the guest agent answers.
	AgentConnected bool
	// Node is where the guest runs; a live migration changes it. Empty before.
	Node    string
	Created time.Time
	// Started is when the phase became Running; zero before.
	Started time.Time
	// BootOrder is the order that this instance was made with, by device name;
	// a device without an order is not in it.
	BootOrder map[string]int
	// Mode is the firmware mode that this instance was made with.
	Mode FirmwareMode
	// Override is the ID of the armed boot override that this instance was made
	// with (package bootoverride); empty when with none.
	Override string
}

// DeviceKind is what a boot device is.
type DeviceKind string

// The kinds of boot device.
const (
	DeviceDisk      DeviceKind = "disk"
	DeviceCDROM     DeviceKind = "cdrom"
	DeviceInterface DeviceKind = "interface"
)

// BootDevice is a disk, CD-ROM drive or network interface of a machine.
type BootDevice struct {
	Name string
	Kind DeviceKind
	// Order is the place in the boot order, from 1; 0 when the device has none.
	Order int
	// Volume is what fills the drive; empty for an empty tray and an interface.
	Volume string
}

// BootOrder returns the orders of devices by name, without those that have
// none.
func BootOrder(devices []BootDevice) map[string]int {
	orders := make(map[string]int, len(devices))
	for _, d := range devices {
		if d.Order > 0 {
			orders[d.Name] = d.Order
		}
	}
	return orders
}

// OutOfDate tells whether the machine's instance was made with another boot
// order or firmware mode than a new one would be.
func (m *Machine) OutOfDate() bool {
	return m.Instance != nil &&
		(!maps.Equal(m.Instance.BootOrder, BootOrder(m.Devices)) || m.Instance.Mode != m.Firmware.Mode)
}

// FirmwareMode is the kind of firmware; empty when it can't be told.
type FirmwareMode string

// The firmware modes.
const (
	FirmwareBIOS FirmwareMode = "BIOS"
	FirmwareUEFI FirmwareMode = "UEFI"
)

// Firmware of a machine's template.
type Firmware struct {
	Mode FirmwareMode
	// Modes are those that SetBoot can choose from, the present one included: one
	// alone where the machine's owner or its architecture has settled the mode,
	// none where it can't be told.
	Modes      []FirmwareMode
	SecureBoot bool
	// KernelBoot says that the machine boots a kernel directly, past the boot
	// order.
	KernelBoot bool
	UUID       string
	Serial     string
}

// Architecture is a machine's instruction set, as Go names it; empty when it
// can't be told.
type Architecture string

// The architectures that KubeVirt runs.
const (
	ArchitectureAMD64 Architecture = "amd64"
	ArchitectureARM64 Architecture = "arm64"
	ArchitectureS390X Architecture = "s390x"
)

// Hardware is what a machine is made of.
type Hardware struct {
	Sockets, CoresPerSocket, ThreadsPerCore int

	CPUModel     string
	Architecture Architecture
	MemoryBytes  int64
	MachineType  string
	Manufacturer string
	Product      string
	Interfaces   []Interface
	Disks        []Disk
	// GuestOS is what the guest agent tells; nil while it does not.
	GuestOS *GuestOS
	// SerialConsole says that OpenConsole can work.
	SerialConsole bool
}

// Interface is a network interface.
type Interface struct {
	Name string
	// MAC is the last address seen, lower case with colons; empty when none was.
	MAC   string
	Model string
	IPs   []string
}

// Disk is a disk; CD-ROM drives are trays.
type Disk struct {
	Name string
	// CapacityBytes is 0 when unknown.
	CapacityBytes int64
	Bus           string
	Serial        string
	ReadOnly      bool
}

// GuestOS is what the guest agent tells of the operating system.
type GuestOS struct {
	Name, Version, KernelRelease, Hostname string
}

// Tray is a CD-ROM drive of a machine.
type Tray struct {
	// Device is the drive's name.
	Device string
	// Medium is what is in it or on the way into it; nil when it is empty.
	Medium *Medium
	// Pending says that the running instance does not show the tray's content
	// yet and will do so only at the machine's next start.
	Pending bool
	// Changed is when the content last changed; zero when unknown.
	Changed time.Time
}

// MediumPhase is how far a medium is.
type MediumPhase string

// The phases of a medium.
const (
	// MediumImporting means that the image is being fetched.
	MediumImporting MediumPhase = "Importing"
	// MediumInserted means that the medium is in the tray.
	MediumInserted MediumPhase = "Inserted"
	// MediumFailed means that the image could not be fetched.
	MediumFailed MediumPhase = "Failed"
)

// Medium is an image in a tray.
type Medium struct {
	// URL is where the image came from, without credentials; empty for a
	// foreign medium.
	URL   string
	Phase MediumPhase
	// Progress is the import's progress in percent.
	Progress int
	// Message says what the import waits for or why it failed.
	Message string
	// Foreign says that the medium was not put there by Insert.
	Foreign bool
}
