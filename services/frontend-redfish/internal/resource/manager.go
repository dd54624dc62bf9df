// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"time"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// Manager is the BMC.
type Manager struct {
	Header
	ManagerType           string          `json:"ManagerType"`
	Manufacturer          string          `json:"Manufacturer"`
	Model                 string          `json:"Model"`
	FirmwareVersion       string          `json:"FirmwareVersion,omitempty"`
	UUID                  string          `json:"UUID,omitempty"`
	ServiceEntryPointUUID string          `json:"ServiceEntryPointUUID,omitempty"`
	DateTime              string          `json:"DateTime,omitempty"`
	DateTimeLocalOffset   string          `json:"DateTimeLocalOffset"`
	PowerState            string          `json:"PowerState"`
	Status                *Status         `json:"Status"`
	SerialConsole         *ManagerConsole `json:"SerialConsole,omitempty"`
	NetworkProtocol       Link            `json:"NetworkProtocol"`
	Links                 ManagerLinks    `json:"Links"`
	Actions               ManagerActions  `json:"Actions"`
}

// ManagerLinks is the links of a manager.
type ManagerLinks struct {
	ManagerForServers []Link `json:"ManagerForServers"`
	ManagerForChassis []Link `json:"ManagerForChassis"`
	ManagerInChassis  Link   `json:"ManagerInChassis"`
}

// ManagerActions is the actions of a manager.
type ManagerActions struct {
	Reset ResetAction `json:"#Manager.Reset"`
}

// Stable returns the manager without its clock.
func (m *Manager) Stable() any {
	c := *m
	c.DateTime = ""
	return &c
}

// ManagerResetTypes returns the reset types of a manager.
func ManagerResetTypes() []string { return []string{"GracefulRestart", "ForceRestart"} }

// NewManager returns the BMC with a UUID and these ports.
func NewManager(bmcUUID, version string, now time.Time, ports Ports) *Manager {
	uuid := uuidOf(bmcUUID)
	return &Manager{
		Header:      Header{ODataID: ManagerURI, ODataType: "#Manager.v1_24_0.Manager", ID: "BMC", Name: "Manager"},
		ManagerType: "BMC", Manufacturer: Vendor, Model: Product, FirmwareVersion: version,
		UUID: uuid, ServiceEntryPointUUID: uuid,
		DateTime: now.UTC().Format(time.RFC3339), DateTimeLocalOffset: "+00:00",
		PowerState: "On", Status: enabled,
		SerialConsole: newManagerConsole(ports), NetworkProtocol: Link{NetworkProtocolURI},
		Links: ManagerLinks{
			ManagerForServers: []Link{{SystemURI}}, ManagerForChassis: []Link{{ChassisOneURI}}, ManagerInChassis: Link{ChassisOneURI},
		},
		Actions: ManagerActions{ResetAction{ManagerResetURI, ManagerResetTypes()}},
	}
}

// Chassis is the case of the machine, which a virtual one has in name only.
type Chassis struct {
	Header
	ChassisType  string       `json:"ChassisType"`
	Manufacturer string       `json:"Manufacturer,omitempty"`
	Model        string       `json:"Model,omitempty"`
	SerialNumber string       `json:"SerialNumber,omitempty"`
	PowerState   *string      `json:"PowerState"`
	Status       *Status      `json:"Status"`
	Links        ChassisLinks `json:"Links"`
}

// ChassisLinks is the links of a chassis.
type ChassisLinks struct {
	ComputerSystems   []Link `json:"ComputerSystems"`
	ManagedBy         []Link `json:"ManagedBy"`
	ManagersInChassis []Link `json:"ManagersInChassis"`
}

// Stable returns the chassis without its power state.
func (r *Chassis) Stable() any {
	c := *r
	c.PowerState = nil
	return &c
}

// NewChassis returns the chassis.
func NewChassis(power *powerv1.PowerStatus, inventory *inventoryv1.Inventory) *Chassis {
	return &Chassis{
		Header:       Header{ODataID: ChassisOneURI, ODataType: "#Chassis.v1_28_0.Chassis", ID: "1", Name: "Chassis of " + machineName(inventory)},
		ChassisType:  "Other",
		Manufacturer: inventory.GetManufacturer(), Model: inventory.GetProduct(), SerialNumber: inventory.GetSerialNumber(),
		PowerState: PowerState(power.GetState()), Status: enabled,
		Links: ChassisLinks{
			ComputerSystems: []Link{{SystemURI}}, ManagedBy: []Link{{ManagerURI}}, ManagersInChassis: []Link{{ManagerURI}},
		},
	}
}
