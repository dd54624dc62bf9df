// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app runs both frontends in one process, for one BMC.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/process"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/ipmifrontend"
	"kubevirtbmc.dev/services/frontend-redfish/redfishfrontend"
)

// Components of the process's readiness.
const (
	componentIPMI    = "ipmi"
	componentRedfish = "redfish"
)

// Config is what flags say.
type Config struct {
	BMC       string
	Listen    string
	Registry  string
	Power     string
	Media     string
	CAFile    string
	TokenFile string
	CertFile  string
	KeyFile   string
	Replica   string
	DrainTime time.Duration
}

// Configure adds the agent's flags and returns what runs it.
func Configure(flags *flag.FlagSet) process.Run {
	cfg := &Config{}
	hostname, _ := os.Hostname() // Without one the flag is needed.
	flags.StringVar(&cfg.BMC, "bmc", "", "`namespace/name` of the VirtualMachineBMC to serve; no other is")
	flags.StringVar(&cfg.Listen, "listen", "", "`address` to serve the BMC on, without port: the ports come from the registry; empty: all addresses")
	flags.StringVar(&cfg.Registry, "registry", "", "gRPC `target` of the RegistryService")
	flags.StringVar(&cfg.Power, "power", "", "gRPC `target` of PowerService, BootService and InventoryService")
	flags.StringVar(&cfg.Media, "media", "", "gRPC `target` of MediaService")
	flags.StringVar(&cfg.CAFile, "ca-file", "", "PEM `file` with the CA certificates that the services' certificates come from; read again when it changes")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "`file` with the bearer token to present to the services; read again for each call")
	flags.StringVar(&cfg.CertFile, "tls-cert-file", "", "PEM `file` of the certificate of Redfish where the registry names none; read again when it changes")
	flags.StringVar(&cfg.KeyFile, "tls-key-file", "", "PEM `file` of that certificate's private key")
	flags.StringVar(&cfg.Replica, "replica", hostname, "unique `name` of this process, its pod's")
	flags.DurationVar(&cfg.DrainTime, "drain-time", 0, "how long to go on after a signal to end, until the registry has given the BMC to another agent or the shared frontends")
	return func(ctx context.Context, p *process.Process) error { return run(ctx, p, cfg) }
}

// Validate tells what is missing or wrong.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range []struct{ flag, value string }{
		{"bmc", c.BMC},
		{"registry", c.Registry},
		{"power", c.Power},
		{"media", c.Media},
		{"ca-file", c.CAFile},
		{"token-file", c.TokenFile},
		{"replica", c.Replica},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("--%s is needed", f.flag))
		}
	}
	if c.BMC != "" && c.reference() == nil {
		errs = append(errs, fmt.Errorf("--bmc: %q is not namespace/name", c.BMC))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-key-file go together"))
	}
	return errors.Join(errs...)
}

// reference returns the BMC that the flag names; nil when it names none.
func (c *Config) reference() *referencev1.BMCReference {
	namespace, name, ok := strings.Cut(c.BMC, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return nil
	}
	return &referencev1.BMCReference{Namespace: namespace, Name: name}
}

func run(ctx context.Context, p *process.Process, cfg *Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	p.Health.Set(componentIPMI, false)
	p.Health.Set(componentRedfish, false)
	conns, closeAll, err := dial(cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	registry, power, media := conns[cfg.Registry], conns[cfg.Power], conns[cfg.Media]
	ipmi, err := ipmifrontend.New(ipmifrontend.Config{
		Listen: cfg.Listen, Registry: registry, Power: power, Boot: power, Inventory: power, Console: power, State: registry,
		BMC: cfg.reference(), Replica: cfg.Replica, Log: p.Log, Metrics: p.Registry,
		OnReady: func() { p.Health.Set(componentIPMI, ctx.Err() == nil) }, DrainTime: cfg.DrainTime,
	})
	if err != nil {
		return err
	}
	redfishConfig := redfishfrontend.Config{
		Listen: cfg.Listen, Registry: registry, Power: power, Boot: power, Inventory: power, Media: media, State: registry,
		BMC: cfg.reference(), Replica: cfg.Replica, Log: p.Log, Metrics: p.Registry,
		OnReady: func(ready bool) { p.Health.Set(componentRedfish, ready) }, DrainTime: cfg.DrainTime,
	}
	if cfg.CertFile != "" {
		files, err := certs.LoadFiles(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return err
		}
		redfishConfig.Certificate = files.Certificate
	}
	redfish, err := redfishfrontend.New(redfishConfig)
	if err != nil {
		return err
	}
	// Where one fails the other ends too: half an agent would look like a whole
	// one.
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return ipmi.Run(groupCtx) })
	group.Go(func() error { return redfish.Run(groupCtx) })
	return group.Wait()
}

// dial connects to each target once.
func dial(cfg *Config) (conns map[string]*grpc.ClientConn, closeAll func(), err error) {
	roots, err := certs.LoadRoots(cfg.CAFile)
	if err != nil {
		return nil, nil, err
	}
	config := grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(cfg.TokenFile)}
	return grpcclient.DialEach(config, cfg.Registry, cfg.Power, cfg.Media)
}
