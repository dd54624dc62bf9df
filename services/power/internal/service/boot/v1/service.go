// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootv1 serves bmc.boot.v1.
package bootv1

import (
	"context"
	"math"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/service/reason"
)

// Config of the service.
type Config struct {
	Engine   *machine.Engine
	Resolver hypervisor.Resolver
	Audit    *audit.Trail
}

// Service is BootService.
type Service struct {
	bootv1.UnsafeBootServiceServer
	engine   *machine.Engine
	resolver hypervisor.Resolver
	audit    *audit.Trail
}

// New makes the service.
func New(config Config) *Service {
	return &Service{engine: config.Engine, resolver: config.Resolver, audit: config.Audit}
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	bootv1.RegisterBootServiceServer(registrar, service)
}

// GetBoot implements BootService.
func (s *Service) GetBoot(_ context.Context, request *bootv1.GetBootRequest) (*bootv1.GetBootResponse, error) {
	status, err := s.status(request.GetBmc())
	if err != nil {
		return nil, reason.Status(err)
	}
	return &bootv1.GetBootResponse{Status: status}, nil
}

// SetBootOverride implements BootService.
func (s *Service) SetBootOverride(ctx context.Context, request *bootv1.SetBootOverrideRequest) (*bootv1.SetBootOverrideResponse, error) {
	status, err := s.set(ctx, request)
	err = reason.Status(err)
	action := "BOOT_OVERRIDE " + request.GetOverride().GetPersistence().String() + " " + request.GetOverride().GetTarget().String()
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), action, request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &bootv1.SetBootOverrideResponse{Status: status}, nil
}

func (s *Service) set(ctx context.Context, request *bootv1.SetBootOverrideRequest) (*bootv1.BootStatus, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, err
	}
	if _, err := s.engine.BootStatus(ref); err != nil {
		return nil, err
	}
	wanted := request.GetOverride()
	err = s.engine.SetOverride(ctx, ref, record.Override{
		Target:      targets[wanted.GetTarget()],
		Persistence: persistences[wanted.GetPersistence()],
		Mode:        modes[wanted.GetMode()],
		Flags:       wanted.GetBootFlags(),
		Validity:    wanted.GetValidity().AsDuration(),
	})
	if err != nil {
		return nil, err
	}
	return s.status(request.GetBmc())
}

// SetFirmwareMode implements BootService.
func (s *Service) SetFirmwareMode(ctx context.Context, request *bootv1.SetFirmwareModeRequest) (*bootv1.SetFirmwareModeResponse, error) {
	status, err := s.setMode(ctx, request)
	err = reason.Status(err)
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), "FIRMWARE_MODE "+request.GetMode().String(), request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &bootv1.SetFirmwareModeResponse{Status: status}, nil
}

func (s *Service) setMode(ctx context.Context, request *bootv1.SetFirmwareModeRequest) (*bootv1.BootStatus, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, err
	}
	if _, err := s.engine.BootStatus(ref); err != nil {
		return nil, err
	}
	if err := s.engine.SetFirmwareMode(ctx, ref, modes[request.GetMode()]); err != nil {
		return nil, err
	}
	return s.status(request.GetBmc())
}

// SetBootOrder implements BootService.
func (s *Service) SetBootOrder(ctx context.Context, request *bootv1.SetBootOrderRequest) (*bootv1.SetBootOrderResponse, error) {
	status, err := s.setOrder(ctx, request)
	err = reason.Status(err)
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), "BOOT_ORDER "+strings.Join(request.GetDevices(), ","), request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &bootv1.SetBootOrderResponse{Status: status}, nil
}

func (s *Service) setOrder(ctx context.Context, request *bootv1.SetBootOrderRequest) (*bootv1.BootStatus, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, err
	}
	if _, err := s.engine.BootStatus(ref); err != nil {
		return nil, err
	}
	if err := s.engine.SetBootOrder(ctx, ref, request.GetDevices()); err != nil {
		return nil, err
	}
	return s.status(request.GetBmc())
}

// WatchBoot implements BootService.
func (s *Service) WatchBoot(request *bootv1.WatchBootRequest, stream grpc.ServerStreamingServer[bootv1.WatchBootResponse]) error {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return reason.Status(err)
	}
	changes, cancel := s.engine.Follow(ref)
	defer cancel()
	return reason.Status(follow.Send(stream.Context(), changes, func() (*bootv1.WatchBootResponse, error) {
		status, err := s.status(request.GetBmc())
		if err != nil {
			return nil, err
		}
		return &bootv1.WatchBootResponse{Status: status}, nil
	}, func(a, b *bootv1.WatchBootResponse) bool { return proto.Equal(a, b) }, stream.Send))
}

func (s *Service) resolve(bmc *referencev1.BMCReference) (hypervisor.Ref, error) {
	return s.resolver.Resolve(bmc.GetNamespace(), bmc.GetName())
}

func (s *Service) status(bmc *referencev1.BMCReference) (*bootv1.BootStatus, error) {
	ref, err := s.resolve(bmc)
	if err != nil {
		return nil, err
	}
	status, err := s.engine.BootStatus(ref)
	if err != nil {
		return nil, err
	}
	return message(status), nil
}

var targets = map[bootv1.BootTarget]record.Target{
	bootv1.BootTarget_BOOT_TARGET_NONE: record.TargetNone,
	bootv1.BootTarget_BOOT_TARGET_PXE:  record.TargetPXE,
	bootv1.BootTarget_BOOT_TARGET_HDD:  record.TargetHDD,
	bootv1.BootTarget_BOOT_TARGET_CD:   record.TargetCD,
}

var persistences = map[bootv1.BootPersistence]record.Persistence{
	bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED:   record.Disabled,
	bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE:       record.Once,
	bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS: record.Continuous,
}

var modes = map[bootv1.FirmwareMode]hypervisor.FirmwareMode{
	bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY: hypervisor.FirmwareBIOS,
	bootv1.FirmwareMode_FIRMWARE_MODE_UEFI:   hypervisor.FirmwareUEFI,
}

var kinds = map[hypervisor.DeviceKind]bootv1.BootDeviceKind{
	hypervisor.DeviceDisk:      bootv1.BootDeviceKind_BOOT_DEVICE_KIND_DISK,
	hypervisor.DeviceCDROM:     bootv1.BootDeviceKind_BOOT_DEVICE_KIND_CDROM,
	hypervisor.DeviceInterface: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_INTERFACE,
}

var (
	targetEnums      = inverse(targets)
	persistenceEnums = inverse(persistences)
	modeEnums        = inverse(modes)
)

func inverse[K, V comparable](m map[K]V) map[V]K {
	inverted := make(map[V]K, len(m))
	for k, v := range m {
		inverted[v] = k
	}
	return inverted
}

// order returns a boot order as the API has it.
func order(n int) uint32 {
	if n < 0 || n > math.MaxInt32 {
		return 0
	}
	return uint32(n)
}

func message(status *machine.BootStatus) *bootv1.BootStatus {
	m := &bootv1.BootStatus{
		Override: &bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED,
			Target:      bootv1.BootTarget_BOOT_TARGET_NONE,
		},
		Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UNKNOWN,
	}
	if mode, ok := modeEnums[status.Mode]; ok {
		m.Mode = mode
	}
	if o := status.Override; o != nil {
		m.Override.BootFlags = o.Flags
		if o.Persistence != record.Disabled {
			m.OverrideId = o.ID
			m.Override.Persistence = persistenceEnums[o.Persistence]
			m.Override.Target = targetEnums[o.Target]
			m.Override.Mode = modeEnums[o.Mode]
			if o.Validity > 0 {
				m.Override.Validity = durationpb.New(o.Validity)
			}
		}
	}
	if m.Override.GetMode() == bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED {
		m.Override.Mode = m.GetMode()
	}
	m.InstanceMode, m.SecureBoot = modeEnums[status.InstanceMode], status.SecureBoot
	for _, target := range status.Targets {
		m.AllowedTargets = append(m.AllowedTargets, targetEnums[target])
	}
	for _, mode := range status.Modes {
		m.AllowedModes = append(m.AllowedModes, modeEnums[mode])
	}
	for _, d := range status.Devices {
		m.Devices = append(m.Devices, &bootv1.BootDevice{Name: d.Name, Kind: kinds[d.Kind], Order: order(d.Order)})
	}
	return m
}
