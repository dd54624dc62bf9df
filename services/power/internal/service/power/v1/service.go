// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package powerv1 serves bmc.power.v1.
package powerv1

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/service/reason"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// Config of the service.
type Config struct {
	Engine   *machine.Engine
	Resolver hypervisor.Resolver
	Audit    *audit.Trail
}

// Service is PowerService.
type Service struct {
	powerv1.UnsafePowerServiceServer
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
	powerv1.RegisterPowerServiceServer(registrar, service)
}

// GetPower implements PowerService.
func (s *Service) GetPower(_ context.Context, request *powerv1.GetPowerRequest) (*powerv1.GetPowerResponse, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, reason.Status(err)
	}
	status, err := s.engine.Status(ref)
	if err != nil {
		return nil, reason.Status(err)
	}
	return &powerv1.GetPowerResponse{Status: message(status)}, nil
}

// TransitionPower implements PowerService.
func (s *Service) TransitionPower(ctx context.Context, request *powerv1.TransitionPowerRequest) (*powerv1.TransitionPowerResponse, error) {
	status, err := s.transition(ctx, request)
	err = reason.Status(err)
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), request.GetAction().String(), request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &powerv1.TransitionPowerResponse{Status: message(status)}, nil
}

func (s *Service) transition(ctx context.Context, request *powerv1.TransitionPowerRequest) (*machine.Status, error) {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return nil, err
	}
	return s.engine.Transition(ctx, ref, actions[request.GetAction()], request.GetWait().AsDuration())
}

// WatchPower implements PowerService.
func (s *Service) WatchPower(request *powerv1.WatchPowerRequest, stream grpc.ServerStreamingServer[powerv1.WatchPowerResponse]) error {
	ref, err := s.resolve(request.GetBmc())
	if err != nil {
		return reason.Status(err)
	}
	changes, cancel := s.engine.Follow(ref)
	defer cancel()
	return reason.Status(follow.Send(stream.Context(), changes, func() (*powerv1.WatchPowerResponse, error) {
		status, err := s.engine.Status(ref)
		if err != nil {
			return nil, err
		}
		return &powerv1.WatchPowerResponse{Status: message(status)}, nil
	}, func(a, b *powerv1.WatchPowerResponse) bool { return proto.Equal(a, b) }, stream.Send))
}

func (s *Service) resolve(bmc *referencev1.BMCReference) (hypervisor.Ref, error) {
	return s.resolver.Resolve(bmc.GetNamespace(), bmc.GetName())
}

var actions = map[powerv1.PowerAction]transition.Action{
	powerv1.PowerAction_POWER_ACTION_ON:                transition.ActionOn,
	powerv1.PowerAction_POWER_ACTION_FORCE_OFF:         transition.ActionForceOff,
	powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN: transition.ActionGracefulShutdown,
	powerv1.PowerAction_POWER_ACTION_GRACEFUL_RESTART:  transition.ActionGracefulRestart,
	powerv1.PowerAction_POWER_ACTION_FORCE_RESTART:     transition.ActionForceRestart,
	powerv1.PowerAction_POWER_ACTION_POWER_CYCLE:       transition.ActionPowerCycle,
	powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON: transition.ActionPushPowerButton,
	powerv1.PowerAction_POWER_ACTION_PAUSE:             transition.ActionPause,
	powerv1.PowerAction_POWER_ACTION_RESUME:            transition.ActionResume,
}

var states = map[transition.State]powerv1.PowerState{
	transition.Absent:    powerv1.PowerState_POWER_STATE_OFF,
	transition.Starting:  powerv1.PowerState_POWER_STATE_POWERING_ON,
	transition.Running:   powerv1.PowerState_POWER_STATE_ON,
	transition.Paused:    powerv1.PowerState_POWER_STATE_PAUSED,
	transition.Stopping:  powerv1.PowerState_POWER_STATE_POWERING_OFF,
	transition.Succeeded: powerv1.PowerState_POWER_STATE_OFF,
	transition.Failed:    powerv1.PowerState_POWER_STATE_OFF,
	transition.Leaving:   powerv1.PowerState_POWER_STATE_OFF,
	transition.Lost:      powerv1.PowerState_POWER_STATE_UNKNOWN,
}

var stopCauses = map[machine.StopCause]powerv1.StopCause{
	machine.StopCauseNone:     powerv1.StopCause_STOP_CAUSE_UNSPECIFIED,
	machine.StopCauseUnknown:  powerv1.StopCause_STOP_CAUSE_UNKNOWN,
	machine.StopCauseAction:   powerv1.StopCause_STOP_CAUSE_ACTION,
	machine.StopCauseExternal: powerv1.StopCause_STOP_CAUSE_EXTERNAL,
	machine.StopCauseFailure:  powerv1.StopCause_STOP_CAUSE_FAILURE,
}

// restorePolicies say what KubeVirt does with a machine whose node comes back.
var restorePolicies = map[hypervisor.RunStrategy]powerv1.RestorePolicy{
	hypervisor.RunStrategyAlways:         powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_ON,
	hypervisor.RunStrategyRerunOnFailure: powerv1.RestorePolicy_RESTORE_POLICY_PREVIOUS,
	hypervisor.RunStrategyManual:         powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF,
	hypervisor.RunStrategyHalted:         powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF,
	hypervisor.RunStrategyOnce:           powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF,
}

var phases = map[record.Phase]powerv1.OperationPhase{
	record.UnderWay:   powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY,
	record.Succeeded:  powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED,
	record.Failed:     powerv1.OperationPhase_OPERATION_PHASE_FAILED,
	record.Superseded: powerv1.OperationPhase_OPERATION_PHASE_SUPERSEDED,
}

// actionEnums is actions the other way round.
var actionEnums = func() map[transition.Action]powerv1.PowerAction {
	enums := make(map[transition.Action]powerv1.PowerAction, len(actions))
	for enum, action := range actions {
		enums[action] = enum
	}
	return enums
}()

func message(status *machine.Status) *powerv1.PowerStatus {
	m := &powerv1.PowerStatus{
		State:              states[status.State],
		InstanceId:         status.InstanceUID,
		LastTransitionTime: timestamp(status.LastTransition),
		LastResetTime:      timestamp(status.LastReset),
		StopCause:          stopCauses[status.StopCause],
		RestorePolicy:      powerv1.RestorePolicy_RESTORE_POLICY_UNKNOWN,
	}
	if status.State.Off() && status.StartQueued {
		m.State = powerv1.PowerState_POWER_STATE_POWERING_ON
	}
	if policy, ok := restorePolicies[status.Strategy]; ok {
		m.RestorePolicy = policy
	}
	if op := status.Operation; op != nil {
		m.Operation = &powerv1.Operation{
			Id:        op.ID,
			Action:    actionEnums[op.Action],
			Phase:     phases[op.Phase],
			StartTime: timestamp(op.Start),
			EndTime:   timestamp(op.End),
			Message:   op.Message,
		}
	}
	return m
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
