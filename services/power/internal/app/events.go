// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/kubevirt"
	"kubevirtbmc.dev/services/power/powerservice"
)

// sink is where calls are recorded beside the log: in Events of the
// VirtualMachineBMCs, where there are any.
func sink(machines powerservice.Hypervisor) audit.Sink {
	if withBMCs, ok := machines.(*kubevirt.WithBMCs); ok {
		return withBMCs.Events
	}
	return nil
}

// trouble tells, in the same way, of what failed later.
func trouble(machines powerservice.Hypervisor) func(machine hypervisor.Ref, action, message string) {
	withBMCs, ok := machines.(*kubevirt.WithBMCs)
	if !ok {
		return nil
	}
	return func(machine hypervisor.Ref, action, message string) {
		if bmc := withBMCs.BMCs.Of(machine); bmc != nil {
			withBMCs.Events.Trouble(bmc.Namespace, bmc.Name, action, message)
		}
	}
}

// stateOptions say where StateService is.
type stateOptions struct{ target, caFile, tokenFile string }

func addStateFlags(flags *flag.FlagSet) *stateOptions {
	o := &stateOptions{}
	flags.StringVar(&o.target, "state", "", "gRPC `target` of StateService, whose event logs are told what becomes of the machines; empty: none is")
	flags.StringVar(&o.caFile, "state-ca-file", "", "PEM `file` with the CA certificates that the certificate of --state comes from; read again when it changes")
	flags.StringVar(&o.tokenFile, "state-token-file", "", "`file` with the bearer token to present to --state; read again for each call")
	return o
}

// dial connects to StateService; nil where there is none.
func (o *stateOptions) dial() (*grpc.ClientConn, error) {
	if o.target == "" {
		return nil, nil //nolint:nilnil // The flag says that there is none.
	}
	if o.caFile == "" || o.tokenFile == "" {
		return nil, errors.New("--state needs --state-ca-file and --state-token-file")
	}
	roots, err := certs.LoadRoots(o.caFile)
	if err != nil {
		return nil, err
	}
	return grpcclient.Dial(o.target, grpcclient.Config{Roots: roots.Pool, Token: grpcclient.TokenFile(o.tokenFile)})
}

// bmcsOf names the BMC of a machine: where no VirtualMachineBMC does, it has the
// machine's name.
func bmcsOf(machines powerservice.Hypervisor) func(hypervisor.Ref) []hypervisor.Ref {
	withBMCs, ok := machines.(*kubevirt.WithBMCs)
	if !ok {
		return func(machine hypervisor.Ref) []hypervisor.Ref { return []hypervisor.Ref{machine} }
	}
	return func(machine hypervisor.Ref) []hypervisor.Ref {
		bmc := withBMCs.BMCs.Of(machine)
		if bmc == nil {
			return nil
		}
		return []hypervisor.Ref{{Namespace: bmc.Namespace, Name: bmc.Name}}
	}
}

// connected is a service that closes its connection when it ends.
type connected struct {
	*powerservice.Service
	conn *grpc.ClientConn
}

// Run works until the context ends.
func (c connected) Run(ctx context.Context) error {
	return errors.Join(c.Service.Run(ctx), c.conn.Close())
}
