// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulatorprocess keeps simulated machines in a process of their own, so
// that the services that act on them can be killed and started again.
package simulatorprocess

import (
	"context"
	"flag"
	"fmt"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/backend"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/process"
)

// New adds the process's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run {
	count := flags.Int("machines", 3, "how many machines to make: sim-0 and on in namespace default")
	return backend.Configure(flags, map[string]backend.Source[*simulator.Simulator]{
		"memory": {
			AddFlags: func(*flag.FlagSet) {},
			Open: backend.Memory(func() (*simulator.Simulator, error) {
				s := simulator.New(simulator.Config{})
				for n := range *count {
					ref := hypervisor.Ref{Namespace: "default", Name: fmt.Sprintf("sim-%d", n)}
					if err := s.AddMachine(simulator.Spec{Ref: ref}); err != nil {
						return nil, err
					}
				}
				return s, nil
			}),
		},
	}, func(parts backend.Parts[*simulator.Simulator]) (backend.Service, error) {
		return service{parts.Hypervisor}, nil
	})
}

// service serves the simulator to other processes.
type service struct{ simulator *simulator.Simulator }

// Register implements backend.Service.
func (s service) Register(registrar grpc.ServiceRegistrar) { remote.Register(registrar, s.simulator) }

// RegisterGateway implements backend.Service: there is no REST form.
func (s service) RegisterGateway(context.Context, *runtime.ServeMux, grpc.ClientConnInterface) error {
	return nil
}

// Run implements backend.Service: the machines run by themselves.
func (s service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
