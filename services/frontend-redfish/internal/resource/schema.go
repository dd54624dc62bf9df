// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

// JSONSchemasURI is where the JSON schemas of what is served are listed.
const JSONSchemasURI = "/redfish/v1/JsonSchemas"

// JSONSchemaFile says where the JSON schema of a type is published.
type JSONSchemaFile struct {
	Header
	Languages []string           `json:"Languages"`
	Schema    string             `json:"Schema"`
	Location  []RegistryLocation `json:"Location"`
}

// Stable returns the resource itself.
func (r *JSONSchemaFile) Stable() any { return r }

// JSONSchemas returns the JSON schemas of the types that are served.
func JSONSchemas() []*JSONSchemaFile {
	var list []*JSONSchemaFile
	for _, s := range schemas {
		id := s.name
		if s.version != "" {
			id += "." + s.version
		}
		base := schemaBase
		if s.name == "VolumeCollection" {
			base = swordfishBase
		}
		list = append(list, &JSONSchemaFile{
			Header: Header{
				ODataID: MemberURI(JSONSchemasURI, id), ODataType: "#JsonSchemaFile.v1_1_5.JsonSchemaFile",
				ID: id, Name: s.name + " Schema File",
			},
			Languages: []string{"en"}, Schema: "#" + id + "." + s.name,
			Location: []RegistryLocation{{Language: "en", PublicationURI: base + id + ".json"}},
		})
	}
	return list
}
