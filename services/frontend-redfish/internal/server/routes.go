// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
	"kubevirtbmc.dev/services/frontend-redfish/internal/session"
)

// Short names of what routes do and need.
const (
	get    = http.MethodGet
	post   = http.MethodPost
	patch  = http.MethodPatch
	remove = http.MethodDelete

	anybody   = account.Privilege(0)
	login     = account.Login
	configure = account.ConfigureComponents
	manage    = account.ConfigureManager
	users     = account.ConfigureUsers
)

// routes returns the whole tree and who may do what with it, after the DMTF's
// Base privilege registry.
func (s *Server) routes() []*route {
	type ops = map[string]operation
	return []*route{
		{pattern: "/redfish", operations: ops{get: {anybody, getVersions}}},
		{pattern: "/redfish/v1", operations: ops{get: {anybody, getRoot}}},
		{pattern: resource.ODataURI, operations: ops{get: {anybody, getOData}}},
		{pattern: resource.MetadataURI, operations: ops{get: {anybody, getMetadata}}},

		{pattern: resource.SessionServiceURI, operations: ops{get: {login, s.getSessionService}}},
		{pattern: resource.SessionsURI, operations: ops{get: {login, s.getSessions}, post: {anybody, s.createSession}}},
		{pattern: resource.SessionsURI + "/Members", operations: ops{post: {anybody, s.createSession}}},
		{pattern: resource.SessionsURI + "/{id}", operations: ops{get: {login, s.getSession}, remove: {login, s.deleteSession}}},

		{pattern: resource.AccountServiceURI, operations: ops{get: {login, getAccountService}}},
		{pattern: resource.AccountsURI, operations: ops{get: {login, s.getAccounts}, post: {users, s.createAccount}}},
		{pattern: resource.AccountsURI + "/{id}", operations: ops{get: {login, s.getAccount}, patch: {login, s.patchAccount}, remove: {users, s.deleteAccount}}},
		{pattern: resource.RolesURI, operations: ops{get: {login, getRoles}}},
		{pattern: resource.RolesURI + "/{id}", operations: ops{get: {login, getRole}}},

		{pattern: resource.SystemsURI, operations: ops{get: {login, fixed(resource.SystemsURI, "ComputerSystem", resource.SystemURI)}}},
		{pattern: resource.SystemURI, operations: ops{get: {login, s.getSystem}, patch: {configure, s.patchSystem}}},
		{pattern: resource.SystemResetURI, operations: ops{post: {configure, s.resetSystem}}},
		{pattern: resource.BootOptionsURI, operations: ops{get: {login, s.getBootOptions}}},
		{pattern: resource.BootOptionsURI + "/{id}", operations: ops{get: {login, s.getBootOption}}},
		{pattern: resource.BiosURI, operations: ops{get: {login, ofBoot(s, resource.NewBios)}}},
		{pattern: resource.BiosSettingsURI, operations: ops{get: {login, ofBoot(s, resource.NewBiosSettings)}, patch: {configure, s.patchBiosSettings}}},
		{pattern: resource.SecureBootURI, operations: ops{get: {login, ofBoot(s, resource.NewSecureBoot)}}},
		{pattern: resource.ProcessorsURI, operations: ops{get: {login, members(s, resource.ProcessorsURI, "Processor", resource.Processors)}}},
		{pattern: resource.ProcessorsURI + "/{id}", operations: ops{get: {login, member(s, resource.Processors)}}},
		{pattern: resource.MemoryURI, operations: ops{get: {login, members(s, resource.MemoryURI, "Memory", resource.Memories)}}},
		{pattern: resource.MemoryURI + "/{id}", operations: ops{get: {login, member(s, resource.Memories)}}},
		{pattern: resource.InterfacesURI, operations: ops{get: {login, members(s, resource.InterfacesURI, "EthernetInterface", resource.EthernetInterfaces)}}},
		{pattern: resource.InterfacesURI + "/{id}", operations: ops{get: {login, member(s, resource.EthernetInterfaces)}}},
		{pattern: resource.SimpleStoragesURI, operations: ops{get: {login, fixed(resource.SimpleStoragesURI, "SimpleStorage", resource.SimpleStorageURI)}}},
		{pattern: resource.SimpleStorageURI, operations: ops{get: {login, s.getSimpleStorage}}},
		{pattern: resource.StoragesURI, operations: ops{get: {login, fixed(resource.StoragesURI, "Storage", resource.StorageURI)}}},
		{pattern: resource.StorageURI, operations: ops{get: {login, s.getStorage}}},
		{pattern: resource.DrivesURI + "/{id}", operations: ops{get: {login, member(s, resource.Drives)}}},
		{pattern: resource.VolumesURI, operations: ops{get: {login, getVolumes}}},
		{pattern: resource.ControllersURI, operations: ops{get: {login, members(s, resource.ControllersURI, "StorageController", resource.StorageControllers)}}},
		{pattern: resource.ControllersURI + "/{id}", operations: ops{get: {login, member(s, resource.StorageControllers)}}},

		{pattern: resource.LogServicesURI, operations: ops{get: {login, fixed(resource.LogServicesURI, "LogService", resource.EventLogURI)}}},
		{pattern: resource.EventLogURI, operations: ops{get: {login, s.getEventLog}}},
		{pattern: resource.LogEntriesURI, operations: ops{get: {login, s.getLogEntries}}},
		{pattern: resource.LogEntriesURI + "/{id}", operations: ops{get: {login, s.getLogEntry}}},
		{pattern: resource.ClearLogURI, operations: ops{post: {configure, s.clearLog}}},

		{pattern: resource.ManagersURI, operations: ops{get: {login, fixed(resource.ManagersURI, "Manager", resource.ManagerURI)}}},
		{pattern: resource.ManagerURI, operations: ops{get: {login, s.getManager}}},
		{pattern: resource.NetworkProtocolURI, operations: ops{get: {login, getNetworkProtocol}}},
		{pattern: resource.HTTPSCertificatesURI, operations: ops{get: {manage, getHTTPSCertificates}}},
		{pattern: resource.HTTPSCertificateURI, operations: ops{get: {manage, s.getHTTPSCertificate}}},
		{pattern: resource.ManagerResetURI, operations: ops{post: {manage, s.resetManager}}},

		{pattern: resource.ChassisURI, operations: ops{get: {login, fixed(resource.ChassisURI, "Chassis", resource.ChassisOneURI)}}},
		{pattern: resource.ChassisOneURI, operations: ops{get: {login, s.getChassis}}},

		{pattern: resource.RegistriesURI, operations: ops{get: {login, fixed(resource.RegistriesURI, "MessageRegistryFile", resource.BaseRegistryURI, resource.BiosRegistryURI)}}},
		{pattern: resource.BiosRegistryURI, operations: ops{get: {login, getBiosRegistryFile}}},
		{pattern: resource.BiosRegistryFileURI, operations: ops{get: {login, getBiosRegistry}}},
		{pattern: resource.BaseRegistryURI, operations: ops{get: {login, getRegistry}}},

		{pattern: resource.JSONSchemasURI, operations: ops{get: {login, getJSONSchemas}}},
		{pattern: resource.JSONSchemasURI + "/{id}", operations: ops{get: {login, getJSONSchema}}},

		{pattern: resource.CertificateServiceURI, operations: ops{get: {login, getCertificateService}}},
		{pattern: resource.CertificateLocationsURI, operations: ops{get: {manage, getCertificateLocations}}},

		{pattern: "/"}, // Everything else is not there.
	}
}

func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		rt.allow = allowed(rt.operations)
		mux.HandleFunc(rt.pattern, func(_ http.ResponseWriter, r *http.Request) {
			c, _ := r.Context().Value(callKey{}).(*call)
			c.r = r
			s.serve(r.Context(), c, rt)
		})
	}
	return mux
}

// allowed returns the Allow header of a route.
func allowed(operations map[string]operation) string {
	if len(operations) == 0 {
		return ""
	}
	methods := slices.Collect(maps.Keys(operations))
	if _, ok := operations[get]; ok {
		methods = append(methods, http.MethodHead)
	}
	methods = append(methods, http.MethodOptions)
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

func getVersions(context.Context, *call) (reply, error) {
	return reply{status: http.StatusOK, body: resource.Versions{V1: resource.RootURI}}, nil
}

func getRoot(_ context.Context, c *call) (reply, error) {
	return ok(resource.NewServiceRoot(c.endpoint.state.Load().uuid))
}

func getOData(context.Context, *call) (reply, error) {
	return reply{status: http.StatusOK, body: resource.NewODataService()}, nil
}

func getMetadata(context.Context, *call) (reply, error) {
	return reply{status: http.StatusOK, raw: resource.Metadata(), rawType: "application/xml; charset=utf-8"}, nil
}

func getVolumes(context.Context, *call) (reply, error) {
	return ok(resource.NewVolumeCollection())
}

func getAccountService(context.Context, *call) (reply, error) {
	return ok(resource.NewAccountService(account.FreeFailures, account.MaxPause))
}

func getJSONSchemas(context.Context, *call) (reply, error) {
	return allOf(resource.JSONSchemasURI, "JsonSchemaFile", resource.JSONSchemas())
}

func getJSONSchema(_ context.Context, c *call) (reply, error) {
	return oneOf(c, resource.JSONSchemas())
}

func getRegistry(context.Context, *call) (reply, error) {
	return ok(resource.NewRegistryFile(message.RegistryVersion))
}

// fixed answers with a collection that never changes.
func fixed(uri, schema string, members ...string) func(context.Context, *call) (reply, error) {
	return func(context.Context, *call) (reply, error) { return ok(collection(uri, schema, members)) }
}

func collection(uri, schema string, members []string) *resource.Collection {
	return resource.NewCollection(uri, "#"+schema+"Collection."+schema+"Collection", schema+" Collection", members...)
}

// members answers with the collection of what the inventory has of a kind.
func members[R resource.Resource](s *Server, uri, schema string, list func(*inventoryv1.Inventory) []R) func(context.Context, *call) (reply, error) {
	return func(ctx context.Context, c *call) (reply, error) {
		m, err := s.machine(ctx, c, backend.Inventory)
		if err != nil {
			return reply{}, err
		}
		return allOf(uri, schema, list(m.Inventory))
	}
}

// allOf answers with a collection of resources.
func allOf[R resource.Resource](uri, schema string, list []R) (reply, error) {
	var uris []string
	for _, r := range list {
		uris = append(uris, r.Common().ODataID)
	}
	return ok(collection(uri, schema, uris))
}

// oneOf answers with the one of some resources that the path names.
func oneOf[R resource.Resource](c *call, list []R) (reply, error) {
	id := c.r.PathValue("id")
	for _, r := range list {
		if r.Common().ID == id {
			return ok(r)
		}
	}
	return reply{}, missing(c)
}

// member answers with the one of a kind that the path names.
func member[R resource.Resource](s *Server, list func(*inventoryv1.Inventory) []R) func(context.Context, *call) (reply, error) {
	return func(ctx context.Context, c *call) (reply, error) {
		m, err := s.machine(ctx, c, backend.Inventory)
		if err != nil {
			return reply{}, err
		}
		return oneOf(c, list(m.Inventory))
	}
}

func (s *Server) getSimpleStorage(ctx context.Context, c *call) (reply, error) {
	m, err := s.machine(ctx, c, backend.Inventory)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewSimpleStorage(m.Inventory))
}

func (s *Server) getStorage(ctx context.Context, c *call) (reply, error) {
	m, err := s.machine(ctx, c, backend.Inventory)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewStorage(m.Inventory))
}

func (s *Server) getManager(_ context.Context, c *call) (reply, error) {
	state := c.endpoint.state.Load()
	return ok(resource.NewManager(state.uuid, s.cfg.Version, time.Now(), state.ports))
}

func getNetworkProtocol(_ context.Context, c *call) (reply, error) {
	return ok(resource.NewNetworkProtocol(c.endpoint.state.Load().ports))
}

// resetManager restarts the BMC, as far as there is anything to restart: it
// ends the sessions of other clients and forgets failed logins. The machine is
// not touched.
func (s *Server) resetManager(_ context.Context, c *call) (reply, error) {
	if _, refusal := readResetType(c, "Manager.Reset", resource.ManagerResetTypes()); refusal != nil {
		return reply{}, refusal
	}
	c.endpoint.sessions.Keep(func(sn session.Session) bool { return sn.ID == c.session.ID })
	s.backoff.Forget(c.endpoint)
	return reply{status: http.StatusNoContent}, nil
}

func (s *Server) getChassis(ctx context.Context, c *call) (reply, error) {
	m, err := s.machine(ctx, c, backend.Power|backend.Inventory)
	if err != nil {
		return reply{}, err
	}
	return ok(resource.NewChassis(m.Power, m.Inventory))
}
