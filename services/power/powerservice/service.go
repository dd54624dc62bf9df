// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package powerservice is the power service as a part of another program: it is
// how standalone mode runs PowerService, BootService, ConsoleService and
// InventoryService in its own process.
package powerservice

import (
	"context"
	"log/slog"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/hypervisor"
	bootpb "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventorypb "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerpb "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/power/internal/console"
	"kubevirtbmc.dev/services/power/internal/eventlog"
	"kubevirtbmc.dev/services/power/internal/machine"
	bootv1 "kubevirtbmc.dev/services/power/internal/service/boot/v1"
	consolev1 "kubevirtbmc.dev/services/power/internal/service/console/v1"
	inventoryv1 "kubevirtbmc.dev/services/power/internal/service/inventory/v1"
	powerv1 "kubevirtbmc.dev/services/power/internal/service/power/v1"
)

// Hypervisor is what the service needs of one.
type Hypervisor interface {
	hypervisor.Machines
	hypervisor.Power
	hypervisor.Boot
	hypervisor.State
	hypervisor.Console
}

// Config of the service. Hypervisor, Resolver and Log are needed.
type Config struct {
	Hypervisor Hypervisor
	// Resolver finds the machines of BMCs.
	Resolver hypervisor.Resolver
	Log      *slog.Logger
	// Metrics gets the service's metrics; nil: none.
	Metrics prometheus.Registerer
	// Holder names this process among several that share the machines; best one
	// that survives a restart. Empty: a random one, so that after a restart
	// operations under way go on only when their lease is over (10 s).
	Holder string
	// Audit gets the records of calls beside the log; nil: the log alone.
	Audit audit.Sink
	// Trouble is told of what was accepted and then failed, in words; it must
	// return at once. Nil: the log alone tells.
	Trouble func(machine hypervisor.Ref, action, message string)
	// Admits tells whether an admission webhook carries the one-time boot
	// overrides of a machine out (package bootoverride); else they go through its
	// template. Nil: there is no such webhook.
	Admits func(hypervisor.Ref) bool
	// State is a connection to a StateService, whose event logs are told what
	// becomes of the machines; nil: nobody is.
	State grpc.ClientConnInterface
	// BMCsOf names the BMCs of a machine, for their event logs; needed with State.
	BMCsOf func(hypervisor.Ref) []hypervisor.Ref
}

// Service is the power service.
type Service struct {
	engine    *machine.Engine
	power     *powerv1.Service
	boot      *bootv1.Service
	console   *consolev1.Service
	inventory *inventoryv1.Service
}

// New makes the service. Run makes it work.
func New(config Config) (*Service, error) {
	var metrics *machine.Metrics
	if config.Metrics != nil {
		var err error
		if metrics, err = machine.NewMetrics(config.Metrics); err != nil {
			return nil, err
		}
	}
	var events machine.EventLog
	if config.State != nil {
		events = eventlog.New(config.State, config.BMCsOf)
	}
	engine := machine.New(machine.Config{
		Events:     events,
		Hypervisor: config.Hypervisor,
		Log:        config.Log,
		Metrics:    metrics,
		Holder:     config.Holder,
		Trouble:    config.Trouble,
		Admits:     config.Admits,
	})
	trail := audit.New(config.Log, config.Audit)
	hub := console.New(console.Config{Machines: config.Hypervisor, Console: config.Hypervisor, Log: config.Log})
	return &Service{
		engine:    engine,
		power:     powerv1.New(powerv1.Config{Engine: engine, Resolver: config.Resolver, Audit: trail}),
		boot:      bootv1.New(bootv1.Config{Engine: engine, Resolver: config.Resolver, Audit: trail}),
		console:   consolev1.New(consolev1.Config{Hub: hub, Resolver: config.Resolver, Audit: trail}),
		inventory: inventoryv1.New(inventoryv1.Config{Engine: engine, Resolver: config.Resolver}),
	}, nil
}

// Register adds the gRPC services to a server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	powerv1.Register(registrar, s.power)
	bootv1.Register(registrar, s.boot)
	consolev1.Register(registrar, s.console)
	inventoryv1.Register(registrar, s.inventory)
}

// RegisterGateway adds the REST form of the services to a gateway that calls
// them over a connection.
func (s *Service) RegisterGateway(ctx context.Context, mux *runtime.ServeMux, connection grpc.ClientConnInterface) error {
	if err := powerpb.RegisterPowerServiceHandlerClient(ctx, mux, powerpb.NewPowerServiceClient(connection)); err != nil {
		return err
	}
	if err := bootpb.RegisterBootServiceHandlerClient(ctx, mux, bootpb.NewBootServiceClient(connection)); err != nil {
		return err
	}
	return inventorypb.RegisterInventoryServiceHandlerClient(ctx, mux, inventorypb.NewInventoryServiceClient(connection))
}

// Run carries out what was accepted until the context ends. It begins when the
// hypervisor can list its machines.
func (s *Service) Run(ctx context.Context) error { return s.engine.Run(ctx) }
