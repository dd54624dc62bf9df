// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakebackend is a machine in memory behind the gRPC services that the
// frontend calls, for its tests.
package fakebackend

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// Backend is the services of one machine; any BMC name is that machine.
type Backend struct {
	powerv1.UnimplementedPowerServiceServer
	bootv1.UnimplementedBootServiceServer
	inventoryv1.UnimplementedInventoryServiceServer
	statev1.UnimplementedStateServiceServer

	mu        sync.Mutex
	power     *powerv1.PowerStatus
	boot      *bootv1.BootStatus
	inventory *inventoryv1.Inventory
	events    []*statev1.Event
	accounts  accounts
	err       error
	bootErr   error
	actions   []powerv1.PowerAction
	overrides []*bootv1.BootOverride
	requests  []string
	callers   []callctx.Caller
	result    *powerv1.Operation
	overrideN int
	hold      *Hold
}

// Hold keeps power actions waiting.
type Hold struct {
	// Entered gets a value for each action that waits.
	Entered chan struct{}
	// Release is closed to let them go on.
	Release chan struct{}
}

// HoldTransitions makes power actions wait.
func (b *Backend) HoldTransitions() *Hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = &Hold{Entered: make(chan struct{}, 16), Release: make(chan struct{})}
	return b.hold
}

// New returns a running UEFI machine with two NICs, a disk and a CD drive.
func New() *Backend {
	return &Backend{
		power: &powerv1.PowerStatus{
			State: powerv1.PowerState_POWER_STATE_ON, InstanceId: "instance-1",
			RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS,
			LastResetTime: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		},
		boot: &bootv1.BootStatus{
			Override: &bootv1.BootOverride{
				Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE,
			},
			Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI,
			AllowedTargets: []bootv1.BootTarget{
				bootv1.BootTarget_BOOT_TARGET_NONE, bootv1.BootTarget_BOOT_TARGET_PXE,
				bootv1.BootTarget_BOOT_TARGET_HDD, bootv1.BootTarget_BOOT_TARGET_CD,
			},
			AllowedModes: []bootv1.FirmwareMode{bootv1.FirmwareMode_FIRMWARE_MODE_UEFI},
			Devices: []*bootv1.BootDevice{
				{Name: "root", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_DISK, Order: 1},
				{Name: "default", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_INTERFACE, Order: 2},
				{Name: "cdrom", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_CDROM},
			},
			InstanceMode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI, SecureBoot: true,
		},
		inventory: &inventoryv1.Inventory{
			MachineNamespace: "lab", MachineName: "vm-1", MachineUid: "0c6f2d2e-3f43-4a1c-9b46-0a6f3f0f3f11",
			FirmwareUuid: "5d307ca9-b3ef-428c-8861-06e72d69f223", SerialNumber: "SN-1", Manufacturer: "KubeVirt", Product: "None",
			MachineType: "q35",
			Processors: &inventoryv1.Processors{
				Sockets: 2, CoresPerSocket: 2, ThreadsPerCore: 1, Model: "host-model", Architecture: inventoryv1.Architecture_ARCHITECTURE_AMD64,
			},
			MemoryBytes: 4 << 30,
			Interfaces: []*inventoryv1.NetworkInterface{
				{Name: "default", MacAddress: "02:00:00:00:00:01", Model: "virtio", IpAddresses: []string{"10.0.0.7", "fd00::7"}},
				{Name: "storage", MacAddress: "02:00:00:00:00:02"},
			},
			Disks: []*inventoryv1.Disk{
				{Name: "root", CapacityBytes: 20 << 30, Bus: "virtio", Serial: "D1"},
				{Name: "data", CapacityBytes: 8 << 30, Bus: "sata"},
			},
			GuestOperatingSystem: &inventoryv1.GuestOperatingSystem{Name: "Debian GNU/Linux", Hostname: "vm-1.example"},
			HasSerialConsole:     true,
		},
		events: []*statev1.Event{
			{
				Id: "on-1", Sequence: 7, Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), Message: "The machine was powered on.",
				Severity: statev1.EventSeverity_EVENT_SEVERITY_OK, Kind: statev1.EventKind_EVENT_KIND_POWER, Actor: "admin from 192.0.2.1 over ipmi",
			},
			{
				Id: "login-1", Sequence: 8, Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)), Message: "Logins failed.",
				Severity: statev1.EventSeverity_EVENT_SEVERITY_WARNING, Kind: statev1.EventKind_EVENT_KIND_LOGIN,
			},
		},
	}
}

// Serve serves the backend in this process until the test ends and returns a
// connection to it, made as the frontend makes its own.
func (b *Backend) Serve(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return serve(t, func(s *grpc.Server) { b.Register(s) })
}

// Register adds the services to a server.
func (b *Backend) Register(s *grpc.Server) {
	powerv1.RegisterPowerServiceServer(s, b)
	bootv1.RegisterBootServiceServer(s, b)
	inventoryv1.RegisterInventoryServiceServer(s, b)
	statev1.RegisterStateServiceServer(s, b)
}

// Update changes the machine.
func (b *Backend) Update(change func(power *powerv1.PowerStatus, boot *bootv1.BootStatus, inventory *inventoryv1.Inventory)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b.power, b.boot, b.inventory)
}

// Fail makes every call fail with an error; nil: no more.
func (b *Backend) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// FailOverrides makes boot overrides fail with an error.
func (b *Backend) FailOverrides(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bootErr = err
}

// EndOperations makes power actions end as an operation says.
func (b *Backend) EndOperations(operation *powerv1.Operation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result = operation
}

// Actions returns the power actions that were asked for.
func (b *Backend) Actions() []powerv1.PowerAction {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.actions)
}

// Overrides returns the boot overrides that were set.
func (b *Backend) Overrides() []*bootv1.BootOverride {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.overrides)
}

// LastCall returns the request id and the caller of the latest call.
func (b *Backend) LastCall() (string, callctx.Caller) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		return "", callctx.Caller{}
	}
	return b.requests[len(b.requests)-1], b.callers[len(b.callers)-1]
}

// enter notes a call; b.mu is held from then on until leave is called.
func (b *Backend) enter(ctx context.Context) (leave func(), err error) {
	ctx = callctx.Incoming(ctx)
	b.mu.Lock()
	const most = 64
	if len(b.requests) == most {
		b.requests, b.callers = b.requests[1:], b.callers[1:]
	}
	b.requests, b.callers = append(b.requests, callctx.RequestID(ctx)), append(b.callers, callctx.CallerOf(ctx))
	return b.mu.Unlock, b.err
}

// GetPower returns the power status.
func (b *Backend) GetPower(ctx context.Context, _ *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	return &powerv1.GetPowerResponse{Status: proto.CloneOf(b.power)}, nil
}

// TransitionPower carries out an action at once.
func (b *Backend) TransitionPower(ctx context.Context, r *powerv1.TransitionPowerRequest) (*powerv1.TransitionPowerResponse, error) {
	b.mu.Lock()
	hold := b.hold
	b.mu.Unlock()
	if hold != nil {
		hold.Entered <- struct{}{}
		<-hold.Release
	}
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	b.actions = append(b.actions, r.GetAction())
	isOff := b.power.GetState() == powerv1.PowerState_POWER_STATE_OFF
	start := func() {
		b.power.State = powerv1.PowerState_POWER_STATE_ON
		b.power.InstanceId = "instance-" + strconv.Itoa(len(b.actions)+1)
		b.boot.InstanceMode = b.boot.GetMode()
		if b.boot.GetOverride().GetPersistence() == bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE {
			b.boot.Override = &bootv1.BootOverride{
				Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE,
			}
			b.boot.OverrideId = ""
		}
	}
	stop := func() {
		b.power.State, b.power.InstanceId = powerv1.PowerState_POWER_STATE_OFF, ""
		b.boot.InstanceMode = bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	}
	switch r.GetAction() {
	case powerv1.PowerAction_POWER_ACTION_ON, powerv1.PowerAction_POWER_ACTION_RESUME:
		if isOff && r.GetAction() == powerv1.PowerAction_POWER_ACTION_RESUME {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_POWER_STATE, "the machine is off")
		}
		if isOff {
			start()
		}
		b.power.State = powerv1.PowerState_POWER_STATE_ON
	case powerv1.PowerAction_POWER_ACTION_FORCE_OFF, powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN:
		stop()
	case powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON:
		if isOff {
			start()
		} else {
			stop()
		}
	case powerv1.PowerAction_POWER_ACTION_UNSPECIFIED:
		return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "no action")
	default:
		if isOff {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_POWER_STATE, "the machine is off")
		}
		if r.GetAction() == powerv1.PowerAction_POWER_ACTION_PAUSE {
			b.power.State = powerv1.PowerState_POWER_STATE_PAUSED
		} else {
			start()
		}
	}
	status := proto.CloneOf(b.power)
	status.Operation = &powerv1.Operation{
		Id: strconv.Itoa(len(b.actions)), Action: r.GetAction(), Phase: powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED,
	}
	if b.result != nil {
		status.Operation = proto.CloneOf(b.result)
	}
	return &powerv1.TransitionPowerResponse{Status: status}, nil
}

// GetBoot returns the boot status.
func (b *Backend) GetBoot(ctx context.Context, _ *bootv1.GetBootRequest) (*bootv1.GetBootResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	return &bootv1.GetBootResponse{Status: proto.CloneOf(b.boot)}, nil
}

// SetFirmwareMode sets the mode.
func (b *Backend) SetFirmwareMode(ctx context.Context, r *bootv1.SetFirmwareModeRequest) (*bootv1.SetFirmwareModeResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	b.boot.Mode = r.GetMode()
	if b.boot.GetOverride().GetMode() != bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED {
		b.boot.Override.Mode = r.GetMode()
	}
	return &bootv1.SetFirmwareModeResponse{Status: proto.CloneOf(b.boot)}, nil
}

// SetBootOrder gives the devices their places.
func (b *Backend) SetBootOrder(ctx context.Context, r *bootv1.SetBootOrderRequest) (*bootv1.SetBootOrderResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	for _, d := range b.boot.GetDevices() {
		d.Order = 0
		for n, name := range r.GetDevices() {
			if name == d.GetName() {
				d.Order = uint32(n) + 1
			}
		}
	}
	slices.SortStableFunc(b.boot.Devices, func(x, y *bootv1.BootDevice) int {
		return cmp.Compare(x.GetOrder()-1, y.GetOrder()-1) // None, 0, is last.
	})
	return &bootv1.SetBootOrderResponse{Status: proto.CloneOf(b.boot)}, nil
}

// SetBootOverride sets the override.
func (b *Backend) SetBootOverride(ctx context.Context, r *bootv1.SetBootOverrideRequest) (*bootv1.SetBootOverrideResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err = errors.Join(err, b.bootErr); err != nil {
		return nil, err
	}
	b.overrideN++
	b.boot.Override, b.boot.OverrideId = proto.CloneOf(r.GetOverride()), strconv.Itoa(b.overrideN)
	b.overrides = append(b.overrides, proto.CloneOf(r.GetOverride()))
	const unset = bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED
	if o := b.boot.GetOverride(); o.GetPersistence() == bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED && o.GetMode() != unset {
		b.boot.Mode, o.Mode = o.GetMode(), unset
	}
	return &bootv1.SetBootOverrideResponse{Status: proto.CloneOf(b.boot)}, nil
}

// ListEvents implements StateService.
func (b *Backend) ListEvents(ctx context.Context, _ *statev1.ListEventsRequest) (*statev1.ListEventsResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	return &statev1.ListEventsResponse{Events: b.events, Capacity: 128}, nil
}

// ClearEvents implements StateService.
func (b *Backend) ClearEvents(ctx context.Context, _ *statev1.ClearEventsRequest) (*statev1.ClearEventsResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	b.events = nil
	return &statev1.ClearEventsResponse{}, nil
}

// GetInventory returns the inventory.
func (b *Backend) GetInventory(ctx context.Context, _ *inventoryv1.GetInventoryRequest) (*inventoryv1.GetInventoryResponse, error) {
	leave, err := b.enter(ctx)
	defer leave()
	if err != nil {
		return nil, err
	}
	return &inventoryv1.GetInventoryResponse{Inventory: proto.CloneOf(b.inventory)}, nil
}
