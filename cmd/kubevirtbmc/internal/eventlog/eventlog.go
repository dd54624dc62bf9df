// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventlog has the event logs, event subscriptions and accounts of standalone
// mode: in memory, so that they are gone with the process.
package eventlog

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// Capacity is how many entries a log has, as in a cluster.
const Capacity = 500

// Service is StateService. Use New.
type Service struct {
	statev1.UnimplementedStateServiceServer
	// registry learns of accounts.
	registry Registry

	mu       sync.Mutex
	logs     map[string]*eventLog
	accounts map[string][]*registryv1.Account // by name, also those that can't log in
	disabled map[*registryv1.Account]bool
}

type eventLog struct {
	events   []*statev1.Event
	last     uint64 // Sequence of the newest entry that there ever was.
	revision uint64

	subscriptions []*statev1.Subscription
	watchers      map[chan *statev1.Event]struct{}
}

// New returns a service whose logs are empty, and which tells a registry of accounts.
func New(registry Registry) *Service {
	return &Service{
		registry: registry, logs: map[string]*eventLog{},
		accounts: map[string][]*registryv1.Account{}, disabled: map[*registryv1.Account]bool{},
	}
}

// Register adds the service to a server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	statev1.RegisterStateServiceServer(registrar, s)
}

func (s *Service) log(bmc *referencev1.BMCReference) *eventLog {
	key := keyOf(bmc)
	if s.logs[key] == nil {
		s.logs[key] = &eventLog{}
	}
	return s.logs[key]
}

func (l *eventLog) version() string { return strconv.FormatUint(l.revision, 10) }

// ListEvents implements StateService.
func (s *Service) ListEvents(_ context.Context, request *statev1.ListEventsRequest) (*statev1.ListEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	response := &statev1.ListEventsResponse{Revision: l.version(), Capacity: Capacity}
	for _, e := range l.events {
		if e.GetSequence() > request.GetAfterSequence() {
			response.Events = append(response.Events, e)
		}
	}
	return response, nil
}

// AppendEvents implements StateService.
func (s *Service) AppendEvents(_ context.Context, request *statev1.AppendEventsRequest) (*statev1.AppendEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	for _, e := range request.GetEvents() {
		if slices.ContainsFunc(l.events, func(old *statev1.Event) bool { return old.GetId() == e.GetId() }) {
			continue
		}
		e = proto.CloneOf(e)
		l.last++
		l.revision++
		e.Sequence = l.last
		l.events = append(l.events, e)
		l.publish(e)
	}
	if over := len(l.events) - Capacity; over > 0 {
		l.events = slices.Clone(l.events[over:])
	}
	return &statev1.AppendEventsResponse{Revision: l.version()}, nil
}

// ClearEvents implements StateService.
func (s *Service) ClearEvents(_ context.Context, request *statev1.ClearEventsRequest) (*statev1.ClearEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	if r := request.GetRevision(); r != "" && r != l.version() {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_STALE_REVISION, "the event log has changed since")
	}
	l.events = nil
	l.revision++
	return &statev1.ClearEventsResponse{Revision: l.version()}, nil
}
