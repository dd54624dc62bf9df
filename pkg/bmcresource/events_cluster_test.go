//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// TestEvents: what is done to a BMC is told by Events of the resource, those of
// the same kind as one.
func TestEvents(t *testing.T) {
	t.Parallel()
	c := open(t)
	uid := c.create("bmc", "vm").GetUID()
	store := c.store(nil)
	events, err := bmcresource.NewEvents(c.config, "test-component", store.UID)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- events.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	off := audit.Record{
		Action: "POWER_ACTION_FORCE_OFF", Namespace: c.namespace, BMC: "bmc", Identity: "frontend",
		Caller: callctx.Caller{User: "admin", Address: "192.0.2.7:50123", Protocol: "ipmi"},
	}
	events.Audited(off)
	off.Caller.Address = "192.0.2.7:50124"
	events.Audited(off)
	off.Err = grpcstatus.New(errorsv1.Reason_REASON_INVALID_POWER_STATE, "the machine is off")
	events.Audited(off)
	off.BMC = "nobody"
	events.Audited(off)
	events.Trouble(c.namespace, "bmc", "PowerCycle", "the node is lost")

	type event struct {
		Type, Reason, Message string
		Count                 int32
	}
	want := []event{
		{corev1.EventTypeNormal, "PowerActionForceOff", "POWER_ACTION_FORCE_OFF by admin at 192.0.2.7 over ipmi", 2},
		{corev1.EventTypeWarning, "PowerActionForceOff", "POWER_ACTION_FORCE_OFF by admin at 192.0.2.7 over ipmi, refused: FailedPrecondition: the machine is off", 1},
		{corev1.EventTypeWarning, "ActionFailed", "PowerCycle: the node is lost", 1},
	}
	client, err := typedcorev1.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	var got []event
	same := func() bool {
		// As kubectl describe asks for them.
		selector := client.Events(c.namespace).GetFieldSelector(new("bmc"), &c.namespace, new("VirtualMachineBMC"), new(string(uid)))
		list, err := client.Events(c.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: selector.String()})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, e := range list.Items {
			if e.Source.Component != "test-component" {
				t.Errorf("event comes from %q", e.Source.Component)
			}
			got = append(got, event{e.Type, e.Reason, e.Message, e.Count})
		}
		return cmp.Equal(got, want, cmpopts.SortSlices(func(a, b event) bool { return a.Message < b.Message }))
	}
	defer func() {
		if t.Failed() {
			t.Logf("got %+v, want %+v", got, want)
		}
	}()
	c.until("told", same)
	if all, err := client.Events(c.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) != len(want) {
		t.Errorf("there are %d events, %v; want %d", len(all.Items), err, len(want))
	}
}
