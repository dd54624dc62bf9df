// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package callctx_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"kubevirtbmc.dev/pkg/callctx"
)

func TestOutgoing_arrivesAsIncoming(t *testing.T) {
	t.Parallel()
	ctx := callctx.WithCaller(callctx.WithRequestID(t.Context(), "id-1"),
		callctx.Caller{User: "admin", Address: "192.0.2.1:4000", Protocol: "ipmi"})
	md, _ := metadata.FromOutgoingContext(callctx.Outgoing(ctx))
	got := callctx.Incoming(metadata.NewIncomingContext(t.Context(), md))
	if id := callctx.RequestID(got); id != "id-1" {
		t.Errorf("RequestID = %q, want id-1", id)
	}
	if c := callctx.CallerOf(got); c != callctx.CallerOf(ctx) {
		t.Errorf("CallerOf = %+v, want %+v", c, callctx.CallerOf(ctx))
	}
}

func TestIncoming_withoutRequestID_makesOne(t *testing.T) {
	t.Parallel()
	a, b := callctx.RequestID(callctx.Incoming(t.Context())), callctx.RequestID(callctx.Incoming(t.Context()))
	if a == "" || a == b {
		t.Errorf("request ids %q and %q, want two different ones", a, b)
	}
}

func TestOutgoing_cleansHostileText(t *testing.T) {
	t.Parallel()
	ctx := callctx.WithCaller(t.Context(), callctx.Caller{User: "a\nb\x00ü" + strings.Repeat("x", 500)})
	md, _ := metadata.FromOutgoingContext(callctx.Outgoing(ctx))
	got := callctx.CallerOf(callctx.Incoming(metadata.NewIncomingContext(t.Context(), md))).User
	if !strings.HasPrefix(got, "a?b?") || len(got) > 128 || strings.ContainsAny(got, "\n\x00") {
		t.Errorf("user arrived as %q", got)
	}
}
