// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package statev1_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/callctx"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	service "kubevirtbmc.dev/services/controller/internal/service/state/v1"
	"kubevirtbmc.dev/services/controller/internal/state"
)

// trail keeps the records of calls.
type trail struct{ records []audit.Record }

func (t *trail) Audited(r audit.Record) { t.records = append(t.records, r) }

// TestService_audit: each method that changes something leaves one record, of a call
// that fails too. AppendEvents leaves none, for what it writes is the record.
func TestService_audit(t *testing.T) {
	t.Parallel()
	// Nobody answers there, and nobody is asked: the store has not read BMCs yet.
	config := &rest.Config{Host: "127.0.0.1:1"}
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	bmcs, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	store, err := state.New(state.Config{Core: core, Metadata: objects, Objects: bmcs, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	kept := &trail{}
	s := service.New(store, audit.New(log, kept))
	ref := &referencev1.BMCReference{Namespace: "lab", Name: "bmc"}
	calls := map[string]struct {
		action string
		call   func(context.Context) error
	}{
		"AppendEvents": {"", func(ctx context.Context) error {
			_, err := s.AppendEvents(ctx, &statev1.AppendEventsRequest{Bmc: ref, Events: []*statev1.Event{{Id: "1"}}})
			return err
		}},
		"ClearEvents": {"CLEAR_EVENTS", func(ctx context.Context) error {
			_, err := s.ClearEvents(ctx, &statev1.ClearEventsRequest{Bmc: ref})
			return err
		}},
		"CreateAccount": {"CREATE_ACCOUNT", func(ctx context.Context) error {
			_, err := s.CreateAccount(ctx, &statev1.CreateAccountRequest{Bmc: ref, Username: "web", Password: "long enough"})
			return err
		}},
		"UpdateAccount": {"UPDATE_ACCOUNT", func(ctx context.Context) error {
			_, err := s.UpdateAccount(ctx, &statev1.UpdateAccountRequest{Bmc: ref, Username: "web"})
			return err
		}},
		"DeleteAccount": {"DELETE_ACCOUNT", func(ctx context.Context) error {
			_, err := s.DeleteAccount(ctx, &statev1.DeleteAccountRequest{Bmc: ref, Username: "web"})
			return err
		}},
		"CreateSubscription": {"CREATE_SUBSCRIPTION", func(ctx context.Context) error {
			_, err := s.CreateSubscription(ctx, &statev1.CreateSubscriptionRequest{Bmc: ref, Subscription: &statev1.Subscription{Destination: "https://192.0.2.1/"}})
			return err
		}},
		"UpdateSubscription": {"UPDATE_SUBSCRIPTION", func(ctx context.Context) error {
			_, err := s.UpdateSubscription(ctx, &statev1.UpdateSubscriptionRequest{Bmc: ref, Id: "1"})
			return err
		}},
		"DeleteSubscription": {"DELETE_SUBSCRIPTION", func(ctx context.Context) error {
			_, err := s.DeleteSubscription(ctx, &statev1.DeleteSubscriptionRequest{Bmc: ref, Id: "1"})
			return err
		}},
	}
	for _, method := range statev1.StateService_ServiceDesc.Methods {
		name := method.MethodName
		if strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Get") {
			continue
		}
		tc, ok := calls[name]
		if !ok {
			t.Errorf("%s is not tried here", name)
			continue
		}
		kept.records = nil
		caller := callctx.Caller{User: "admin", Address: "192.0.2.7", Protocol: "redfish"}
		if err := tc.call(callctx.WithCaller(t.Context(), caller)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		if tc.action == "" {
			if len(kept.records) != 0 {
				t.Errorf("%s leaves %v", name, kept.records)
			}
			continue
		}
		if len(kept.records) != 1 {
			t.Errorf("%s leaves %d records", name, len(kept.records))
			continue
		}
		r := kept.records[0]
		if r.Action != tc.action || r.Namespace != "lab" || r.BMC != "bmc" || r.Caller != caller || status.Code(r.Err) != codes.Unavailable {
			t.Errorf("%s leaves %+v", name, r)
		}
	}
}
