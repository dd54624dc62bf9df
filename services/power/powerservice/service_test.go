// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package powerservice_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"kubevirtbmc.dev/pkg/grpcserver/servertest"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/powerservice"
)

// bed is the service over gRPC, on a simulated machine sim-0 behind the BMC
// bmc-0.
type bed struct {
	*testing.T
	simulator *simulator.Simulator
	power     powerv1.PowerServiceClient
	boot      bootv1.BootServiceClient
	console   consolev1.ConsoleServiceClient
	inventory inventoryv1.InventoryServiceClient
}

var (
	bmc     = &referencev1.BMCReference{Namespace: "default", Name: "bmc-0"}
	machine = hypervisor.Ref{Namespace: "default", Name: "sim-0"}
)

func newBed(t *testing.T, spec simulator.Spec) *bed {
	t.Helper()
	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	spec.Ref = machine
	if err := s.AddMachine(spec); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	registry := prometheus.NewRegistry()
	service, err := powerservice.New(powerservice.Config{
		Hypervisor: s,
		Resolver: hypervisor.FixedNames{
			{Namespace: "default", Name: "bmc-0"}: machine,
			{Namespace: "default", Name: "lost"}:  {Namespace: "default", Name: "no-such-machine"},
		},
		Log: log, Metrics: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	connection, _ := servertest.Start(t, service, log, registry)
	return &bed{
		T: t, simulator: s,
		power: powerv1.NewPowerServiceClient(connection), boot: bootv1.NewBootServiceClient(connection),
		console: consolev1.NewConsoleServiceClient(connection), inventory: inventoryv1.NewInventoryServiceClient(connection),
	}
}

func (b *bed) do(action powerv1.PowerAction) *powerv1.PowerStatus {
	b.Helper()
	response, err := b.power.TransitionPower(b.Context(), &powerv1.TransitionPowerRequest{
		Bmc: bmc, Action: action, Wait: durationpb.New(time.Minute),
	})
	if err != nil {
		b.Fatalf("%s: %v", action, err)
	}
	return response.GetStatus()
}

func (b *bed) reason(what string, err error, want errorsv1.Reason) {
	b.Helper()
	if got := grpcstatus.ReasonOf(err); err == nil || got != want {
		b.Errorf("%s: got %s (%v), want %s", what, got, err, want)
	}
}

func TestPower(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	got := b.do(powerv1.PowerAction_POWER_ACTION_ON)
	want := &powerv1.PowerStatus{
		State:         powerv1.PowerState_POWER_STATE_ON,
		RestorePolicy: powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS,
		Operation: &powerv1.Operation{
			Action: powerv1.PowerAction_POWER_ACTION_ON,
			Phase:  powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED,
		},
	}
	changing := []cmp.Option{
		protocmp.Transform(),
		protocmp.IgnoreFields(&powerv1.PowerStatus{}, "instance_id", "last_transition_time", "last_reset_time"),
		protocmp.IgnoreFields(&powerv1.Operation{}, "id", "start_time", "end_time"),
	}
	if diff := cmp.Diff(want, got, changing...); diff != "" {
		t.Errorf("status after on mismatch (-want +got)\n%s", diff)
	}
	if got.GetInstanceId() == "" || got.GetLastResetTime() == nil || got.GetOperation().GetId() == "" || got.GetOperation().GetEndTime() == nil {
		t.Errorf("status has no instance, reset time or operation: %v", got)
	}
	read, err := b.power.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, read.GetStatus(), protocmp.Transform()); diff != "" {
		t.Errorf("status read back mismatch (-want +got)\n%s", diff)
	}
	off := b.do(powerv1.PowerAction_POWER_ACTION_FORCE_OFF)
	if off.GetState() != powerv1.PowerState_POWER_STATE_OFF || off.GetStopCause() != powerv1.StopCause_STOP_CAUSE_ACTION || off.GetInstanceId() != "" {
		t.Errorf("status after off: %v", off)
	}
}

func TestPower_refusals(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	for name, test := range map[string]struct {
		bmc    *referencev1.BMCReference
		action powerv1.PowerAction
		wait   time.Duration
		want   errorsv1.Reason
		code   codes.Code
	}{
		"no such BMC":     {&referencev1.BMCReference{Namespace: "default", Name: "nobody"}, powerv1.PowerAction_POWER_ACTION_ON, 0, errorsv1.Reason_REASON_BMC_NOT_FOUND, codes.NotFound},
		"no such machine": {&referencev1.BMCReference{Namespace: "default", Name: "lost"}, powerv1.PowerAction_POWER_ACTION_ON, 0, errorsv1.Reason_REASON_MACHINE_NOT_FOUND, codes.NotFound},
		"cycle while off": {bmc, powerv1.PowerAction_POWER_ACTION_POWER_CYCLE, 0, errorsv1.Reason_REASON_INVALID_POWER_STATE, codes.FailedPrecondition},
		"no action":       {bmc, powerv1.PowerAction_POWER_ACTION_UNSPECIFIED, 0, errorsv1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument},
		"unknown action":  {bmc, 99, 0, errorsv1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument},
		"no BMC":          {nil, powerv1.PowerAction_POWER_ACTION_ON, 0, errorsv1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument},
		"too long":        {bmc, powerv1.PowerAction_POWER_ACTION_ON, time.Hour, errorsv1.Reason_REASON_INVALID_REQUEST, codes.InvalidArgument},
	} {
		_, err := b.power.TransitionPower(t.Context(), &powerv1.TransitionPowerRequest{Bmc: test.bmc, Action: test.action, Wait: durationpb.New(test.wait)})
		b.reason(name, err, test.want)
		if got := status.Code(err); got != test.code {
			t.Errorf("%s: got code %s, want %s", name, got, test.code)
		}
	}
	m, err := b.simulator.Get(machine)
	if err != nil || m.State != nil || m.Instance != nil {
		t.Errorf("a refused action changed the machine: %+v, %v", m, err)
	}
}

func TestPower_watch(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := b.power.WatchPower(ctx, &powerv1.WatchPowerRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	until := func(want powerv1.PowerState) {
		t.Helper()
		for {
			response, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if response.GetStatus().GetState() == want {
				return
			}
		}
	}
	until(powerv1.PowerState_POWER_STATE_OFF)
	b.do(powerv1.PowerAction_POWER_ACTION_ON)
	until(powerv1.PowerState_POWER_STATE_ON)
	b.do(powerv1.PowerAction_POWER_ACTION_FORCE_OFF)
	until(powerv1.PowerState_POWER_STATE_OFF)
	if err := b.simulator.DeleteMachine(machine); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	b.reason("watch of a machine that was deleted", err, errorsv1.Reason_REASON_MACHINE_NOT_FOUND)
}

func TestBoot(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	flags := []byte{0x80, 0x04, 0, 0, 0}
	response, err := b.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE, BootFlags: flags,
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := &bootv1.BootStatus{
		Override: &bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE,
			Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI, BootFlags: flags,
		},
		Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI,
		AllowedTargets: []bootv1.BootTarget{
			bootv1.BootTarget_BOOT_TARGET_NONE, bootv1.BootTarget_BOOT_TARGET_PXE,
			bootv1.BootTarget_BOOT_TARGET_HDD, bootv1.BootTarget_BOOT_TARGET_CD,
		},
		AllowedModes: []bootv1.FirmwareMode{bootv1.FirmwareMode_FIRMWARE_MODE_UEFI},
		Devices: []*bootv1.BootDevice{
			{Name: "rootdisk", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_DISK, Order: 1},
			{Name: "default", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_INTERFACE, Order: 2},
			{Name: "cdrom", Kind: bootv1.BootDeviceKind_BOOT_DEVICE_KIND_CDROM},
		},
	}
	if response.GetStatus().GetOverrideId() == "" {
		t.Error("the override has no id")
	}
	if diff := cmp.Diff(want, response.GetStatus(), protocmp.Transform(), protocmp.IgnoreFields(&bootv1.BootStatus{}, "override_id")); diff != "" {
		t.Errorf("status mismatch (-want +got)\n%s", diff)
	}
	b.do(powerv1.PowerAction_POWER_ACTION_ON)
	read, err := b.boot.GetBoot(t.Context(), &bootv1.GetBootRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	want.Override = &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE,
		Mode: bootv1.FirmwareMode_FIRMWARE_MODE_UEFI,
	}
	want.InstanceMode = bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
	if diff := cmp.Diff(want, read.GetStatus(), protocmp.Transform()); diff != "" {
		t.Errorf("status after the override was used mismatch (-want +got)\n%s", diff)
	}
}

func TestBoot_refusals(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{Trays: []simulator.TraySpec{}})
	for name, test := range map[string]struct {
		override *bootv1.BootOverride
		want     errorsv1.Reason
	}{
		"no CD drive": {&bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_CD,
		}, errorsv1.Reason_REASON_NO_BOOT_DEVICE},
		"another mode": {&bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE,
			Mode: bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY,
		}, errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED},
		"no target": {&bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE,
		}, errorsv1.Reason_REASON_INVALID_REQUEST},
		"no override": {nil, errorsv1.Reason_REASON_INVALID_REQUEST},
		"boot flags cut short": {&bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE, BootFlags: []byte{0x80},
		}, errorsv1.Reason_REASON_INVALID_REQUEST},
	} {
		_, err := b.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: test.override})
		b.reason(name, err, test.want)
	}
	direct := newBed(t, simulator.Spec{KernelBoot: true})
	_, err := direct.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE,
	}})
	direct.reason("kernel boot", err, errorsv1.Reason_REASON_KERNEL_BOOT)
}

func TestBootOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	status, err := b.boot.GetBoot(t.Context(), &bootv1.GetBootRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range status.GetStatus().GetDevices() {
		names = append(names, d.GetName())
	}
	slices.Reverse(names)
	set, err := b.boot.SetBootOrder(t.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc, Devices: names})
	if err != nil {
		t.Fatal(err)
	}
	for n, d := range set.GetStatus().GetDevices() {
		if d.GetName() != names[n] || d.GetOrder() != uint32(n+1) {
			t.Errorf("device %d is %v, want %s", n, d, names[n])
		}
	}
	_, err = b.boot.SetBootOrder(t.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc, Devices: []string{names[0], names[0]}})
	b.reason("a device twice", err, errorsv1.Reason_REASON_INVALID_REQUEST)
	_, err = b.boot.SetBootOrder(t.Context(), &bootv1.SetBootOrderRequest{Bmc: bmc, Devices: []string{"floppy"}})
	b.reason("a device that is not there", err, errorsv1.Reason_REASON_NO_BOOT_DEVICE)
}

func TestFirmwareMode(t *testing.T) {
	t.Parallel()
	const legacy, uefi = bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY, bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
	b := newBed(t, simulator.Spec{
		Mode: hypervisor.FirmwareBIOS, Modes: []hypervisor.FirmwareMode{hypervisor.FirmwareBIOS, hypervisor.FirmwareUEFI},
	})
	set, err := b.boot.SetFirmwareMode(t.Context(), &bootv1.SetFirmwareModeRequest{Bmc: bmc, Mode: uefi})
	if err != nil {
		t.Fatal(err)
	}
	if got := set.GetStatus(); got.GetMode() != uefi || got.GetOverride().GetMode() != uefi ||
		!slices.Equal(got.GetAllowedModes(), []bootv1.FirmwareMode{legacy, uefi}) {
		t.Errorf("status after the mode was set: %v", got)
	}
	once, err := b.boot.SetBootOverride(t.Context(), &bootv1.SetBootOverrideRequest{Bmc: bmc, Override: &bootv1.BootOverride{
		Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_PXE, Mode: legacy,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := once.GetStatus(); got.GetMode() != uefi || got.GetOverride().GetMode() != legacy {
		t.Errorf("status with an override of another mode: %v", got)
	}
	fixed := newBed(t, simulator.Spec{})
	_, err = fixed.boot.SetFirmwareMode(t.Context(), &bootv1.SetFirmwareModeRequest{Bmc: bmc, Mode: legacy})
	fixed.reason("a mode that the machine can't have", err, errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED)
	_, err = fixed.boot.SetFirmwareMode(t.Context(), &bootv1.SetFirmwareModeRequest{Bmc: bmc})
	fixed.reason("no mode", err, errorsv1.Reason_REASON_INVALID_REQUEST)
}

func TestInventory(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{Interfaces: []simulator.InterfaceSpec{{Name: "one", MAC: "02:00:00:00:00:01"}, {Name: "two"}}})
	response, err := b.inventory.GetInventory(t.Context(), &inventoryv1.GetInventoryRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	got := response.GetInventory()
	want := &inventoryv1.Inventory{
		MachineNamespace: "default", MachineName: "sim-0",
		Manufacturer: "KubeVirt", Product: "Simulated", MachineType: "q35",
		Processors: &inventoryv1.Processors{
			Sockets: 1, CoresPerSocket: 2, ThreadsPerCore: 1, Model: "host-model",
			Architecture: inventoryv1.Architecture_ARCHITECTURE_AMD64,
		},
		MemoryBytes: 4 << 30,
		Interfaces: []*inventoryv1.NetworkInterface{
			{Name: "one", MacAddress: "02:00:00:00:00:01", Model: "virtio"},
			{Name: "two", MacAddress: got.GetInterfaces()[1].GetMacAddress(), Model: "virtio"},
		},
		Disks:            []*inventoryv1.Disk{{Name: "rootdisk", CapacityBytes: 20 << 30, Bus: "virtio"}},
		HasSerialConsole: true,
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(),
		protocmp.IgnoreFields(&inventoryv1.Inventory{}, "machine_uid", "firmware_uuid", "serial_number"),
		protocmp.IgnoreFields(&inventoryv1.Disk{}, "serial"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("inventory mismatch (-want +got)\n%s", diff)
	}
	if err := b.simulator.SetAgent(machine, true); err != nil {
		t.Fatal(err)
	}
	stream, err := b.inventory.WatchInventory(t.Context(), &inventoryv1.WatchInventoryRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	b.do(powerv1.PowerAction_POWER_ACTION_ON)
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if os := response.GetInventory().GetGuestOperatingSystem(); os != nil {
			if os.GetName() != "Simulated GNU/Linux" || os.GetHostname() != "" {
				t.Errorf("guest says %v", os)
			}
			return
		}
	}
}

// viewer is a console client.
type viewer struct {
	*bed
	stream grpc.BidiStreamingClient[consolev1.ConnectRequest, consolev1.ConnectResponse]
	output strings.Builder
}

func (b *bed) view(ctx context.Context, readOnly bool) *viewer {
	b.Helper()
	stream, err := b.console.Connect(ctx)
	if err != nil {
		b.Fatal(err)
	}
	v := &viewer{bed: b, stream: stream}
	v.send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc, ReadOnly: readOnly}}})
	return v
}

func (v *viewer) send(request *consolev1.ConnectRequest) {
	v.Helper()
	if err := v.stream.Send(request); err != nil {
		v.Fatal(err)
	}
}

func (v *viewer) typed(text string) {
	v.Helper()
	v.send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte(text)}})
}

func (v *viewer) state(want consolev1.ConsoleState) {
	v.Helper()
	for {
		response, err := v.stream.Recv()
		if err != nil {
			v.Fatal(err)
		}
		v.output.Write(response.GetOutput())
		if response.GetState() == want {
			return
		}
	}
}

func (v *viewer) until(text string) {
	v.Helper()
	for !strings.Contains(v.output.String(), text) {
		response, err := v.stream.Recv()
		if err != nil {
			v.Fatalf("waiting for %q: %v, after %q", text, err, v.output.String())
		}
		v.output.Write(response.GetOutput())
	}
	v.output.Reset()
}

func (v *viewer) fails() error {
	for {
		if _, err := v.stream.Recv(); err != nil {
			return err
		}
	}
}

const (
	connected    = consolev1.ConsoleState_CONSOLE_STATE_CONNECTED
	disconnected = consolev1.ConsoleState_CONSOLE_STATE_DISCONNECTED
)

func TestConsole(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	one, two := b.view(t.Context(), false), b.view(t.Context(), true)
	one.state(disconnected)
	two.state(disconnected)
	one.typed("lost")
	b.do(powerv1.PowerAction_POWER_ACTION_ON)
	for range 2 {
		for _, v := range []*viewer{one, two} {
			v.state(connected)
			v.until("login: ")
		}
		one.typed("from one")
		one.until("from one")
		two.until("from one")
		b.do(powerv1.PowerAction_POWER_ACTION_POWER_CYCLE)
		one.state(disconnected)
		two.state(disconnected)
	}
	two.typed("not allowed")
	two.reason("input of a read-only client", two.fails(), errorsv1.Reason_REASON_INVALID_REQUEST)
	one.send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Break{Break: &consolev1.Break{}}})
	one.reason("break", one.fails(), errorsv1.Reason_REASON_UNSUPPORTED)

	three := b.view(t.Context(), false)
	if err := three.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := three.fails(); !errors.Is(err, io.EOF) {
		t.Errorf("a client that is done got %v, want EOF", err)
	}
	four := b.view(t.Context(), false)
	four.state(connected)
	if err := b.simulator.DeleteMachine(machine); err != nil {
		t.Fatal(err)
	}
	four.reason("machine was deleted", four.fails(), errorsv1.Reason_REASON_MACHINE_NOT_FOUND)
}

// TestConsole_yields: who takes the console by other means keeps it, until one
// of ours types.
func TestConsole_yields(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	b.do(powerv1.PowerAction_POWER_ACTION_ON)
	v := b.view(t.Context(), false)
	v.state(connected)
	other, err := b.simulator.OpenConsole(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, other)
	}()
	v.state(disconnected)
	select {
	case <-ended:
		t.Fatal("the console was taken back at once")
	case <-time.After(300 * time.Millisecond):
	}
	v.typed("x")
	v.state(connected)
	<-ended
	v.typed("mine again")
	v.until("mine again")
}

func TestConsole_refusals(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{NoSerialConsole: true})
	b.reason("no console", b.view(t.Context(), false).fails(), errorsv1.Reason_REASON_NO_CONSOLE)
	stream, err := b.console.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v := &viewer{bed: b, stream: stream}
	v.typed("before open")
	b.reason("input before open", v.fails(), errorsv1.Reason_REASON_INVALID_REQUEST)
}
