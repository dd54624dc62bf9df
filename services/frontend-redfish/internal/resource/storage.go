// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"
	"strings"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
)

// Storage is the disks of the system.
type Storage struct {
	Header
	DrivesCount int     `json:"Drives@odata.count"`
	Drives      []Link  `json:"Drives"`
	Controllers Link    `json:"Controllers"`
	Volumes     Link    `json:"Volumes"`
	Status      *Status `json:"Status"`
}

// Stable returns the resource itself.
func (r *Storage) Stable() any { return r }

// NewStorage returns the system's disks.
func NewStorage(inventory *inventoryv1.Inventory) *Storage {
	s := &Storage{
		Header: Header{ODataID: StorageURI, ODataType: "#Storage.v1_21_0.Storage", ID: "1", Name: "Storage"},
		Drives: []Link{}, Controllers: Link{ControllersURI}, Volumes: Link{VolumesURI}, Status: enabled,
	}
	for _, d := range Drives(inventory) {
		s.Drives = append(s.Drives, Link{d.ODataID})
	}
	s.DrivesCount = len(s.Drives)
	return s
}

// StorageController is what disks of a bus are attached to.
type StorageController struct {
	Header
	SupportedDeviceProtocols []string `json:"SupportedDeviceProtocols"`
	Status                   *Status  `json:"Status"`
}

// Stable returns the resource itself.
func (r *StorageController) Stable() any { return r }

// StorageControllers returns a controller for each bus that disks are on.
func StorageControllers(inventory *inventoryv1.Inventory) []*StorageController {
	var list []*StorageController
	for _, d := range inventory.GetDisks() {
		bus := strings.ToLower(d.GetBus())
		if bus == "" || slices.ContainsFunc(list, func(c *StorageController) bool { return c.ID == bus }) {
			continue
		}
		list = append(list, &StorageController{
			Header: Header{
				ODataID: MemberURI(ControllersURI, bus), ODataType: "#StorageController.v1_11_0.StorageController",
				ID: bus, Name: "Controller of bus " + bus,
			},
			SupportedDeviceProtocols: []string{protocolOf(bus)}, Status: enabled,
		})
	}
	return list
}

// protocolOf returns the Redfish name of a bus. Virtio and parallel SCSI have none.
func protocolOf(bus string) string {
	switch strings.ToLower(bus) {
	case "sata":
		return "SATA"
	case "usb":
		return "USB"
	case "nvme":
		return "NVMe"
	default:
		return "OEM"
	}
}

// VolumeCollection is the volumes of the storage: there are none, and none can be
// made. Clients of RAID controllers want to be told when they would be.
type VolumeCollection struct {
	Collection
	OperationApplyTimeSupport OperationApplyTimeSupport `json:"@Redfish.OperationApplyTimeSupport"`
}

// OperationApplyTimeSupport is when operations on a collection take effect.
type OperationApplyTimeSupport struct {
	ODataType       string   `json:"@odata.type"`
	SupportedValues []string `json:"SupportedValues"`
}

// Stable returns the resource itself.
func (c *VolumeCollection) Stable() any { return c }

// NewVolumeCollection returns the collection of no volumes.
func NewVolumeCollection() *VolumeCollection {
	return &VolumeCollection{
		Collection:                *NewCollection(VolumesURI, "#VolumeCollection.VolumeCollection", "Volume Collection"),
		OperationApplyTimeSupport: OperationApplyTimeSupport{"#Settings.v1_4_0.OperationApplyTimeSupport", []string{"Immediate"}},
	}
}

// Drive is a disk of the system. Whether what is behind it rotates is not known:
// its media type is null.
type Drive struct {
	Header
	CapacityBytes uint64  `json:"CapacityBytes,omitempty"`
	MediaType     *string `json:"MediaType"`
	Protocol      string  `json:"Protocol,omitempty"`
	SerialNumber  string  `json:"SerialNumber,omitempty"`
	Status        *Status `json:"Status"`
}

// Stable returns the resource itself.
func (r *Drive) Stable() any { return r }

// Drives returns the system's disks.
func Drives(inventory *inventoryv1.Inventory) []*Drive {
	var list []*Drive
	for _, d := range inventory.GetDisks() {
		drive := &Drive{
			Header: Header{
				ODataID: MemberURI(DrivesURI, d.GetName()), ODataType: "#Drive.v1_22_0.Drive",
				ID: d.GetName(), Name: "Disk " + d.GetName(),
			},
			CapacityBytes: d.GetCapacityBytes(), SerialNumber: d.GetSerial(), Status: enabled,
		}
		if d.GetBus() != "" {
			drive.Protocol = protocolOf(d.GetBus())
		}
		list = append(list, drive)
	}
	return list
}
