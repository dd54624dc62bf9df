// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package resource has the Redfish resources that this service sends, and makes
// them of what the backends tell. A value that is not known is left out; no
// object is ever empty.
package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
)

// URIs of resources. An endpoint has one system, one manager and one chassis:
// several clients act on every system that they find.
const (
	RootURI            = "/redfish/v1/"
	SystemsURI         = "/redfish/v1/Systems"
	SystemURI          = SystemsURI + "/1"
	SystemResetURI     = SystemURI + "/Actions/ComputerSystem.Reset"
	ProcessorsURI      = SystemURI + "/Processors"
	MemoryURI          = SystemURI + "/Memory"
	InterfacesURI      = SystemURI + "/EthernetInterfaces"
	SimpleStoragesURI  = SystemURI + "/SimpleStorage"
	SimpleStorageURI   = SimpleStoragesURI + "/1"
	StoragesURI        = SystemURI + "/Storage"
	StorageURI         = StoragesURI + "/1"
	DrivesURI          = StorageURI + "/Drives"
	ControllersURI     = StorageURI + "/Controllers"
	VolumesURI         = StorageURI + "/Volumes"
	LogServicesURI     = SystemURI + "/LogServices"
	EventLogURI        = LogServicesURI + "/EventLog"
	LogEntriesURI      = EventLogURI + "/Entries"
	ClearLogURI        = EventLogURI + "/Actions/LogService.ClearLog"
	ManagersURI        = "/redfish/v1/Managers"
	ManagerURI         = ManagersURI + "/BMC"
	NetworkProtocolURI = ManagerURI + "/NetworkProtocol"
	ManagerResetURI    = ManagerURI + "/Actions/Manager.Reset"
	ChassisURI         = "/redfish/v1/Chassis"
	ChassisOneURI      = ChassisURI + "/1"
	SessionServiceURI  = "/redfish/v1/SessionService"
	SessionsURI        = SessionServiceURI + "/Sessions"
	AccountServiceURI  = "/redfish/v1/AccountService"
	AccountsURI        = AccountServiceURI + "/Accounts"
	RolesURI           = AccountServiceURI + "/Roles"
	RegistriesURI      = "/redfish/v1/Registries"
	BaseRegistryURI    = RegistriesURI + "/Base"
	MetadataURI        = "/redfish/v1/$metadata"
	ODataURI           = "/redfish/v1/odata"
)

// Header is what every resource begins with.
type Header struct {
	ODataID   string `json:"@odata.id"`
	ODataType string `json:"@odata.type"`
	ODataETag string `json:"@odata.etag,omitempty"`
	ID        string `json:"Id,omitempty"` // Collections have none.
	Name      string `json:"Name"`
}

// Common gives access to what every resource has.
func (h *Header) Common() *Header { return h }

// Resource is a JSON resource.
type Resource interface {
	// Common returns the resource's header.
	Common() *Header
	// Stable returns the resource without what changes by itself, as a power
	// state: its hash is the ETag. A client that reads a system, switches it off
	// and then changes its boot device must not find its ETag outdated.
	Stable() any
}

// SetETag gives a resource its ETag and returns it.
func SetETag(r Resource) string {
	h := r.Common()
	h.ODataETag = ""
	raw, err := json.Marshal(r.Stable())
	if err != nil {
		return "" // Can't happen with the types of this package; a test walks them.
	}
	sum := sha256.Sum256(raw)
	h.ODataETag = `"` + hex.EncodeToString(sum[:8]) + `"`
	return h.ODataETag
}

// Link is a reference to another resource.
type Link struct {
	ODataID string `json:"@odata.id"`
}

// Status of a resource.
type Status struct {
	State  string `json:"State,omitempty"`
	Health string `json:"Health,omitempty"`
}

var enabled = &Status{State: "Enabled", Health: "OK"}

// Collection is a resource collection.
type Collection struct {
	Header
	Count   int    `json:"Members@odata.count"`
	Members []Link `json:"Members"`
}

// Stable returns the collection itself.
func (c *Collection) Stable() any { return c }

// NewCollection returns a collection of resources.
func NewCollection(uri, odataType, name string, members ...string) *Collection {
	c := &Collection{Header: Header{ODataID: uri, ODataType: odataType, Name: name}, Count: len(members), Members: []Link{}}
	for _, m := range members {
		c.Members = append(c.Members, Link{m})
	}
	return c
}

// ExpandedCollection is a resource collection whose members are in it rather than
// linked: those whose schema has the term OData.AutoExpand, as log entries.
type ExpandedCollection[R Resource] struct {
	Header
	Count   int `json:"Members@odata.count"`
	Members []R `json:"Members"`
}

// Stable returns the collection itself.
func (c *ExpandedCollection[R]) Stable() any { return c }

// NewExpandedCollection returns a collection with its members.
func NewExpandedCollection[R Resource](uri, odataType, name string, members []R) *ExpandedCollection[R] {
	c := &ExpandedCollection[R]{Header: Header{ODataID: uri, ODataType: odataType, Name: name}, Count: len(members), Members: []R{}}
	for _, m := range members {
		SetETag(m)
		c.Members = append(c.Members, m)
	}
	return c
}

// MemberURI returns the URI of a collection's member.
func MemberURI(collection, id string) string { return collection + "/" + url.PathEscape(id) }

var uuidPattern = regexp.MustCompile("^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")

// uuidOf returns a UUID as Redfish wants it; empty when it is none.
func uuidOf(s string) string {
	if !uuidPattern.MatchString(s) {
		return ""
	}
	return strings.ToLower(s)
}
