// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package machines chooses where the machines behind the BMCs are: simulated in
// this process or in a simulator process.
package machines

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/remote"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/pkg/process"
)

// Most bounds the number of simulated machines: each takes ports of its own.
const Most = 20000

// Source is where the machines are.
type Source struct {
	// Simulate is the number of machines to simulate.
	Simulate int

	simulator, caFile, tokenFile string
}

// AddFlags adds the flags that choose the source.
func (s *Source) AddFlags(flags *flag.FlagSet) {
	flags.IntVar(&s.Simulate, "simulate", 0, "make `N` simulated machines, sim-0 and on, in namespace default")
	flags.StringVar(&s.simulator, "simulator-address", "", "use the machines of the simulator process at `host:port`")
	flags.StringVar(&s.caFile, "simulator-ca-file", "", "PEM `file` with the CA of the simulator process")
	flags.StringVar(&s.tokenFile, "simulator-token-file", "", "`file` with the bearer token of the simulator process")
}

// Validate tells whether the flags name one source.
func (s *Source) Validate() error {
	switch {
	case s.Simulate < 0 || s.Simulate > Most:
		return fmt.Errorf("--simulate %d is not between 0 and %d", s.Simulate, Most)
	case s.Simulate > 0 && s.simulator != "":
		return errors.New("--simulate and --simulator-address exclude each other")
	case s.Simulate == 0 && s.simulator == "":
		return errors.New("no machines: give --simulate or --simulator-address")
	case s.simulator != "" && (s.caFile == "" || s.tokenFile == ""):
		return errors.New("--simulator-address needs --simulator-ca-file and --simulator-token-file")
	}
	return nil
}

// Open returns the machines, and what keeps them in step with their source
// until its context ends.
func (s *Source) Open(log *slog.Logger) (hypervisor.Hypervisor, func(context.Context) error, error) {
	if s.simulator == "" {
		machines, err := simulate(s.Simulate)
		return machines, func(ctx context.Context) error { <-ctx.Done(); return nil }, err
	}
	tlsConfig, err := grpcclient.TLSFromCA(s.caFile)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpcclient.Dial(s.simulator, grpcclient.Config{TLS: tlsConfig, Token: grpcclient.TokenFile(s.tokenFile)})
	if err != nil {
		return nil, nil, err
	}
	client := remote.NewClient(conn, log)
	return client, func(ctx context.Context) error {
		defer conn.Close() //nolint:errcheck // Nothing is written after the last call.
		return client.Run(ctx)
	}, nil
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
