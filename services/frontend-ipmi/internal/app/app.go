// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app makes the IPMI frontend a service of its own: from flags to
// connections to a running frontend.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/frontend-ipmi/ipmifrontend"
)

// Config is what flags say.
type Config struct {
	Listen    string
	Registry  string
	Power     string
	Replica   string
	CAFile    string
	TokenFile string
	DrainTime time.Duration
}

// Configure adds the service's flags and returns what runs it.
func Configure(flags *flag.FlagSet) process.Run {
	var cfg Config
	hostname, _ := os.Hostname() // The name of the pod; without one the flag is needed.
	flags.StringVar(&cfg.Listen, "listen", "", "`address` to serve IPMI on, without port: that of each BMC comes from the registry; empty: all addresses")
	flags.StringVar(&cfg.Registry, "registry", "", "gRPC `target` of RegistryService and StateService")
	flags.StringVar(&cfg.Power, "power", "", "gRPC `target` of PowerService, BootService, InventoryService and ConsoleService")
	flags.StringVar(&cfg.Replica, "replica", hostname, "unique `name` of this frontend")
	flags.StringVar(&cfg.CAFile, "ca-file", "", "PEM `file` with the CA certificates that the services' certificates come from; read again when it changes")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "`file` with the bearer token to present to the services; read again for each call")
	flags.DurationVar(&cfg.DrainTime, "drain-time", 0, "how long to go on after a signal to end, until the registry has given the BMCs to other replicas")
	return func(ctx context.Context, p *process.Process) error { return run(ctx, p, cfg) }
}

// Validate tells what is missing.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct{ flag, value string }{
		{"registry", c.Registry}, {"power", c.Power}, {"replica", c.Replica}, {"ca-file", c.CAFile}, {"token-file", c.TokenFile},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("--%s is needed", f.flag))
		}
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, p *process.Process, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	const component = "registry"
	p.Health.Set(component, false)
	roots, err := certs.LoadRoots(cfg.CAFile)
	if err != nil {
		return err
	}
	registry, err := dial(cfg.Registry, cfg.TokenFile, roots)
	if err != nil {
		return err
	}
	defer func() { _ = registry.Close() }()
	power, err := dial(cfg.Power, cfg.TokenFile, roots)
	if err != nil {
		return err
	}
	defer func() { _ = power.Close() }()
	frontend, err := ipmifrontend.New(ipmifrontend.Config{
		Listen: cfg.Listen, Registry: registry, Power: power, Boot: power, Inventory: power, Console: power, State: registry,
		Replica: cfg.Replica, Log: p.Log, Metrics: p.Registry,
		OnReady: func() { p.Health.Set(component, true) }, DrainTime: cfg.DrainTime,
	})
	if err != nil {
		return err
	}
	return frontend.Run(ctx)
}

func dial(target, tokenFile string, roots *certs.Roots) (*grpc.ClientConn, error) {
	return grpcclient.Dial(target, grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(tokenFile)})
}
