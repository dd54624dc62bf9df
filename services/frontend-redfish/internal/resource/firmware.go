// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
)

// URIs of what belongs to a system's firmware.
const (
	BootOptionsURI  = SystemURI + "/BootOptions"
	BiosURI         = SystemURI + "/Bios"
	BiosSettingsURI = BiosURI + "/Settings"
	SecureBootURI   = SystemURI + "/SecureBoot"
)

// BootOption is a device that the machine can boot from. It has the device's name.
type BootOption struct {
	Header
	BootOptionReference string `json:"BootOptionReference"`
	DisplayName         string `json:"DisplayName"`
	// BootOptionEnabled: the device has a place in the boot order.
	BootOptionEnabled bool   `json:"BootOptionEnabled"`
	Alias             string `json:"Alias,omitempty"`
	RelatedItem       []Link `json:"RelatedItem,omitempty"`
}

// Stable returns the resource itself.
func (r *BootOption) Stable() any { return r }

// bootDevices is how kinds of boot devices are told of.
var bootDevices = map[bootv1.BootDeviceKind]struct{ display, alias string }{
	bootv1.BootDeviceKind_BOOT_DEVICE_KIND_DISK:      {"Disk", "Hdd"},
	bootv1.BootDeviceKind_BOOT_DEVICE_KIND_CDROM:     {"CD drive", "Cd"},
	bootv1.BootDeviceKind_BOOT_DEVICE_KIND_INTERFACE: {"Network interface", "Pxe"},
}

// BootOptions returns the devices that a machine can boot from.
func BootOptions(boot *bootv1.BootStatus, inventory *inventoryv1.Inventory) []*BootOption {
	var list []*BootOption
	for _, d := range boot.GetDevices() {
		kind := bootDevices[d.GetKind()]
		option := &BootOption{
			Header: Header{
				ODataID: MemberURI(BootOptionsURI, d.GetName()), ODataType: "#BootOption.v1_0_6.BootOption",
				ID: d.GetName(), Name: "Boot option " + d.GetName(),
			},
			BootOptionReference: d.GetName(), DisplayName: kind.display + " " + d.GetName(),
			BootOptionEnabled: d.GetOrder() > 0, Alias: kind.alias,
		}
		if uri := deviceURI(d, inventory); uri != "" {
			option.RelatedItem = []Link{{uri}}
		}
		list = append(list, option)
	}
	return list
}

// deviceURI returns where a boot device is among a system's resources; empty where
// it is not.
func deviceURI(d *bootv1.BootDevice, inventory *inventoryv1.Inventory) string {
	switch d.GetKind() {
	case bootv1.BootDeviceKind_BOOT_DEVICE_KIND_DISK:
		for _, disk := range inventory.GetDisks() {
			if disk.GetName() == d.GetName() {
				return MemberURI(DrivesURI, d.GetName())
			}
		}
	case bootv1.BootDeviceKind_BOOT_DEVICE_KIND_INTERFACE:
		for _, nic := range inventory.GetInterfaces() {
			if nic.GetName() == d.GetName() {
				return MemberURI(InterfacesURI, d.GetName())
			}
		}
	case bootv1.BootDeviceKind_BOOT_DEVICE_KIND_UNSPECIFIED, bootv1.BootDeviceKind_BOOT_DEVICE_KIND_CDROM:
	}
	return ""
}

// BootOrder returns the references of the devices that have a place in a machine's
// own boot order, in that order.
func BootOrder(boot *bootv1.BootStatus) []string {
	order := []string{}
	for _, d := range boot.GetDevices() {
		if d.GetOrder() > 0 {
			order = append(order, d.GetName())
		}
	}
	return order
}

// Names of BIOS attributes.
const (
	BiosBootMode   = "BootMode"
	BiosSecureBoot = "SecureBoot"
)

// Bios is the settings of the machine's firmware, or those that it has from its next
// start on.
type Bios struct {
	Header
	Messages          any            `json:"@Message.ExtendedInfo,omitempty"`
	AttributeRegistry string         `json:"AttributeRegistry"`
	Attributes        map[string]any `json:"Attributes"`
	Settings          *Settings      `json:"@Redfish.Settings,omitempty"`
}

// Settings says where settings are that count later, and when they do. There is one
// time to apply them, so clients have nothing to choose from: it is told by annotation
// alone, which is also where the DMTF's interoperability validator looks for it.
type Settings struct {
	ODataType         string   `json:"@odata.type"`
	SettingsObject    Link     `json:"SettingsObject"`
	AllowedApplyTimes []string `json:"SupportedApplyTimes@Redfish.AllowableValues"`
}

// ApplyOnReset is the time at which firmware settings are applied: when the machine
// starts the next time with a new instance.
const ApplyOnReset = "OnReset"

// Stable returns the settings without the messages of an answer.
func (r *Bios) Stable() any {
	c := *r
	c.Messages = nil
	return &c
}

// NewBios returns the firmware settings that the machine runs with, or has where it
// does not run.
func NewBios(boot *bootv1.BootStatus) *Bios {
	mode := boot.GetInstanceMode()
	if mode == bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED {
		mode = boot.GetMode()
	}
	b := newBios(BiosURI, "Bios", "BIOS", mode)
	b.Attributes[BiosSecureBoot] = enabledName(boot.GetSecureBoot())
	b.Settings = &Settings{"#Settings.v1_4_0.Settings", Link{BiosSettingsURI}, []string{ApplyOnReset}}
	return b
}

// NewBiosSettings returns the firmware settings that can be changed, as the machine's
// next instance has them.
func NewBiosSettings(boot *bootv1.BootStatus) *Bios {
	return newBios(BiosSettingsURI, "Settings", "BIOS settings of the next start", boot.GetMode())
}

func newBios(uri, id, name string, mode bootv1.FirmwareMode) *Bios {
	b := &Bios{
		Header:            Header{ODataID: uri, ODataType: "#Bios.v1_2_3.Bios", ID: id, Name: name},
		AttributeRegistry: BiosRegistryID, Attributes: map[string]any{BiosBootMode: nil},
	}
	if known := modes.name(mode); known != "" {
		b.Attributes[BiosBootMode] = known
	}
	return b
}

func enabledName(on bool) string {
	if on {
		return "Enabled"
	}
	return "Disabled"
}

// SecureBoot tells whether the machine's firmware checks signatures of what it boots.
type SecureBoot struct {
	Header
	SecureBootEnable bool `json:"SecureBootEnable"`
}

// Stable returns the resource itself.
func (r *SecureBoot) Stable() any { return r }

// NewSecureBoot returns the Secure Boot setting of a machine.
func NewSecureBoot(boot *bootv1.BootStatus) *SecureBoot {
	return &SecureBoot{
		Header:           Header{ODataID: SecureBootURI, ODataType: "#SecureBoot.v1_1_2.SecureBoot", ID: "SecureBoot", Name: "UEFI Secure Boot"},
		SecureBootEnable: boot.GetSecureBoot(),
	}
}

// The registry of BIOS attributes, which a test compares with what is served.
const (
	biosRegistryVersion = "1.0.0"
	BiosRegistryID      = "BiosAttributeRegistry." + biosRegistryVersion
	BiosRegistryURI     = RegistriesURI + "/" + BiosRegistryID
	BiosRegistryFileURI = BiosRegistryURI + "/" + BiosRegistryID + ".json"
)

// AttributeRegistry says what BIOS attributes mean. It is a document of its own, no
// resource.
type AttributeRegistry struct {
	ODataType       string           `json:"@odata.type"`
	ID              string           `json:"Id"`
	Name            string           `json:"Name"`
	Language        string           `json:"Language"`
	OwningEntity    string           `json:"OwningEntity"`
	RegistryVersion string           `json:"RegistryVersion"`
	RegistryEntries AttributeEntries `json:"RegistryEntries"`
}

// AttributeEntries is the entries of an attribute registry.
type AttributeEntries struct {
	Attributes []Attribute `json:"Attributes"`
}

// Attribute is an attribute of the enumeration type.
type Attribute struct {
	Name          string           `json:"AttributeName"`
	DisplayName   string           `json:"DisplayName"`
	HelpText      string           `json:"HelpText"`
	Type          string           `json:"Type"`
	ReadOnly      bool             `json:"ReadOnly"`
	ResetRequired bool             `json:"ResetRequired"`
	Value         []AttributeValue `json:"Value"`
}

// AttributeValue is a value of an attribute.
type AttributeValue struct {
	Name        string `json:"ValueName"`
	DisplayName string `json:"ValueDisplayName"`
}

// NewAttributeRegistry returns the registry of BIOS attributes.
func NewAttributeRegistry() AttributeRegistry {
	return AttributeRegistry{
		ODataType: "#AttributeRegistry.v1_4_0.AttributeRegistry", ID: BiosRegistryID, Name: "BIOS Attribute Registry",
		Language: "en", OwningEntity: Vendor, RegistryVersion: biosRegistryVersion,
		RegistryEntries: AttributeEntries{[]Attribute{
			{
				Name: BiosBootMode, DisplayName: "Boot mode", Type: "Enumeration", ResetRequired: true,
				HelpText: "Firmware that starts the guest. It can be changed where the owner of the VirtualMachine has not settled it.",
				Value:    []AttributeValue{{"Legacy", "BIOS"}, {"UEFI", "UEFI"}},
			},
			{
				Name: BiosSecureBoot, DisplayName: "UEFI Secure Boot", Type: "Enumeration", ReadOnly: true, ResetRequired: true,
				HelpText: "Whether the firmware checks signatures of what it boots, as the VirtualMachine says.",
				Value:    []AttributeValue{{"Enabled", "Enabled"}, {"Disabled", "Disabled"}},
			},
		}},
	}
}

// NewBiosRegistryFile returns where the registry of BIOS attributes is.
func NewBiosRegistryFile() *MessageRegistryFile {
	return &MessageRegistryFile{
		Header:    Header{ODataID: BiosRegistryURI, ODataType: "#MessageRegistryFile.v1_1_5.MessageRegistryFile", ID: BiosRegistryID, Name: "BIOS Attribute Registry File"},
		Languages: []string{"en"}, Registry: BiosRegistryID,
		Location: []RegistryLocation{{Language: "en", URI: BiosRegistryFileURI}},
	}
}
