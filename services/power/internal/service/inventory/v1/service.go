// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package inventoryv1 serves bmc.inventory.v1.
package inventoryv1

import (
	"context"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/service/reason"
)

// Config of the service.
type Config struct {
	Engine   *machine.Engine
	Resolver hypervisor.Resolver
}

// Service is InventoryService.
type Service struct {
	inventoryv1.UnsafeInventoryServiceServer
	engine   *machine.Engine
	resolver hypervisor.Resolver
}

// New makes the service.
func New(config Config) *Service {
	return &Service{engine: config.Engine, resolver: config.Resolver}
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	inventoryv1.RegisterInventoryServiceServer(registrar, service)
}

// GetInventory implements InventoryService.
func (s *Service) GetInventory(_ context.Context, request *inventoryv1.GetInventoryRequest) (*inventoryv1.GetInventoryResponse, error) {
	inventory, err := s.inventory(request.GetBmc())
	if err != nil {
		return nil, reason.Status(err)
	}
	return &inventoryv1.GetInventoryResponse{Inventory: inventory}, nil
}

// WatchInventory implements InventoryService.
func (s *Service) WatchInventory(request *inventoryv1.WatchInventoryRequest, stream grpc.ServerStreamingServer[inventoryv1.WatchInventoryResponse]) error {
	ref, err := s.resolver.Resolve(request.GetBmc().GetNamespace(), request.GetBmc().GetName())
	if err != nil {
		return reason.Status(err)
	}
	changes, cancel := s.engine.Follow(ref)
	defer cancel()
	return reason.Status(follow.Send(stream.Context(), changes, func() (*inventoryv1.WatchInventoryResponse, error) {
		inventory, err := s.inventory(request.GetBmc())
		if err != nil {
			return nil, err
		}
		return &inventoryv1.WatchInventoryResponse{Inventory: inventory}, nil
	}, func(a, b *inventoryv1.WatchInventoryResponse) bool { return proto.Equal(a, b) }, stream.Send))
}

func (s *Service) inventory(bmc *referencev1.BMCReference) (*inventoryv1.Inventory, error) {
	ref, err := s.resolver.Resolve(bmc.GetNamespace(), bmc.GetName())
	if err != nil {
		return nil, err
	}
	m, err := s.engine.Machine(ref)
	if err != nil {
		return nil, err
	}
	return message(m), nil
}

var architectures = map[hypervisor.Architecture]inventoryv1.Architecture{
	"":                           inventoryv1.Architecture_ARCHITECTURE_UNKNOWN,
	hypervisor.ArchitectureAMD64: inventoryv1.Architecture_ARCHITECTURE_AMD64,
	hypervisor.ArchitectureARM64: inventoryv1.Architecture_ARCHITECTURE_ARM64,
	hypervisor.ArchitectureS390X: inventoryv1.Architecture_ARCHITECTURE_S390X,
}

// count returns a number as the API has it.
func count(n int) uint32 {
	if n < 0 || n > math.MaxInt32 {
		return 0
	}
	return uint32(n)
}

func message(m *hypervisor.Machine) *inventoryv1.Inventory {
	h := m.Hardware
	inventory := &inventoryv1.Inventory{
		MachineNamespace: m.Ref.Namespace,
		MachineName:      m.Ref.Name,
		MachineUid:       m.UID,
		FirmwareUuid:     m.Firmware.UUID,
		SerialNumber:     m.Firmware.Serial,
		Manufacturer:     h.Manufacturer,
		Product:          h.Product,
		MachineType:      h.MachineType,
		Processors: &inventoryv1.Processors{
			Sockets:        count(h.Sockets),
			CoresPerSocket: count(h.CoresPerSocket),
			ThreadsPerCore: count(h.ThreadsPerCore),
			Model:          h.CPUModel,
			Architecture:   architectures[h.Architecture],
		},
		MemoryBytes:      uint64(max(h.MemoryBytes, 0)),
		HasSerialConsole: h.SerialConsole,
	}
	for _, i := range h.Interfaces {
		inventory.Interfaces = append(inventory.Interfaces, &inventoryv1.NetworkInterface{
			Name: i.Name, MacAddress: i.MAC, Model: i.Model, IpAddresses: i.IPs,
		})
	}
	for _, d := range h.Disks {
		inventory.Disks = append(inventory.Disks, &inventoryv1.Disk{
			Name: d.Name, CapacityBytes: uint64(max(d.CapacityBytes, 0)), Bus: d.Bus, Serial: d.Serial, ReadOnly: d.ReadOnly,
		})
	}
	if os := h.GuestOS; os != nil {
		inventory.GuestOperatingSystem = &inventoryv1.GuestOperatingSystem{
			Name: os.Name, Version: os.Version, KernelRelease: os.KernelRelease, Hostname: os.Hostname,
		}
	}
	return inventory
}
