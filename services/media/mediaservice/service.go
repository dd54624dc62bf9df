// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package mediaservice is the media service as a part of another program: it is
// how standalone mode runs MediaService in its own process.
package mediaservice

import (
	"context"
	"log/slog"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/hypervisor"
	mediapb "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	mediav1 "kubevirtbmc.dev/services/media/internal/service/v1"
	"kubevirtbmc.dev/services/media/internal/slot"
)

// Hypervisor is what the service needs of one.
type Hypervisor interface {
	hypervisor.Media
	// Subscribe calls changed after each change of a machine or of its trays, as
	// hypervisor.Machines does.
	Subscribe(changed func(hypervisor.Ref)) (cancel func())
}

// Config of the service. Hypervisor, Resolver and Log are needed.
type Config struct {
	Hypervisor Hypervisor
	// Resolver finds the machines of BMCs.
	Resolver hypervisor.Resolver
	Log      *slog.Logger
	// Audit gets the records of calls beside the log; nil: the log alone.
	Audit audit.Sink
	// Metrics gets the service's metrics; nil: none.
	Metrics prometheus.Registerer
}

// Service is the media service.
type Service struct {
	bay   *slot.Bay
	media *mediav1.Service
}

// New makes the service. Run makes its watches work.
func New(config Config) (*Service, error) {
	actions := mediav1.NewActions()
	if config.Metrics != nil {
		if err := config.Metrics.Register(actions); err != nil {
			return nil, err
		}
	}
	bay := slot.NewBay(config.Hypervisor)
	return &Service{
		bay:   bay,
		media: mediav1.New(mediav1.Config{Bay: bay, Resolver: config.Resolver, Audit: audit.New(config.Log, config.Audit), Actions: actions}),
	}, nil
}

// Register adds the gRPC service to a server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) { mediav1.Register(registrar, s.media) }

// RegisterGateway adds the REST form of the service to a gateway that calls it
// over a connection.
func (s *Service) RegisterGateway(ctx context.Context, mux *runtime.ServeMux, connection grpc.ClientConnInterface) error {
	return mediapb.RegisterMediaServiceHandlerClient(ctx, mux, mediapb.NewMediaServiceClient(connection))
}

// Run tells watchers of changes until the context ends.
func (s *Service) Run(ctx context.Context) error { return s.bay.Run(ctx) }
