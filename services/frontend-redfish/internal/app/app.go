// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package app turns the flags of the frontend-redfish program into its parts.
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
	"kubevirtbmc.dev/services/frontend-redfish/redfishfrontend"
)

// Options are the program's flags.
type Options struct {
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

// New adds the program's flags and returns what runs it.
func New(flags *flag.FlagSet) process.Run { return newOptions(flags).Run }

func newOptions(flags *flag.FlagSet) *Options {
	o := &Options{}
	flags.StringVar(&o.Listen, "listen", "", "host `address` on which BMCs are served, at the ports that the registry names; empty: all")
	flags.StringVar(&o.Registry, "registry", "", "gRPC `target` of RegistryService and StateService")
	flags.StringVar(&o.Power, "power", "", "gRPC `target` of PowerService, BootService and InventoryService")
	flags.StringVar(&o.Media, "media", "", "gRPC `target` of MediaService")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `file` of the CA certificates that the services are checked against; it is read again when it changes")
	flags.StringVar(&o.TokenFile, "token-file", "", "`file` of the bearer token to present to the services; it is read again for each call")
	flags.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` of the certificate for BMCs for which the registry names none; it is read again when it changes")
	flags.StringVar(&o.KeyFile, "tls-key-file", "", "PEM `file` of that certificate's private key")
	flags.StringVar(&o.Replica, "replica", "", "unique `name` of this process; empty: the host name")
	flags.DurationVar(&o.DrainTime, "drain-time", 0, "how long to go on after a signal to end, until the registry has given the BMCs to other replicas")
	return o
}

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	for _, needed := range [...]struct{ flag, value string }{
		{"registry", o.Registry}, {"power", o.Power}, {"media", o.Media}, {"ca-file", o.CAFile}, {"token-file", o.TokenFile},
	} {
		if needed.value == "" {
			errs = append(errs, fmt.Errorf("--%s is needed", needed.flag))
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-key-file go together"))
	}
	return errors.Join(errs...)
}

// Run serves until the context ends.
func (o *Options) Run(ctx context.Context, p *process.Process) error {
	if err := o.Validate(); err != nil {
		return err
	}
	replica := o.Replica
	if replica == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name this replica: %w", err)
		}
		replica = host
	}
	cfg := redfishfrontend.Config{
		Listen: o.Listen, Replica: replica, Log: p.Log, Metrics: p.Registry,
		OnReady: func(ready bool) { p.Health.Set("registry", ready) }, DrainTime: o.DrainTime,
	}
	p.Health.Set("registry", false)
	if o.CertFile != "" {
		files, err := certs.LoadFiles(o.CertFile, o.KeyFile)
		if err != nil {
			return err
		}
		cfg.Certificate = files.Certificate
	}
	conns, closeAll, err := o.dial()
	if err != nil {
		return err
	}
	defer closeAll()
	cfg.Registry, cfg.Power, cfg.Media = conns[o.Registry], conns[o.Power], conns[o.Media]
	cfg.State, cfg.Boot, cfg.Inventory = cfg.Registry, cfg.Power, cfg.Power
	frontend, err := redfishfrontend.New(cfg)
	if err != nil {
		return err
	}
	return frontend.Run(ctx)
}

// dial connects to each target once.
func (o *Options) dial() (conns map[string]*grpc.ClientConn, closeAll func(), err error) {
	roots, err := certs.LoadRoots(o.CAFile)
	if err != nil {
		return nil, nil, err
	}
	cfg := grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(o.TokenFile)}
	return grpcclient.DialEach(cfg, o.Registry, o.Power, o.Media)
}
