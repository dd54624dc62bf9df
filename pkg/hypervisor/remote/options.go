// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
)

// Options say where the hypervisor's process is.
type Options struct {
	Address   string
	CAFile    string
	TokenFile string
}

// AddFlags adds the flags of a simulator's process.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Address, "simulator-address", "", "`host:port` of the simulator process")
	flags.StringVar(&o.CAFile, "simulator-ca-file", "", "PEM `file` with the CA of the simulator process; read again when it changes")
	flags.StringVar(&o.TokenFile, "simulator-token-file", "", "`file` with the bearer token of the simulator process")
}

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	if o.Address == "" || o.CAFile == "" || o.TokenFile == "" {
		return errors.New("--simulator-address, --simulator-ca-file and --simulator-token-file are needed")
	}
	return nil
}

// Dial makes a client of the process, over TLS.
func (o *Options) Dial(log *slog.Logger) (client *Client, closeConnection func() error, err error) {
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	roots, err := certs.LoadRoots(o.CAFile)
	if err != nil {
		return nil, nil, err
	}
	connection, err := grpcclient.Dial(o.Address, grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(o.TokenFile)})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the simulator: %w", err)
	}
	return NewClient(connection, log), connection.Close, nil
}
