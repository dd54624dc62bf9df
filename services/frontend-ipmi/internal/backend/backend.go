// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package backend is the frontend's view of the services behind it: narrow
// interfaces, their gRPC adapters, and the one table from a service's reason to
// an IPMI completion code.
package backend

import (
	"context"

	"google.golang.org/grpc"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Power reads and changes the power state of machines.
type Power interface {
	// Status returns a machine's power status.
	Status(ctx context.Context, bmc *referencev1.BMCReference) (*powerv1.PowerStatus, error)
	// Transition returns as soon as the action is accepted, and the id of its
	// operation. It is idempotent.
	Transition(ctx context.Context, bmc *referencev1.BMCReference, action powerv1.PowerAction) (operation string, err error)
}

// Boot reads and changes the boot override of machines.
type Boot interface {
	// Status returns a machine's boot status.
	Status(ctx context.Context, bmc *referencev1.BMCReference) (*bootv1.BootStatus, error)
	// SetOverride replaces the override.
	SetOverride(ctx context.Context, bmc *referencev1.BMCReference, override *bootv1.BootOverride) error
}

// Inventory knows what machines are made of.
type Inventory interface {
	// FirmwareUUID returns the SMBIOS UUID of a machine; empty when it has none.
	FirmwareUUID(ctx context.Context, bmc *referencev1.BMCReference) (string, error)
	// Get returns the inventory of a machine.
	Get(ctx context.Context, bmc *referencev1.BMCReference) (*inventoryv1.Inventory, error)
}

// NewPower returns the Power of a connection to a PowerService.
func NewPower(conn grpc.ClientConnInterface) Power {
	return powerClient{powerv1.NewPowerServiceClient(conn)}
}

type powerClient struct{ client powerv1.PowerServiceClient }

func (c powerClient) Status(ctx context.Context, bmc *referencev1.BMCReference) (*powerv1.PowerStatus, error) {
	response, err := c.client.GetPower(ctx, &powerv1.GetPowerRequest{Bmc: bmc})
	return response.GetStatus(), err
}

func (c powerClient) Transition(ctx context.Context, bmc *referencev1.BMCReference, action powerv1.PowerAction) (string, error) {
	response, err := c.client.TransitionPower(ctx, &powerv1.TransitionPowerRequest{Bmc: bmc, Action: action})
	return response.GetStatus().GetOperation().GetId(), err
}

// NewBoot returns the Boot of a connection to a BootService.
func NewBoot(conn grpc.ClientConnInterface) Boot {
	return bootClient{bootv1.NewBootServiceClient(conn)}
}

type bootClient struct{ client bootv1.BootServiceClient }

func (c bootClient) Status(ctx context.Context, bmc *referencev1.BMCReference) (*bootv1.BootStatus, error) {
	response, err := c.client.GetBoot(ctx, &bootv1.GetBootRequest{Bmc: bmc})
	return response.GetStatus(), err
}

func (c bootClient) SetOverride(ctx context.Context, bmc *referencev1.BMCReference, override *bootv1.BootOverride) error {
	_, err := c.client.SetBootOverride(ctx, &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: override})
	return err
}

// NewInventory returns the Inventory of a connection to an InventoryService.
func NewInventory(conn grpc.ClientConnInterface) Inventory {
	return inventoryClient{inventoryv1.NewInventoryServiceClient(conn)}
}

type inventoryClient struct {
	client inventoryv1.InventoryServiceClient
}

func (c inventoryClient) FirmwareUUID(ctx context.Context, bmc *referencev1.BMCReference) (string, error) {
	inventory, err := c.Get(ctx, bmc)
	return inventory.GetFirmwareUuid(), err
}

func (c inventoryClient) Get(ctx context.Context, bmc *referencev1.BMCReference) (*inventoryv1.Inventory, error) {
	response, err := c.client.GetInventory(ctx, &inventoryv1.GetInventoryRequest{Bmc: bmc})
	return response.GetInventory(), err
}
