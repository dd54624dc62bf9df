// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"

	"google.golang.org/grpc"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// EventLog is the event log of a BMC at one moment.
type EventLog struct {
	// Events are the entries, oldest first.
	Events   []*statev1.Event
	Revision string
	// Capacity is how many entries it can hold.
	Capacity int
}

// Events reads and changes the event logs of BMCs.
type Events interface {
	// List returns a BMC's log.
	List(ctx context.Context, bmc *referencev1.BMCReference) (EventLog, error)
	// Append adds entries.
	Append(ctx context.Context, bmc *referencev1.BMCReference, events ...*statev1.Event) error
	// Clear empties the log if it is of the revision.
	Clear(ctx context.Context, bmc *referencev1.BMCReference, revision string) error
}

// NewEvents returns the Events of a connection to a StateService.
func NewEvents(conn grpc.ClientConnInterface) Events {
	return eventsClient{statev1.NewStateServiceClient(conn)}
}

type eventsClient struct{ client statev1.StateServiceClient }

func (c eventsClient) List(ctx context.Context, bmc *referencev1.BMCReference) (EventLog, error) {
	response, err := c.client.ListEvents(ctx, &statev1.ListEventsRequest{Bmc: bmc})
	return EventLog{Events: response.GetEvents(), Revision: response.GetRevision(), Capacity: int(response.GetCapacity())}, err
}

func (c eventsClient) Append(ctx context.Context, bmc *referencev1.BMCReference, events ...*statev1.Event) error {
	_, err := c.client.AppendEvents(ctx, &statev1.AppendEventsRequest{Bmc: bmc, Events: events})
	return err
}

func (c eventsClient) Clear(ctx context.Context, bmc *referencev1.BMCReference, revision string) error {
	_, err := c.client.ClearEvents(ctx, &statev1.ClearEventsRequest{Bmc: bmc, Revision: revision})
	return err
}
