// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakeservice has the gRPC services that the frontend needs, in memory:
// for tests.
package fakeservice

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcclient"
	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// Services are all of them. Machines exist as soon as they are named. Use Start.
type Services struct {
	powerv1.UnimplementedPowerServiceServer
	bootv1.UnimplementedBootServiceServer
	consolev1.UnimplementedConsoleServiceServer
	inventoryv1.UnimplementedInventoryServiceServer
	registryv1.UnimplementedRegistryServiceServer
	statev1.UnimplementedStateServiceServer

	// Conn is a connection to them, as frontends make it.
	Conn *grpc.ClientConn

	mu       sync.Mutex
	machines map[string]*Machine
	serials  map[string]*Serial
	bmcs     []*registryv1.BMC
	changes  map[chan *registryv1.SubscribeResponse]struct{}
	revision uint64
	acks     []*registryv1.Acknowledgement
	calls    []Call
	delay    time.Duration
	fail     error
}

// Machine is the state of one machine.
type Machine struct {
	Power powerv1.PowerStatus
	Boot  bootv1.BootStatus
	UUID  string
	// Events is the event log, Appended how many entries it has ever had.
	Events   []*statev1.Event
	Appended uint64
	// Inventory but for the UUID.
	Inventory inventoryv1.Inventory
}

// Call that came.
type Call struct {
	// What was asked for: the power action's name or "set boot override".
	What    string
	BMC     string
	Request string
	Caller  callctx.Caller
}

// Start serves them in the process until the test ends.
func Start(tb testing.TB) *Services {
	tb.Helper()
	s := &Services{machines: map[string]*Machine{}, serials: map[string]*Serial{}, changes: map[chan *registryv1.SubscribeResponse]struct{}{}}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	powerv1.RegisterPowerServiceServer(server, s)
	bootv1.RegisterBootServiceServer(server, s)
	consolev1.RegisterConsoleServiceServer(server, s)
	inventoryv1.RegisterInventoryServiceServer(server, s)
	registryv1.RegisterRegistryServiceServer(server, s)
	statev1.RegisterStateServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	conn, err := grpcclient.Dial("passthrough:///fake", grpcclient.Config{Options: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}})
	if err != nil {
		tb.Fatal(err)
	}
	s.Conn = conn
	tb.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-done
	})
	return s
}

// SetDelay makes every call on a machine take that long.
func (s *Services) SetDelay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// SetError makes every call on a machine fail; nil: no longer.
func (s *Services) SetError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// Change changes or looks at a machine.
func (s *Services) Change(bmc *referencev1.BMCReference, change func(m *Machine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.machine(bmc))
}

// Calls returns the changing calls that came.
func (s *Services) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// Acknowledgements returns what frontends acknowledged.
func (s *Services) Acknowledgements() []*registryv1.Acknowledgement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*registryv1.Acknowledgement(nil), s.acks...)
}

func keyOf(r *referencev1.BMCReference) string { return r.GetNamespace() + "/" + r.GetName() }

func (s *Services) machine(bmc *referencev1.BMCReference) *Machine {
	m := s.machines[keyOf(bmc)]
	if m == nil {
		m = &Machine{}
		m.Power.State = powerv1.PowerState_POWER_STATE_OFF
		m.Power.RestorePolicy = powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS
		m.Boot.Mode = bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
		m.Boot.Override = &bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED, Target: bootv1.BootTarget_BOOT_TARGET_NONE,
		}
		s.machines[keyOf(bmc)] = m
	}
	return m
}

// begin waits and fails as the test wants.
func (s *Services) begin(ctx context.Context) error {
	s.mu.Lock()
	delay, err := s.delay, s.fail
	s.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (s *Services) record(ctx context.Context, bmc *referencev1.BMCReference, what string) {
	in := callctx.Incoming(ctx)
	s.calls = append(s.calls, Call{What: what, BMC: keyOf(bmc), Request: callctx.RequestID(in), Caller: callctx.CallerOf(in)})
}

// GetPower implements PowerService.
func (s *Services) GetPower(ctx context.Context, r *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &powerv1.GetPowerResponse{Status: proto.CloneOf(&s.machine(r.GetBmc()).Power)}, nil
}

// TransitionPower implements PowerService.
func (s *Services) TransitionPower(ctx context.Context, r *powerv1.TransitionPowerRequest) (*powerv1.TransitionPowerResponse, error) {
	s.mu.Lock()
	s.record(ctx, r.GetBmc(), r.GetAction().String())
	s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	on := m.Power.GetState() != powerv1.PowerState_POWER_STATE_OFF
	switch r.GetAction() {
	case powerv1.PowerAction_POWER_ACTION_ON:
		m.Power.State = powerv1.PowerState_POWER_STATE_ON
	case powerv1.PowerAction_POWER_ACTION_FORCE_OFF, powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN:
		m.Power.State = powerv1.PowerState_POWER_STATE_OFF
	default:
		if !on {
			return nil, grpcstatus.New(errorsv1.Reason_REASON_INVALID_POWER_STATE, "machine is off")
		}
	}
	m.Power.Operation = &powerv1.Operation{Id: fmt.Sprint("operation-", len(s.calls)), Action: r.GetAction(), Phase: powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED}
	return &powerv1.TransitionPowerResponse{Status: proto.CloneOf(&m.Power)}, nil
}

// GetBoot implements BootService.
func (s *Services) GetBoot(ctx context.Context, r *bootv1.GetBootRequest) (*bootv1.GetBootResponse, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &bootv1.GetBootResponse{Status: proto.CloneOf(&s.machine(r.GetBmc()).Boot)}, nil
}

// SetBootOverride implements BootService.
func (s *Services) SetBootOverride(ctx context.Context, r *bootv1.SetBootOverrideRequest) (*bootv1.SetBootOverrideResponse, error) {
	s.mu.Lock()
	s.record(ctx, r.GetBmc(), "set boot override")
	s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	m.Boot.Override = proto.CloneOf(r.GetOverride())
	return &bootv1.SetBootOverrideResponse{Status: proto.CloneOf(&m.Boot)}, nil
}

// GetInventory implements InventoryService.
func (s *Services) GetInventory(_ context.Context, r *inventoryv1.GetInventoryRequest) (*inventoryv1.GetInventoryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	inventory := proto.CloneOf(&m.Inventory)
	inventory.FirmwareUuid = m.UUID
	return &inventoryv1.GetInventoryResponse{Inventory: inventory}, nil
}

func revisionOf(m *Machine) string { return fmt.Sprint(len(m.Events), "-", m.Appended) }

// ListEvents implements StateService.
func (s *Services) ListEvents(_ context.Context, r *statev1.ListEventsRequest) (*statev1.ListEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	return &statev1.ListEventsResponse{Events: append([]*statev1.Event(nil), m.Events...), Revision: revisionOf(m), Capacity: 500}, nil
}

// AppendEvents implements StateService.
func (s *Services) AppendEvents(_ context.Context, r *statev1.AppendEventsRequest) (*statev1.AppendEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	for _, e := range r.GetEvents() {
		m.Appended++
		e = proto.CloneOf(e)
		e.Sequence = m.Appended
		m.Events = append(m.Events, e)
	}
	return &statev1.AppendEventsResponse{Revision: revisionOf(m)}, nil
}

// ClearEvents implements StateService.
func (s *Services) ClearEvents(_ context.Context, r *statev1.ClearEventsRequest) (*statev1.ClearEventsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(r.GetBmc())
	if r.GetRevision() != revisionOf(m) {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_STALE_REVISION, "the log has changed")
	}
	m.Events = nil
	return &statev1.ClearEventsResponse{Revision: revisionOf(m)}, nil
}

// Upsert has a BMC served.
func (s *Services) Upsert(bmc *registryv1.BMC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(bmc.GetBmc())
	s.bmcs = append(s.bmcs, bmc)
	s.publish(&registryv1.SubscribeResponse{Payload: &registryv1.SubscribeResponse_Upsert{Upsert: bmc}})
}

// Remove has a BMC no longer served.
func (s *Services) Remove(bmc *referencev1.BMCReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(bmc)
	s.publish(&registryv1.SubscribeResponse{Payload: &registryv1.SubscribeResponse_Removal{Removal: bmc}})
}

func (s *Services) drop(bmc *referencev1.BMCReference) {
	for i, b := range s.bmcs {
		if keyOf(b.GetBmc()) == keyOf(bmc) {
			s.bmcs = append(s.bmcs[:i], s.bmcs[i+1:]...)
			return
		}
	}
}

func (s *Services) publish(r *registryv1.SubscribeResponse) {
	s.revision++
	r.Revision = s.revision
	for c := range s.changes {
		c <- r
	}
}

// Subscribe implements RegistryService.
func (s *Services) Subscribe(stream grpc.BidiStreamingServer[registryv1.SubscribeRequest, registryv1.SubscribeResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	changes := make(chan *registryv1.SubscribeResponse, 1<<14)
	s.mu.Lock()
	for _, b := range s.bmcs {
		changes <- &registryv1.SubscribeResponse{Revision: s.revision, Payload: &registryv1.SubscribeResponse_Upsert{Upsert: b}}
	}
	changes <- &registryv1.SubscribeResponse{Revision: s.revision, Payload: &registryv1.SubscribeResponse_Synced{Synced: &registryv1.Synced{Full: true}}}
	s.changes[changes] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.changes, changes)
	}()
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.acks = append(s.acks, r.GetAcknowledgement())
			s.mu.Unlock()
		}
	}()
	for {
		select {
		case r := <-changes:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}
