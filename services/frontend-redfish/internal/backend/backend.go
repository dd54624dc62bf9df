// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package backend calls the gRPC services that carry out what Redfish clients
// ask for.
package backend

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

const (
	// readTimeout bounds reads, which backends answer from a cache.
	readTimeout = 10 * time.Second
	// writeTimeout bounds changes, and what a transition may take beyond its
	// wait.
	writeTimeout = 20 * time.Second
)

// Client calls the services.
type Client struct {
	power     powerv1.PowerServiceClient
	boot      bootv1.BootServiceClient
	inventory inventoryv1.InventoryServiceClient
	state     statev1.StateServiceClient
}

// New returns a client of the services at the ends of connections.
func New(power, boot, inventory, state grpc.ClientConnInterface) *Client {
	return &Client{
		power:     powerv1.NewPowerServiceClient(power),
		boot:      bootv1.NewBootServiceClient(boot),
		inventory: inventoryv1.NewInventoryServiceClient(inventory),
		state:     statev1.NewStateServiceClient(state),
	}
}

// Machine is what the services know of one machine. Parts that were not asked
// for are nil.
type Machine struct {
	Power     *powerv1.PowerStatus
	Boot      *bootv1.BootStatus
	Inventory *inventoryv1.Inventory
}

// Part is a part of a Machine; a bit set.
type Part uint8

// Parts.
const (
	Power Part = 1 << iota
	Boot
	Inventory
)

// Machine reads parts of a machine, all at a time.
func (c *Client) Machine(ctx context.Context, bmc *referencev1.BMCReference, parts Part) (Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var (
		m     Machine
		group sync.WaitGroup
		once  sync.Once
		first error
	)
	read := func(part Part, call func() error) {
		if parts&part == 0 {
			return
		}
		group.Go(func() {
			if err := call(); err != nil {
				once.Do(func() { first = err; cancel() })
			}
		})
	}
	read(Power, func() error {
		response, err := c.power.GetPower(ctx, &powerv1.GetPowerRequest{Bmc: bmc})
		m.Power = response.GetStatus()
		return err
	})
	read(Boot, func() error {
		response, err := c.boot.GetBoot(ctx, &bootv1.GetBootRequest{Bmc: bmc})
		m.Boot = response.GetStatus()
		return err
	})
	read(Inventory, func() error {
		response, err := c.inventory.GetInventory(ctx, &inventoryv1.GetInventoryRequest{Bmc: bmc})
		m.Inventory = response.GetInventory()
		return err
	})
	group.Wait()
	return m, first
}

// Transition asks for a power action and waits for its goal, at most for the
// time given.
func (c *Client) Transition(ctx context.Context, bmc *referencev1.BMCReference, action powerv1.PowerAction, wait time.Duration) (*powerv1.PowerStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+writeTimeout)
	defer cancel()
	response, err := c.power.TransitionPower(ctx, &powerv1.TransitionPowerRequest{
		Bmc: bmc, Action: action, Wait: durationpb.New(wait),
	})
	return response.GetStatus(), err
}

// SetFirmwareMode changes the machine's own firmware mode.
func (c *Client) SetFirmwareMode(ctx context.Context, bmc *referencev1.BMCReference, mode bootv1.FirmwareMode) (*bootv1.BootStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := c.boot.SetFirmwareMode(ctx, &bootv1.SetFirmwareModeRequest{Bmc: bmc, Mode: mode})
	return response.GetStatus(), err
}

// SetBootOrder replaces the machine's own boot order.
func (c *Client) SetBootOrder(ctx context.Context, bmc *referencev1.BMCReference, devices []string) (*bootv1.BootStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := c.boot.SetBootOrder(ctx, &bootv1.SetBootOrderRequest{Bmc: bmc, Devices: devices})
	return response.GetStatus(), err
}

// SetBootOverride replaces the boot override.
func (c *Client) SetBootOverride(ctx context.Context, bmc *referencev1.BMCReference, override *bootv1.BootOverride) (*bootv1.BootStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := c.boot.SetBootOverride(ctx, &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: override})
	return response.GetStatus(), err
}

// Events reads a BMC's event log.
func (c *Client) Events(ctx context.Context, bmc *referencev1.BMCReference) (*statev1.ListEventsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return c.state.ListEvents(ctx, &statev1.ListEventsRequest{Bmc: bmc})
}

// ClearEvents empties a BMC's event log.
func (c *Client) ClearEvents(ctx context.Context, bmc *referencev1.BMCReference) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := c.state.ClearEvents(ctx, &statev1.ClearEventsRequest{Bmc: bmc})
	return err
}

// Accounts reads the accounts that were created on a BMC.
func (c *Client) Accounts(ctx context.Context, bmc *referencev1.BMCReference) ([]*statev1.StoredAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	response, err := c.state.ListAccounts(ctx, &statev1.ListAccountsRequest{Bmc: bmc})
	return response.GetAccounts(), err
}

// CreateAccount adds an account to a BMC.
func (c *Client) CreateAccount(ctx context.Context, request *statev1.CreateAccountRequest) (*statev1.StoredAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := c.state.CreateAccount(ctx, request)
	return response.GetAccount(), err
}

// UpdateAccount changes an account of a BMC.
func (c *Client) UpdateAccount(ctx context.Context, request *statev1.UpdateAccountRequest) (*statev1.StoredAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	response, err := c.state.UpdateAccount(ctx, request)
	return response.GetAccount(), err
}

// DeleteAccount removes an account of a BMC.
func (c *Client) DeleteAccount(ctx context.Context, bmc *referencev1.BMCReference, username string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := c.state.DeleteAccount(ctx, &statev1.DeleteAccountRequest{Bmc: bmc, Username: username})
	return err
}
