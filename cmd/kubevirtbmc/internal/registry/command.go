// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"flag"
	"os"

	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/config"
	"kubevirtbmc.dev/pkg/grpcprocess"
	"kubevirtbmc.dev/pkg/process"
)

// Configure adds the flags of the registry command, which serves the BMCs of a
// configuration file to frontends of other processes.
func Configure(flags *flag.FlagSet) process.Run {
	serve := grpcprocess.AddFlags(flags, false)
	file := flags.String("config", "", "YAML `file` that names the BMCs; credentials that it does not name come from BMC_USERNAME and BMC_PASSWORD")
	var ports config.Ports
	flags.IntVar(&ports.IPMI, "ipmi-port", 6230, "UDP `port` of the first BMC; the others follow")
	flags.IntVar(&ports.Redfish, "redfish-port", 8443, "TCP `port` of the first BMC's Redfish over HTTPS; the others follow")
	return func(ctx context.Context, p *process.Process) error {
		bmcs, err := load(*file, ports)
		if err != nil {
			return err
		}
		return serve.Serve(ctx, p, grpcprocess.Service{Register: bmcs.Register})
	}
}

// load makes a registry of a configuration file. Its credentials must be given:
// nobody would learn a generated password here.
func load(path string, ports config.Ports) (*Registry, error) {
	if path == "" {
		return nil, errors.New("--config is needed")
	}
	file, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	credentials, err := file.NewCredentials(os.Getenv)
	if err != nil {
		return nil, err
	}
	for _, bmc := range file.BMCs {
		if credentials.Generated && bmc.Password == "" {
			return nil, errors.New("no password: set BMC_PASSWORD or password in the configuration file")
		}
	}
	bmcs, err := file.Registry(credentials, ports)
	if err != nil {
		return nil, err
	}
	return New(bmcs), nil
}
