// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

const (
	// maxSubscriptions is how many event subscriptions a BMC may have, as in a
	// cluster.
	maxSubscriptions = 20
	// maxBehind is how many entries a watcher may be behind.
	maxBehind = 2 * Capacity
)

// publish passes an entry on to watchers. The service is locked.
func (l *eventLog) publish(e *statev1.Event) {
	for w := range l.watchers {
		select {
		case w <- e:
		default:
			close(w)
			delete(l.watchers, w)
		}
	}
}

// WatchEvents implements StateService. Its header says that the watch has begun.
func (s *Service) WatchEvents(request *statev1.WatchEventsRequest, stream grpc.ServerStreamingServer[statev1.WatchEventsResponse]) error {
	events := make(chan *statev1.Event, maxBehind)
	s.mu.Lock()
	l := s.log(request.GetBmc())
	if l.watchers == nil {
		l.watchers = map[chan *statev1.Event]struct{}{}
	}
	l.watchers[events] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(l.watchers, events)
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the reader is more than %d entries behind", maxBehind)
			}
			if err := stream.Send(&statev1.WatchEventsResponse{Event: e}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// ListSubscriptions implements StateService.
func (s *Service) ListSubscriptions(_ context.Context, request *statev1.ListSubscriptionsRequest) (*statev1.ListSubscriptionsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &statev1.ListSubscriptionsResponse{Subscriptions: slices.Clone(s.log(request.GetBmc()).subscriptions)}, nil
}

// CreateSubscription implements StateService.
func (s *Service) CreateSubscription(_ context.Context, request *statev1.CreateSubscriptionRequest) (*statev1.CreateSubscriptionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	if len(l.subscriptions) >= maxSubscriptions {
		return nil, grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the BMC has %d event subscriptions already", maxSubscriptions)
	}
	added := proto.CloneOf(request.GetSubscription())
	added.Id = strings.ToLower(rand.Text())
	l.subscriptions = append(l.subscriptions, added)
	return &statev1.CreateSubscriptionResponse{Subscription: added}, nil
}

// find returns the place of a subscription. The service is locked.
func (l *eventLog) find(id string) (int, error) {
	i := slices.IndexFunc(l.subscriptions, func(one *statev1.Subscription) bool { return one.GetId() == id })
	if i < 0 {
		return 0, grpcstatus.New(errorsv1.Reason_REASON_ENTRY_NOT_FOUND, "the BMC has no such event subscription")
	}
	return i, nil
}

// UpdateSubscription implements StateService.
func (s *Service) UpdateSubscription(_ context.Context, request *statev1.UpdateSubscriptionRequest) (*statev1.UpdateSubscriptionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	i, err := l.find(request.GetId())
	if err != nil {
		return nil, err
	}
	one := proto.CloneOf(l.subscriptions[i]) // Others may be reading it.
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
	l.subscriptions[i] = one
	return &statev1.UpdateSubscriptionResponse{Subscription: one}, nil
}

// DeleteSubscription implements StateService.
func (s *Service) DeleteSubscription(_ context.Context, request *statev1.DeleteSubscriptionRequest) (*statev1.DeleteSubscriptionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(request.GetBmc())
	i, err := l.find(request.GetId())
	if err != nil {
		return nil, err
	}
	l.subscriptions = slices.Delete(slices.Clone(l.subscriptions), i, i+1)
	return &statev1.DeleteSubscriptionResponse{}, nil
}
