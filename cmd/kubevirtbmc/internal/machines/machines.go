// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package machines chooses where the machines behind the BMCs are: in a cluster
// with KubeVirt, or simulated in this process or in a simulator process.
package machines

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/power/powerservice"
)

// Most bounds the number of simulated machines: each takes ports of its own.
const Most = 20000

// Source is where the machines are.
type Source struct {
	// Simulate is the number of machines to simulate.
	Simulate int
	// Simulator is the process whose machines to use.
	Simulator remote.Options
	// Kubeconfig is a file that names the cluster whose machines to use.
	Kubeconfig string
}

// AddFlags adds the flags that choose the source.
func (s *Source) AddFlags(flags *flag.FlagSet) {
	flags.IntVar(&s.Simulate, "simulate", 0, "make `N` simulated machines, sim-0 and on, in namespace default")
	flags.StringVar(&s.Kubeconfig, "kubeconfig", "", "use the VirtualMachines of the cluster that a kubeconfig `file` names")
	s.Simulator.AddFlags(flags)
}

// Validate tells whether the flags name one source.
func (s *Source) Validate() error {
	if s.Simulate < 0 || s.Simulate > Most {
		return fmt.Errorf("--simulate %d is not between 0 and %d", s.Simulate, Most)
	}
	named := 0
	for _, given := range []bool{s.Simulate > 0, s.Kubeconfig != "", s.Simulator.Address != ""} {
		if given {
			named++
		}
	}
	switch {
	case named == 0:
		return errors.New("no machines: give --kubeconfig, --simulate or --simulator-address")
	case named > 1:
		return errors.New("--kubeconfig, --simulate and --simulator-address exclude each other")
	case s.Simulator.Address != "":
		return s.Simulator.Validate()
	}
	return nil
}

// Machines are a source's machines.
type Machines struct {
	hypervisor.Hypervisor
	// Run keeps them in step with their source until its context ends.
	Run func(context.Context) error
}

// Open returns the source's machines; namespaces are those to look in where the
// source has many.
func (s *Source) Open(log *slog.Logger, namespaces []string) (Machines, error) {
	switch {
	case s.Simulate > 0:
		machines, err := simulate(s.Simulate)
		return Machines{machines, func(ctx context.Context) error { <-ctx.Done(); return nil }}, err
	case s.Kubeconfig != "":
		machines, err := powerservice.NewKubeVirt(powerservice.KubeVirtConfig{Kubeconfig: s.Kubeconfig, Namespaces: namespaces, Log: log})
		if err != nil {
			return Machines{}, err
		}
		return Machines{machines, machines.Run}, nil
	}
	client, closeConnection, err := s.Simulator.Dial(log)
	if err != nil {
		return Machines{}, err
	}
	return Machines{client, func(ctx context.Context) error { return errors.Join(client.Run(ctx), closeConnection()) }}, nil
}

func simulate(n int) (*simulator.Simulator, error) {
	machines := simulator.New(simulator.Config{Delays: simulator.RealisticDelays()})
	for i := range n {
		ref := hypervisor.Ref{Namespace: "default", Name: fmt.Sprintf("sim-%d", i)}
		if err := machines.AddMachine(simulator.Spec{Ref: ref}); err != nil {
			return nil, fmt.Errorf("make machine %s: %w", ref, err)
		}
	}
	return machines, nil
}

// ConfigureSimulator adds the flags of the simulator command, which serves
// simulated machines to services of other processes.
func ConfigureSimulator(flags *flag.FlagSet) process.Run {
	serve := grpcprocess.AddFlags(flags, false)
	n := flags.Int("machines", 3, "`number` of machines, sim-0 and on, in namespace default")
	return func(ctx context.Context, p *process.Process) error {
		if *n < 0 || *n > Most {
			return fmt.Errorf("--machines %d is not between 0 and %d", *n, Most)
		}
		machines, err := simulate(*n)
		if err != nil {
			return err
		}
		return serve.Serve(ctx, p, grpcprocess.Service{Register: func(r grpc.ServiceRegistrar) { remote.Register(r, machines) }})
	}
}
