// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"
	"time"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// System is the machine behind the BMC.
type System struct {
	Header
	Messages           any               `json:"@Message.ExtendedInfo,omitempty"`
	SystemType         string            `json:"SystemType"`
	Manufacturer       string            `json:"Manufacturer,omitempty"`
	Model              string            `json:"Model,omitempty"`
	SerialNumber       string            `json:"SerialNumber,omitempty"`
	UUID               string            `json:"UUID,omitempty"`
	HostName           string            `json:"HostName,omitempty"`
	PowerState         *string           `json:"PowerState"`
	PowerRestorePolicy string            `json:"PowerRestorePolicy,omitempty"`
	LastResetTime      string            `json:"LastResetTime,omitempty"`
	Status             *Status           `json:"Status"`
	Boot               *BootProperties   `json:"Boot,omitempty"`
	ProcessorSummary   *ProcessorSummary `json:"ProcessorSummary,omitempty"`
	MemorySummary      *MemorySummary    `json:"MemorySummary,omitempty"`
	Processors         Link              `json:"Processors"`
	Memory             Link              `json:"Memory"`
	EthernetInterfaces Link              `json:"EthernetInterfaces"`
	SimpleStorage      Link              `json:"SimpleStorage"`
	Storage            Link              `json:"Storage"`
	LogServices        Link              `json:"LogServices"`
	Bios               Link              `json:"Bios"`
	SecureBoot         Link              `json:"SecureBoot"`
	SerialConsole      *SystemConsole    `json:"SerialConsole,omitempty"`
	Links              SystemLinks       `json:"Links"`
	Actions            SystemActions     `json:"Actions"`
}

// BootProperties is the Boot property of a system.
type BootProperties struct {
	Enabled        string   `json:"BootSourceOverrideEnabled"`
	AllowedEnabled []string `json:"BootSourceOverrideEnabled@Redfish.AllowableValues"`
	Target         string   `json:"BootSourceOverrideTarget"`
	AllowedTargets []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
	Mode           string   `json:"BootSourceOverrideMode,omitempty"`
	AllowedModes   []string `json:"BootSourceOverrideMode@Redfish.AllowableValues,omitempty"`
	BootOptions    Link     `json:"BootOptions"`
	BootOrder      []string `json:"BootOrder"`
}

// ProcessorSummary sums up a system's processors.
type ProcessorSummary struct {
	Count                 uint32 `json:"Count"`
	CoreCount             uint32 `json:"CoreCount"`
	LogicalProcessorCount uint32 `json:"LogicalProcessorCount"`
	Model                 string `json:"Model,omitempty"`
}

// MemorySummary sums up a system's memory.
type MemorySummary struct {
	TotalSystemMemoryGiB float64 `json:"TotalSystemMemoryGiB"`
}

// SystemLinks is the links of a system.
type SystemLinks struct {
	Chassis   []Link `json:"Chassis"`
	ManagedBy []Link `json:"ManagedBy"`
}

// SystemActions is the actions of a system.
type SystemActions struct {
	Reset ResetAction `json:"#ComputerSystem.Reset"`
}

// ResetAction is a reset action.
type ResetAction struct {
	Target            string   `json:"target"`
	AllowedResetTypes []string `json:"ResetType@Redfish.AllowableValues"`
}

// Stable returns the system without power state, what follows from it (the
// restore policy is the run strategy's, which a stop rewrites), and what the
// guest says.
func (s *System) Stable() any {
	c := *s
	c.PowerState, c.PowerRestorePolicy, c.LastResetTime, c.Status = nil, "", "", nil
	c.Messages, c.HostName = nil, ""
	return &c
}

// NewSystem returns the system of a BMC that has these ports.
func NewSystem(power *powerv1.PowerStatus, boot *bootv1.BootStatus, inventory *inventoryv1.Inventory, ports Ports) *System {
	s := &System{
		Header:       Header{ODataID: SystemURI, ODataType: "#ComputerSystem.v1_27_0.ComputerSystem", ID: "1", Name: machineName(inventory)},
		SystemType:   "Virtual",
		Manufacturer: inventory.GetManufacturer(), Model: inventory.GetProduct(), SerialNumber: inventory.GetSerialNumber(),
		UUID:               uuidOf(inventory.GetFirmwareUuid()),
		HostName:           inventory.GetGuestOperatingSystem().GetHostname(),
		PowerState:         PowerState(power.GetState()),
		PowerRestorePolicy: restorePolicies[power.GetRestorePolicy()],
		Status:             powerStatus(power.GetState()),
		Boot:               newBoot(boot),
		ProcessorSummary:   newProcessorSummary(inventory.GetProcessors()),
		Processors:         Link{ProcessorsURI}, Memory: Link{MemoryURI}, EthernetInterfaces: Link{InterfacesURI},
		SimpleStorage: Link{SimpleStoragesURI}, Storage: Link{StoragesURI}, LogServices: Link{LogServicesURI}, Bios: Link{BiosURI}, SecureBoot: Link{SecureBootURI},
		SerialConsole: newSystemConsole(inventory.GetHasSerialConsole(), ports),
		Links:         SystemLinks{Chassis: []Link{{ChassisOneURI}}, ManagedBy: []Link{{ManagerURI}}},
		Actions:       SystemActions{ResetAction{SystemResetURI, SystemResetTypes()}},
	}
	if t := power.GetLastResetTime(); t.IsValid() && t.GetSeconds() > 0 {
		s.LastResetTime = t.AsTime().Format(time.RFC3339)
	}
	if b := inventory.GetMemoryBytes(); b > 0 {
		s.MemorySummary = &MemorySummary{float64(b) / (1 << 30)}
	}
	return s
}

// machineName is a system's name: unique in a cluster, and the same for good.
func machineName(inventory *inventoryv1.Inventory) string {
	return inventory.GetMachineNamespace() + "/" + inventory.GetMachineName()
}

// PowerState returns the Redfish name of a power state; nil when it is not
// known. Clients disagree about states in between, and act too early on some:
// the machine is On until nothing of it runs any more.
func PowerState(state powerv1.PowerState) *string {
	on, off := "On", "Off"
	switch state {
	case powerv1.PowerState_POWER_STATE_OFF:
		return &off
	case powerv1.PowerState_POWER_STATE_ON, powerv1.PowerState_POWER_STATE_POWERING_ON,
		powerv1.PowerState_POWER_STATE_POWERING_OFF, powerv1.PowerState_POWER_STATE_PAUSED:
		return &on
	default:
		return nil
	}
}

func powerStatus(state powerv1.PowerState) *Status {
	switch state {
	case powerv1.PowerState_POWER_STATE_OFF:
		return &Status{State: "StandbyOffline", Health: "OK"}
	case powerv1.PowerState_POWER_STATE_POWERING_ON:
		return &Status{State: "Starting", Health: "OK"}
	case powerv1.PowerState_POWER_STATE_ON, powerv1.PowerState_POWER_STATE_POWERING_OFF:
		return &Status{State: "Enabled", Health: "OK"}
	case powerv1.PowerState_POWER_STATE_PAUSED:
		return &Status{State: "Quiesced", Health: "OK"}
	default:
		return &Status{State: "UnavailableOffline", Health: "Critical"}
	}
}

// restorePolicies has no entry for what is not known.
var restorePolicies = map[powerv1.RestorePolicy]string{
	powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF: "AlwaysOff",
	powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS:   "LastState",
	powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_ON:  "AlwaysOn",
}

// resetTypes is what a system's Reset can do. ForceOn is On: there is nothing
// to force. Nmi and Suspend do not exist in KubeVirt.
var resetTypes = []struct {
	name   string
	action powerv1.PowerAction
}{
	{"On", powerv1.PowerAction_POWER_ACTION_ON},
	{"ForceOff", powerv1.PowerAction_POWER_ACTION_FORCE_OFF},
	{"GracefulShutdown", powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN},
	{"GracefulRestart", powerv1.PowerAction_POWER_ACTION_GRACEFUL_RESTART},
	{"ForceRestart", powerv1.PowerAction_POWER_ACTION_FORCE_RESTART},
	{"ForceOn", powerv1.PowerAction_POWER_ACTION_ON},
	{"PushPowerButton", powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON},
	{"PowerCycle", powerv1.PowerAction_POWER_ACTION_POWER_CYCLE},
	{"Pause", powerv1.PowerAction_POWER_ACTION_PAUSE},
	{"Resume", powerv1.PowerAction_POWER_ACTION_RESUME},
}

// SystemResetTypes returns the reset types of a system.
func SystemResetTypes() []string {
	var names []string
	for _, t := range resetTypes {
		names = append(names, t.name)
	}
	return names
}

// SystemResetAction returns what a reset type asks for; false for a type that
// is not served.
func SystemResetAction(name string) (powerv1.PowerAction, bool) {
	for _, t := range resetTypes {
		if t.name == name {
			return t.action, true
		}
	}
	return 0, false
}

// The Redfish names of boot settings.
var (
	persistences = names[bootv1.BootPersistence]{
		{"Disabled", bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED},
		{"Once", bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE},
		{"Continuous", bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS},
	}
	targets = names[bootv1.BootTarget]{
		{"None", bootv1.BootTarget_BOOT_TARGET_NONE},
		{"Pxe", bootv1.BootTarget_BOOT_TARGET_PXE},
		{"Hdd", bootv1.BootTarget_BOOT_TARGET_HDD},
		{"Cd", bootv1.BootTarget_BOOT_TARGET_CD},
	}
	modes = names[bootv1.FirmwareMode]{
		{"Legacy", bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY},
		{"UEFI", bootv1.FirmwareMode_FIRMWARE_MODE_UEFI},
	}
)

// BootPersistence returns the value of a BootSourceOverrideEnabled.
func BootPersistence(name string) (bootv1.BootPersistence, bool) { return persistences.value(name) }

// BootTarget returns the value of a BootSourceOverrideTarget.
func BootTarget(name string) (bootv1.BootTarget, bool) { return targets.value(name) }

// FirmwareMode returns the value of a BootSourceOverrideMode.
func FirmwareMode(name string) (bootv1.FirmwareMode, bool) { return modes.value(name) }

// newBoot returns the Boot property; nil when nothing is known of it.
func newBoot(boot *bootv1.BootStatus) *BootProperties {
	if boot == nil {
		return nil
	}
	b := &BootProperties{
		Enabled: "Disabled", Target: "None",
		AllowedEnabled: persistences.all(),
		AllowedTargets: targets.of(append([]bootv1.BootTarget{bootv1.BootTarget_BOOT_TARGET_NONE}, boot.GetAllowedTargets()...)),
		AllowedModes:   modes.of(boot.GetAllowedModes()),
		Mode:           modes.name(boot.GetMode()),
		BootOptions:    Link{BootOptionsURI}, BootOrder: BootOrder(boot),
	}
	override := boot.GetOverride()
	if enabled := persistences.name(override.GetPersistence()); enabled != "" && enabled != "Disabled" {
		b.Enabled = enabled
		if target := targets.name(override.GetTarget()); target != "" {
			b.Target = target
		}
		if mode := modes.name(override.GetMode()); mode != "" {
			b.Mode = mode
		}
	}
	return b
}

// names is the Redfish names of an enumeration's values, in the order in which
// they are listed.
type names[T comparable] []struct {
	name  string
	value T
}

func (n names[T]) name(value T) string {
	for _, e := range n {
		if e.value == value {
			return e.name
		}
	}
	return ""
}

func (n names[T]) value(name string) (T, bool) {
	for _, e := range n {
		if e.name == name {
			return e.value, true
		}
	}
	var none T
	return none, false
}

func (n names[T]) all() []string {
	var all []string
	for _, e := range n {
		all = append(all, e.name)
	}
	return all
}

// of returns the names of some values.
func (n names[T]) of(values []T) []string {
	var some []string
	for _, e := range n {
		if slices.Contains(values, e.value) {
			some = append(some, e.name)
		}
	}
	return some
}

func newProcessorSummary(p *inventoryv1.Processors) *ProcessorSummary {
	cores, threads := processorTotals(p)
	if p.GetSockets() == 0 || cores == 0 {
		return nil
	}
	return &ProcessorSummary{Count: p.GetSockets(), CoreCount: p.GetSockets() * cores, LogicalProcessorCount: p.GetSockets() * threads, Model: p.GetModel()}
}

// processorTotals returns the cores and threads of each socket.
func processorTotals(p *inventoryv1.Processors) (cores, threads uint32) {
	return p.GetCoresPerSocket(), p.GetCoresPerSocket() * max(1, p.GetThreadsPerCore())
}
