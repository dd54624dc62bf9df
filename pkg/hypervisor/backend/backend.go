// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package backend is what the programs of the services on a hypervisor have in
// common beside package grpcprocess: which hypervisor, the connection to it, and
// its part in readiness and shutdown.
package backend

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/process"
)

// component is the hypervisor's name in the process's readiness.
const component = "hypervisor"

// Source is a kind of hypervisor that --hypervisor can name.
type Source[H any] struct {
	// AddFlags adds the flags that it needs.
	AddFlags func(*flag.FlagSet)
	// Open connects to it.
	Open func(*slog.Logger) (*Machines[H], error)
}

// Machines are a hypervisor's.
type Machines[H any] struct {
	Hypervisor H
	// Resolver finds the machines of BMCs.
	Resolver hypervisor.Resolver
	// Run keeps the cache until the context ends.
	Run func(context.Context) error
	// WaitSynced waits until the cache has been filled.
	WaitSynced func(context.Context) error
}

// readyInterval is how often caches are asked whether they are filled.
const readyInterval = 100 * time.Millisecond

// WaitReady waits until all functions return true, or the context ends.
func WaitReady(ctx context.Context, ready ...func() bool) error {
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for _, is := range ready {
		for !is() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		}
	}
	return nil
}

// Simulator is the source of simulated machines in a process of their own.
func Simulator[H any](use func(*remote.Client) H) Source[H] {
	var options remote.Options
	return Source[H]{
		AddFlags: options.AddFlags,
		Open: func(log *slog.Logger) (*Machines[H], error) {
			client, closeConnection, err := options.Dial(log)
			if err != nil {
				return nil, err
			}
			return &Machines[H]{
				Hypervisor: use(client),
				Resolver:   hypervisor.SameName(client),
				Run: func(ctx context.Context) error {
					return errors.Join(client.Run(ctx), closeConnection())
				},
				WaitSynced: client.WaitSynced,
			}, nil
		},
	}
}

// Service is what runs on the hypervisor.
type Service interface {
	// Register adds its gRPC services to a server.
	Register(grpc.ServiceRegistrar)
	// RegisterGateway adds their REST form.
	RegisterGateway(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error
	// Run works until the context ends.
	Run(context.Context) error
}

// Parts are what a service is made from.
type Parts[H any] struct {
	Hypervisor H
	Resolver   hypervisor.Resolver
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	// Holder names this process among its replicas.
	Holder string
}

// Configure adds a service's flags and returns what runs it. Without a file of
// tokens, access knows its callers.
func Configure[H any](flags *flag.FlagSet, access grpcprocess.Access, sources map[string]Source[H], newService func(Parts[H]) (Service, error)) process.Run {
	serve := grpcprocess.AddFlags(flags, true)
	names := slices.Sorted(maps.Keys(sources))
	name := flags.String("hypervisor", names[0], "where the machines are: "+strings.Join(names, ", "))
	replica := flags.String("replica", "", "`name` of this process among its replicas, best one that survives a restart; empty: the host name")
	for _, name := range names {
		sources[name].AddFlags(flags)
	}
	return func(ctx context.Context, p *process.Process) error {
		source, ok := sources[*name]
		if !ok {
			return fmt.Errorf("--hypervisor %q is none of %s", *name, strings.Join(names, ", "))
		}
		holder := *replica
		if holder == "" {
			var err error
			if holder, err = os.Hostname(); err != nil {
				return fmt.Errorf("name this replica: %w", err)
			}
		}
		machines, err := source.Open(p.Log)
		if err != nil {
			return err
		}
		service, err := newService(Parts[H]{
			Hypervisor: machines.Hypervisor, Resolver: machines.Resolver, Log: p.Log, Metrics: p.Registry, Holder: holder,
		})
		if err != nil {
			return err
		}
		p.Health.Set(component, false)
		return serve.Serve(ctx, p, grpcprocess.Service{
			Access:          access,
			Register:        service.Register,
			RegisterGateway: service.RegisterGateway,
			Run: func(ctx context.Context) error {
				return work(ctx, p, service.Run, machines.Run, machines.WaitSynced)
			},
		})
	}
}

// work runs the service from the moment that the machines are known. Their
// cache outlives the service.
func work(ctx context.Context, p *process.Process, service, machines, waitSynced func(context.Context) error) error {
	group, serviceCtx := errgroup.WithContext(ctx)
	machinesCtx, stopMachines := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return machines(machinesCtx) })
	group.Go(func() error {
		defer stopMachines()
		if err := waitSynced(serviceCtx); err != nil {
			return nil // Asked to end before there was anything to do.
		}
		p.Health.Set(component, true)
		return service(serviceCtx)
	})
	return group.Wait()
}
