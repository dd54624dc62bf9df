// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package mediav1 serves bmc.media.v1.
package mediav1

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	"kubevirtbmc.dev/pkg/urlpolicy"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/media/internal/image"
	"kubevirtbmc.dev/services/media/internal/slot"
)

// Config of the service.
type Config struct {
	Bay      *slot.Bay
	Resolver hypervisor.Resolver
	Audit    *audit.Trail
	// Actions counts inserts and ejects, as NewActions makes it.
	Actions *prometheus.CounterVec
}

// Service is MediaService.
type Service struct {
	mediav1.UnsafeMediaServiceServer
	bay      *slot.Bay
	resolver hypervisor.Resolver
	audit    *audit.Trail
	actions  *prometheus.CounterVec
}

// New makes the service.
func New(config Config) *Service {
	return &Service{bay: config.Bay, resolver: config.Resolver, audit: config.Audit, actions: config.Actions}
}

// NewActions makes the counter of a Config.
func NewActions() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vbmc_media_actions_total",
		Help: "Inserts and ejects of virtual media, by action and gRPC code.",
	}, []string{"action", "code"})
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	mediav1.RegisterMediaServiceServer(registrar, service)
}

// ListMedia implements MediaService.
func (s *Service) ListMedia(_ context.Context, request *mediav1.ListMediaRequest) (*mediav1.ListMediaResponse, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, statusOf(err)
	}
	slots, err := s.list(ref)
	if err != nil {
		return nil, statusOf(err)
	}
	return &mediav1.ListMediaResponse{Slots: slots}, nil
}

// InsertMedia implements MediaService.
func (s *Service) InsertMedia(ctx context.Context, request *mediav1.InsertMediaRequest) (*mediav1.InsertMediaResponse, error) {
	changed, err := s.insert(ctx, request)
	if err = s.record(ctx, "MEDIA_INSERT", request.GetSlot(), request.GetBmc(), err); err != nil {
		return nil, err
	}
	return &mediav1.InsertMediaResponse{Slot: message(changed)}, nil
}

func (s *Service) insert(ctx context.Context, request *mediav1.InsertMediaRequest) (slot.Slot, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return slot.Slot{}, err
	}
	return s.bay.Insert(ctx, ref, request.GetSlot(), hypervisor.Image{
		URL:      request.GetImageUrl(),
		Username: request.GetCredentials().GetUsername(),
		Password: request.GetCredentials().GetPassword(),
	})
}

// EjectMedia implements MediaService.
func (s *Service) EjectMedia(ctx context.Context, request *mediav1.EjectMediaRequest) (*mediav1.EjectMediaResponse, error) {
	changed, err := s.eject(ctx, request)
	if err = s.record(ctx, "MEDIA_EJECT", request.GetSlot(), request.GetBmc(), err); err != nil {
		return nil, err
	}
	return &mediav1.EjectMediaResponse{Slot: message(changed)}, nil
}

func (s *Service) eject(ctx context.Context, request *mediav1.EjectMediaRequest) (slot.Slot, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return slot.Slot{}, err
	}
	return s.bay.Eject(ctx, ref, request.GetSlot())
}

// WatchMedia implements MediaService.
func (s *Service) WatchMedia(request *mediav1.WatchMediaRequest, stream grpc.ServerStreamingServer[mediav1.WatchMediaResponse]) error {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return statusOf(err)
	}
	changes, cancel := s.bay.Follow(ref)
	defer cancel()
	return statusOf(follow.Send(stream.Context(), changes, func() (*mediav1.WatchMediaResponse, error) {
		slots, err := s.list(ref)
		if err != nil {
			return nil, err
		}
		return &mediav1.WatchMediaResponse{Slots: slots}, nil
	}, func(a, b *mediav1.WatchMediaResponse) bool { return proto.Equal(a, b) }, stream.Send))
}

func (s *Service) resolve(bmc *referencev1.BMCReference) (hypervisor.Ref, error) {
	return s.resolver.Resolve(bmc.GetNamespace(), bmc.GetName())
}

func (s *Service) list(ref hypervisor.Ref) ([]*mediav1.MediaSlot, error) {
	slots, err := s.bay.List(ref)
	if err != nil {
		return nil, err
	}
	messages := make([]*mediav1.MediaSlot, len(slots))
	for n, one := range slots {
		messages[n] = message(one)
	}
	return messages, nil
}

// record reports a change and returns its error as a status.
func (s *Service) record(ctx context.Context, action, slotID string, bmc *referencev1.BMCReference, err error) error {
	err = statusOf(err)
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), action+" "+slotID, bmc, err)
	s.actions.WithLabelValues(action, status.Code(err).String()).Inc()
	return err
}

// reasons has the reason of each error; the first that matches counts.
var reasons = []struct {
	err    error
	reason errorsv1.Reason
}{
	{hypervisor.ErrNoBMC, errorsv1.Reason_REASON_BMC_NOT_FOUND},
	{hypervisor.ErrNotFound, errorsv1.Reason_REASON_MACHINE_NOT_FOUND},
	{slot.ErrNoSlot, errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND},
	{slot.ErrURL, errorsv1.Reason_REASON_INVALID_REQUEST},
	{urlpolicy.ErrDenied, errorsv1.Reason_REASON_INVALID_REQUEST},
	{image.ErrNoImage, errorsv1.Reason_REASON_INVALID_REQUEST},
	{image.ErrCredentials, errorsv1.Reason_REASON_INVALID_REQUEST},
	{image.ErrLength, errorsv1.Reason_REASON_INVALID_REQUEST},
	{image.ErrFormat, errorsv1.Reason_REASON_INVALID_REQUEST},
	{image.ErrUnreachable, errorsv1.Reason_REASON_INVALID_REQUEST},
	{hypervisor.ErrNoTray, errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND},
	{hypervisor.ErrForeignMedium, errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE},
	{hypervisor.ErrUnsupported, errorsv1.Reason_REASON_UNSUPPORTED},
	{hypervisor.ErrUnavailable, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
	{hypervisor.ErrStale, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
}

// statusOf returns the gRPC status error of err; nil for nil.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	for _, row := range reasons {
		if errors.Is(err, row.err) {
			return grpcstatus.New(row.reason, "%s", err)
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	if _, ok := errors.AsType[*hypervisor.InvalidError](err); ok {
		return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "%s", err)
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "%s", err)
}

var phases = map[hypervisor.MediumPhase]mediav1.MediaState{
	hypervisor.MediumImporting: mediav1.MediaState_MEDIA_STATE_IMPORTING,
	hypervisor.MediumInserted:  mediav1.MediaState_MEDIA_STATE_INSERTED,
	hypervisor.MediumFailed:    mediav1.MediaState_MEDIA_STATE_FAILED,
}

func message(s slot.Slot) *mediav1.MediaSlot {
	m := &mediav1.MediaSlot{
		Slot:           s.ID,
		Device:         s.Tray.Device,
		State:          mediav1.MediaState_MEDIA_STATE_EMPTY,
		AtNextStart:    s.Tray.Pending,
		WriteProtected: true,
	}
	if !s.Tray.Changed.IsZero() {
		m.LastTransitionTime = timestamppb.New(s.Tray.Changed)
	}
	medium := s.Tray.Medium
	if medium == nil {
		return m
	}
	m.State = mediav1.MediaState_MEDIA_STATE_UNKNOWN
	if state, ok := phases[medium.Phase]; ok {
		m.State = state
	}
	m.ImageUrl = medium.URL
	m.Foreign = medium.Foreign
	m.Message = medium.Message
	if medium.Phase == hypervisor.MediumImporting {
		m.ProgressPercent = uint32(min(max(medium.Progress, 0), 100))
	}
	return m
}
