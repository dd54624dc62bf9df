// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package statev1 serves bmc.state.v1.
package statev1

import (
	"context"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/controller/internal/record"
	"kubevirtbmc.dev/services/controller/internal/registry"
	"kubevirtbmc.dev/services/controller/internal/state"
)

// Service is StateService.
type Service struct {
	statev1.UnsafeStateServiceServer
	store *state.Store
	audit *audit.Trail
}

// New makes the service of a store, which records what it changes.
func New(store *state.Store, trail *audit.Trail) *Service {
	return &Service{store: store, audit: trail}
}

// Register adds the service to a server.
func Register(registrar grpc.ServiceRegistrar, service *Service) {
	statev1.RegisterStateServiceServer(registrar, service)
}

// record writes the audit line of a call that changes something.
func (s *Service) record(ctx context.Context, action string, bmc *referencev1.BMCReference, err error) {
	s.audit.Record(ctx, grpcserver.IdentityOf(ctx), action, bmc, err)
}

// ListEvents implements StateService.
func (s *Service) ListEvents(ctx context.Context, request *statev1.ListEventsRequest) (*statev1.ListEventsResponse, error) {
	events, revision, err := s.store.Events(ctx, registry.RefOf(request.GetBmc()), request.GetAfterSequence())
	if err != nil {
		return nil, err
	}
	return &statev1.ListEventsResponse{Events: events, Revision: revision, Capacity: record.Capacity}, nil
}

// AppendEvents implements StateService.
func (s *Service) AppendEvents(ctx context.Context, request *statev1.AppendEventsRequest) (*statev1.AppendEventsResponse, error) {
	revision, err := s.store.Append(ctx, registry.RefOf(request.GetBmc()), request.GetEvents())
	if err != nil {
		return nil, err
	}
	return &statev1.AppendEventsResponse{Revision: revision}, nil
}

// ClearEvents implements StateService.
func (s *Service) ClearEvents(ctx context.Context, request *statev1.ClearEventsRequest) (*statev1.ClearEventsResponse, error) {
	revision, err := s.store.Clear(ctx, registry.RefOf(request.GetBmc()), request.GetRevision())
	s.record(ctx, "CLEAR_EVENTS", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.ClearEventsResponse{Revision: revision}, nil
}

// WatchEvents implements StateService. Its header says that the watch has begun.
func (s *Service) WatchEvents(request *statev1.WatchEventsRequest, stream grpc.ServerStreamingServer[statev1.WatchEventsResponse]) error {
	watcher, err := s.store.Watch(stream.Context(), registry.RefOf(request.GetBmc()))
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case event, ok := <-watcher.Events():
			if !ok {
				return watcher.Err()
			}
			if err := stream.Send(&statev1.WatchEventsResponse{Event: event}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// ListAccounts implements StateService.
func (s *Service) ListAccounts(ctx context.Context, request *statev1.ListAccountsRequest) (*statev1.ListAccountsResponse, error) {
	accounts, err := s.store.StoredAccounts(ctx, registry.RefOf(request.GetBmc()))
	if err != nil {
		return nil, err
	}
	return &statev1.ListAccountsResponse{Accounts: accounts}, nil
}

// CreateAccount implements StateService.
func (s *Service) CreateAccount(ctx context.Context, request *statev1.CreateAccountRequest) (*statev1.CreateAccountResponse, error) {
	account, err := s.store.CreateAccount(ctx, registry.RefOf(request.GetBmc()), record.Account{
		Username: request.GetUsername(), Password: request.GetPassword(), Role: record.RoleName(request.GetRole()),
		Disabled: request.GetDisabled(), PasswordChangeRequired: request.GetPasswordChangeRequired(),
	})
	s.record(ctx, "CREATE_ACCOUNT", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.CreateAccountResponse{Account: account}, nil
}

// UpdateAccount implements StateService.
func (s *Service) UpdateAccount(ctx context.Context, request *statev1.UpdateAccountRequest) (*statev1.UpdateAccountResponse, error) {
	account, err := s.store.UpdateAccount(ctx, registry.RefOf(request.GetBmc()), request.GetUsername(),
		state.AccountChange{
			Password: request.Password, Role: request.Role, Disabled: request.Disabled,
			PasswordChangeRequired: request.PasswordChangeRequired,
		})
	s.record(ctx, "UPDATE_ACCOUNT", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.UpdateAccountResponse{Account: account}, nil
}

// DeleteAccount implements StateService.
func (s *Service) DeleteAccount(ctx context.Context, request *statev1.DeleteAccountRequest) (*statev1.DeleteAccountResponse, error) {
	err := s.store.DeleteAccount(ctx, registry.RefOf(request.GetBmc()), request.GetUsername())
	s.record(ctx, "DELETE_ACCOUNT", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.DeleteAccountResponse{}, nil
}

// ListSubscriptions implements StateService.
func (s *Service) ListSubscriptions(ctx context.Context, request *statev1.ListSubscriptionsRequest) (*statev1.ListSubscriptionsResponse, error) {
	subscriptions, err := s.store.Subscriptions(ctx, registry.RefOf(request.GetBmc()))
	if err != nil {
		return nil, err
	}
	return &statev1.ListSubscriptionsResponse{Subscriptions: subscriptions}, nil
}

// CreateSubscription implements StateService.
func (s *Service) CreateSubscription(ctx context.Context, request *statev1.CreateSubscriptionRequest) (*statev1.CreateSubscriptionResponse, error) {
	subscription, err := s.store.Subscribe(ctx, registry.RefOf(request.GetBmc()), request.GetSubscription())
	s.record(ctx, "CREATE_SUBSCRIPTION", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.CreateSubscriptionResponse{Subscription: subscription}, nil
}

// UpdateSubscription implements StateService.
func (s *Service) UpdateSubscription(ctx context.Context, request *statev1.UpdateSubscriptionRequest) (*statev1.UpdateSubscriptionResponse, error) {
	subscription, err := s.store.UpdateSubscription(ctx, registry.RefOf(request.GetBmc()), request.GetId(), func(one *statev1.Subscription) {
		if request.Context != nil {
			one.Context = request.GetContext()
		}
		if request.RetryPolicy != nil {
			one.RetryPolicy = request.GetRetryPolicy()
		}
		if request.VerifyCertificate != nil {
			one.VerifyCertificate = request.GetVerifyCertificate()
		}
		if request.GetHttpHeaders() != nil {
			one.HttpHeaders = request.GetHttpHeaders().GetHeaders()
		}
	})
	s.record(ctx, "UPDATE_SUBSCRIPTION", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.UpdateSubscriptionResponse{Subscription: subscription}, nil
}

// DeleteSubscription implements StateService.
func (s *Service) DeleteSubscription(ctx context.Context, request *statev1.DeleteSubscriptionRequest) (*statev1.DeleteSubscriptionResponse, error) {
	err := s.store.Unsubscribe(ctx, registry.RefOf(request.GetBmc()), request.GetId())
	s.record(ctx, "DELETE_SUBSCRIPTION", request.GetBmc(), err)
	if err != nil {
		return nil, err
	}
	return &statev1.DeleteSubscriptionResponse{}, nil
}
