// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipmifrontend is the IPMI frontend as a part of a process: it learns
// BMCs from a registry, serves them over UDP, and acts on their machines through
// gRPC. The service of its own and standalone mode both run it.
package ipmifrontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/registryclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/hostnet"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/server"
)

// drainTime is how long commands that are under way may take to end when the
// frontend stops: as long as a command may take at all.
const drainTime = 3 * time.Second

// firmware is the version that the BMCs report.
var firmware = command.Firmware{Major: 1, Minor: 0}

// Config of a frontend.
type Config struct {
	// Listen is the host address to bind; the port of each BMC comes from the
	// registry. Empty: all addresses.
	Listen string
	// Registry, Power and Boot are connections to the services of that name.
	Registry, Power, Boot grpc.ClientConnInterface
	// Inventory is a connection to an InventoryService; nil: BMCs report a UUID
	// of their own as that of the system.
	Inventory grpc.ClientConnInterface
	// State is a connection to a StateService; nil: there is no System Event
	// Log.
	State grpc.ClientConnInterface
	// Console is a connection to a ConsoleService; nil: there is no serial over
	// LAN.
	Console grpc.ClientConnInterface
	// BMC is the only one to serve; nil: those that the registry names.
	BMC *referencev1.BMCReference
	// Replica is the unique name of this frontend.
	Replica string
	// Log gets logins and commands.
	Log *slog.Logger
	// Metrics registers the frontend's metrics; nil: none.
	Metrics prometheus.Registerer
	// OnReady is called each time that the registry has named all BMCs; may be
	// nil.
	OnReady func()
	// DrainTime is how long the frontend goes on, when it is to end, until the
	// registry has given its BMCs to other replicas; 0: it does not.
	DrainTime time.Duration
}

// Frontend serves IPMI. Use New.
type Frontend struct {
	cfg    Config
	server *server.Server
	ready  atomic.Bool
}

// New returns a frontend that serves nothing yet.
func New(cfg Config) (*Frontend, error) {
	if cfg.Registry == nil || cfg.Power == nil || cfg.Boot == nil {
		return nil, errors.New("make IPMI frontend: connections to registry, power and boot are needed")
	}
	if cfg.Replica == "" {
		return nil, errors.New("make IPMI frontend: a replica name is needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var inventory backend.Inventory
	if cfg.Inventory != nil {
		inventory = backend.NewInventory(cfg.Inventory)
	}
	var console backend.Console
	if cfg.Console != nil {
		console = backend.NewConsole(cfg.Console)
	}
	var events backend.Events
	if cfg.State != nil {
		events = backend.NewEvents(cfg.State)
	}
	s, err := server.New(server.Config{
		Listen: cfg.Listen,
		Mux: command.New(command.Config{
			Power: backend.NewPower(cfg.Power), Boot: backend.NewBoot(cfg.Boot), Inventory: inventory, Events: events, Firmware: firmware,
			InterfaceOf: hostnet.InterfaceOf, Log: cfg.Log,
		}),
		Inventory: inventory,
		Events:    events,
		Console:   console,
		Log:       cfg.Log,
		Metrics:   cfg.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("make IPMI frontend: %w", err)
	}
	return &Frontend{cfg: cfg, server: s}, nil
}

// Run serves the registry's BMCs until the context ends, and then for as long
// as others do not, at most DrainTime, and as commands that are under way need,
// at most 3 s. It may be called once.
func (f *Frontend) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { f.ready.Store(false) })()
	work, stop := registryclient.Drain(ctx, f.cfg.DrainTime)
	defer stop()
	err := registryclient.Run(work, registryclient.Config{
		Conn: f.cfg.Registry, Protocol: registryv1.Protocol_PROTOCOL_IPMI, Replica: f.cfg.Replica, Log: f.cfg.Log,
		Only:    f.cfg.BMC,
		Leaving: ctx.Done(),
		OnSynced: func() {
			f.ready.Store(ctx.Err() == nil)
			if f.cfg.OnReady != nil {
				f.cfg.OnReady()
			}
		},
	}, f.server)
	f.ready.Store(false)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	f.server.Shutdown(drain)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Ready tells whether the frontend has had all BMCs from the registry and is
// not stopping.
func (f *Frontend) Ready() bool { return f.ready.Load() }
