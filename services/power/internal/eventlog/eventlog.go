// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventlog writes the event logs of machines' BMCs, which StateService
// keeps.
package eventlog

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/hypervisor"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// Log implements machine.EventLog.
type Log struct {
	client statev1.StateServiceClient
	bmcsOf func(hypervisor.Ref) []hypervisor.Ref
}

// New returns the logs behind a connection to a StateService. bmcsOf names the
// BMCs of a machine.
func New(conn grpc.ClientConnInterface, bmcsOf func(hypervisor.Ref) []hypervisor.Ref) *Log {
	return &Log{client: statev1.NewStateServiceClient(conn), bmcsOf: bmcsOf}
}

// Append adds entries to the logs of a machine's BMCs; hypervisor.ErrNoBMC when it
// has none.
func (l *Log) Append(ctx context.Context, machine hypervisor.Ref, events []*statev1.Event) error {
	bmcs := l.bmcsOf(machine)
	if len(bmcs) == 0 {
		return hypervisor.ErrNoBMC
	}
	var errs []error
	for _, bmc := range bmcs {
		_, err := l.client.AppendEvents(ctx, &statev1.AppendEventsRequest{
			Bmc: &referencev1.BMCReference{Namespace: bmc.Namespace, Name: bmc.Name}, Events: events,
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
