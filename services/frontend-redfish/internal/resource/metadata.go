// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strings"
)

// schemas is the CSDL schemas of what is served: name and newest version in
// use, which is empty where a schema has none. A test finds what is missing.
var schemas = [...]struct{ name, version string }{
	{"ServiceRoot", "v1_20_0"},
	{"SessionService", "v1_2_0"},
	{"SessionCollection", ""},
	{"Session", "v1_8_0"},
	{"AccountService", "v1_18_1"},
	{"ManagerAccountCollection", ""},
	{"ManagerAccount", "v1_14_1"},
	{"RoleCollection", ""},
	{"Role", "v1_3_3"},
	{"ComputerSystemCollection", ""},
	{"ComputerSystem", "v1_27_0"},
	{"BootOptionCollection", ""},
	{"BootOption", "v1_0_6"},
	{"Bios", "v1_2_3"},
	{"SecureBoot", "v1_1_2"},
	{"AttributeRegistry", "v1_4_0"},
	{"ProcessorCollection", ""},
	{"Processor", "v1_22_0"},
	{"MemoryCollection", ""},
	{"Memory", "v1_23_0"},
	{"EthernetInterfaceCollection", ""},
	{"EthernetInterface", "v1_12_4"},
	{"SimpleStorageCollection", ""},
	{"SimpleStorage", "v1_3_2"},
	{"StorageCollection", ""},
	{"Storage", "v1_21_0"},
	{"StorageControllerCollection", ""},
	{"StorageController", "v1_11_0"},
	{"Drive", "v1_22_0"},
	{"VolumeCollection", ""},
	{"LogServiceCollection", ""},
	{"LogService", "v1_9_0"},
	{"LogEntryCollection", ""},
	{"LogEntry", "v1_21_0"},
	{"ManagerCollection", ""},
	{"Manager", "v1_24_0"},
	{"ManagerNetworkProtocol", "v1_12_0"},
	{"CertificateService", "v1_2_1"},
	{"CertificateLocations", "v1_0_4"},
	{"CertificateCollection", ""},
	{"Certificate", "v1_11_0"},
	{"ChassisCollection", ""},
	{"Chassis", "v1_28_0"},
	{"MessageRegistryFileCollection", ""},
	{"MessageRegistryFile", "v1_1_5"},
	{"JsonSchemaFileCollection", ""},
	{"JsonSchemaFile", "v1_1_5"},
	{"Message", "v1_3_0"},
	{"Settings", "v1_4_0"},
	{"Resource", "v1_23_0"},
}

// Where the DMTF and, of storage, the SNIA publish schemas.
const (
	schemaBase    = "https://redfish.dmtf.org/schemas/v1/"
	swordfishBase = "https://redfish.dmtf.org/schemas/swordfish/v1/"
)

// Metadata returns the OData metadata document: references to the DMTF's
// schemas of what is served.
func Metadata() []byte {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">
`)
	for _, s := range schemas {
		base := schemaBase
		if s.name == "VolumeCollection" {
			base = swordfishBase
		}
		fmt.Fprintf(&b, "  <edmx:Reference Uri=\"%s%s_v1.xml\">\n    <edmx:Include Namespace=\"%s\"/>\n", base, s.name, s.name)
		if s.version != "" {
			fmt.Fprintf(&b, "    <edmx:Include Namespace=\"%s.%s\"/>\n", s.name, s.version)
		}
		b.WriteString("  </edmx:Reference>\n")
	}
	b.WriteString(`  <edmx:Reference Uri="https://redfish.dmtf.org/schemas/v1/RedfishExtensions_v1.xml">
    <edmx:Include Namespace="RedfishExtensions.v1_0_0" Alias="Redfish"/>
  </edmx:Reference>
  <edmx:DataServices>
    <Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">
      <EntityContainer Name="Service" Extends="ServiceRoot.v1_20_0.ServiceContainer"/>
    </Schema>
  </edmx:DataServices>
</edmx:Edmx>
`)
	return []byte(b.String())
}
