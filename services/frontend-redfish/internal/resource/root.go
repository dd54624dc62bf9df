// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import "kubevirtbmc.dev/services/frontend-redfish/internal/query"

// Vendor and Product name this service. Clients switch to vendor-specific code
// by the vendor, so it must be nobody else's.
const (
	Vendor  = "KubeVirtBMC"
	Product = "KubeVirtBMC"
)

// Versions is what /redfish answers.
type Versions struct {
	V1 string `json:"v1"`
}

// ServiceRoot is the entry point.
type ServiceRoot struct {
	Header
	RedfishVersion            string           `json:"RedfishVersion"`
	UUID                      string           `json:"UUID,omitempty"`
	Vendor                    string           `json:"Vendor"`
	Product                   string           `json:"Product"`
	ProtocolFeaturesSupported ProtocolFeatures `json:"ProtocolFeaturesSupported"`
	Systems                   Link             `json:"Systems"`
	Managers                  Link             `json:"Managers"`
	Chassis                   Link             `json:"Chassis"`
	SessionService            Link             `json:"SessionService"`
	AccountService            Link             `json:"AccountService"`
	Registries                Link             `json:"Registries"`
	JSONSchemas               Link             `json:"JsonSchemas"`
	CertificateService        Link             `json:"CertificateService"`
	Links                     RootLinks        `json:"Links"`
}

// ProtocolFeatures is which optional parts of the protocol there are.
type ProtocolFeatures struct {
	ExcerptQuery                    bool        `json:"ExcerptQuery"`
	ExpandQuery                     ExpandQuery `json:"ExpandQuery"`
	FilterQuery                     bool        `json:"FilterQuery"`
	FilterQueryComparisonOperations bool        `json:"FilterQueryComparisonOperations"`
	FilterQueryCompoundOperations   bool        `json:"FilterQueryCompoundOperations"`
	DeepOperations                  DeepOps     `json:"DeepOperations"`
	OnlyMemberQuery                 bool        `json:"OnlyMemberQuery"`
	SelectQuery                     bool        `json:"SelectQuery"`
	TopSkipQuery                    bool        `json:"TopSkipQuery"`
}

// DeepOps is which operations a resource passes on to those below it: none.
type DeepOps struct {
	DeepPATCH bool `json:"DeepPATCH"`
	DeepPOST  bool `json:"DeepPOST"`
}

// ExpandQuery is what $expand can do.
type ExpandQuery struct {
	ExpandAll bool `json:"ExpandAll"`
	Levels    bool `json:"Levels"`
	Links     bool `json:"Links"`
	MaxLevels int  `json:"MaxLevels"`
	NoLinks   bool `json:"NoLinks"`
}

// RootLinks is the links of the service root.
type RootLinks struct {
	Sessions                Link  `json:"Sessions"`
	ManagerProvidingService *Link `json:"ManagerProvidingService"`
}

// Stable returns the resource itself.
func (r *ServiceRoot) Stable() any { return r }

// NewServiceRoot returns the service root of the BMC with a UUID.
func NewServiceRoot(bmcUUID string) *ServiceRoot {
	return &ServiceRoot{
		Header:         Header{ODataID: RootURI, ODataType: "#ServiceRoot.v1_20_0.ServiceRoot", ID: "RootService", Name: "Root Service"},
		RedfishVersion: "1.20.0",
		UUID:           uuidOf(bmcUUID),
		Vendor:         Vendor, Product: Product,
		// No resource has properties for excerpts.
		ProtocolFeaturesSupported: ProtocolFeatures{
			ExpandQuery: ExpandQuery{ExpandAll: true, Levels: true, Links: true, NoLinks: true, MaxLevels: query.MaxLevels},
			FilterQuery: true, FilterQueryComparisonOperations: true, FilterQueryCompoundOperations: true,
			OnlyMemberQuery: true, SelectQuery: true, TopSkipQuery: true,
		},
		Systems: Link{SystemsURI}, Managers: Link{ManagersURI}, Chassis: Link{ChassisURI},
		SessionService: Link{SessionServiceURI}, AccountService: Link{AccountServiceURI}, Registries: Link{RegistriesURI},
		JSONSchemas: Link{JSONSchemasURI}, CertificateService: Link{CertificateServiceURI},
		Links: RootLinks{Sessions: Link{SessionsURI}, ManagerProvidingService: &Link{ManagerURI}},
	}
}

// ODataService is the OData service document.
type ODataService struct {
	Context string         `json:"@odata.context"`
	Value   []ODataElement `json:"value"`
}

// ODataElement is an entry of the OData service document.
type ODataElement struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	URL  string `json:"url"`
}

// NewODataService returns the OData service document.
func NewODataService() ODataService {
	d := ODataService{Context: MetadataURI}
	for _, e := range [...][2]string{
		{"Service", RootURI},
		{"Systems", SystemsURI},
		{"Managers", ManagersURI},
		{"Chassis", ChassisURI},
		{"SessionService", SessionServiceURI},
		{"Sessions", SessionsURI},
		{"AccountService", AccountServiceURI},
		{"Registries", RegistriesURI},
		{"JsonSchemas", JSONSchemasURI},
		{"CertificateService", CertificateServiceURI},
	} {
		d.Value = append(d.Value, ODataElement{Name: e[0], Kind: "Singleton", URL: e[1]})
	}
	return d
}

// MessageRegistryFile says where a message registry is.
type MessageRegistryFile struct {
	Header
	Languages []string           `json:"Languages"`
	Registry  string             `json:"Registry"`
	Location  []RegistryLocation `json:"Location"`
}

// RegistryLocation is where a registry is in one language.
type RegistryLocation struct {
	Language       string `json:"Language"`
	URI            string `json:"Uri,omitempty"`            // of a copy that this service has
	PublicationURI string `json:"PublicationUri,omitempty"` // where it is published
}

// Stable returns the resource itself.
func (r *MessageRegistryFile) Stable() any { return r }

// NewRegistryFile returns the file resource of the Base registry of a version,
// which the DMTF publishes.
func NewRegistryFile(version string) *MessageRegistryFile {
	return &MessageRegistryFile{
		Header:    Header{ODataID: BaseRegistryURI, ODataType: "#MessageRegistryFile.v1_1_5.MessageRegistryFile", ID: "Base", Name: "Base Message Registry File"},
		Languages: []string{"en"}, Registry: "Base." + version[:len(version)-len(".1")],
		Location: []RegistryLocation{{Language: "en", PublicationURI: "https://redfish.dmtf.org/registries/Base." + version + ".json"}},
	}
}
