// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit records who changed what on which BMC.
package audit

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Record says who did what to which BMC.
type Record struct {
	// Action is a word in capitals; what it is about follows after a space.
	Action string
	// Namespace and BMC name the BMC.
	Namespace, BMC string
	// Identity is the authenticated gRPC caller.
	Identity string
	// Caller is the client that the identity vouches for.
	Caller callctx.Caller
	// Request is the call's request id.
	Request string
	// Err is why it was not done, a gRPC status; nil: it was.
	Err error
}

// Sink gets the records of calls beside the log. Audited must return at once.
type Sink interface {
	Audited(Record)
}

// Trail keeps records.
type Trail struct {
	log  *slog.Logger
	sink Sink
}

// New makes a trail in a log, and in a sink unless that is nil.
func New(log *slog.Logger, sink Sink) *Trail { return &Trail{log: log, sink: sink} }

// Record writes the one line that each mutating call leaves, whether it was
// carried out (err is nil) or refused. The identity is the authenticated gRPC
// caller; user, source and protocol are what that caller vouches for.
func (t *Trail) Record(ctx context.Context, identity, action string, bmc *referencev1.BMCReference, err error) {
	r := Record{
		Action: action, Namespace: bmc.GetNamespace(), BMC: bmc.GetName(),
		Identity: identity, Caller: callctx.CallerOf(ctx), Request: callctx.RequestID(ctx), Err: err,
	}
	attrs := []slog.Attr{
		slog.Bool("audit", true),
		slog.String(logkey.Action, r.Action),
		slog.String(logkey.Namespace, r.Namespace), slog.String(logkey.BMC, r.BMC),
		slog.String(logkey.Identity, r.Identity), slog.String(logkey.User, r.Caller.User),
		slog.String(logkey.Source, r.Caller.Address), slog.String(logkey.Protocol, r.Caller.Protocol),
		slog.String(logkey.Request, r.Request),
		slog.String(logkey.Code, status.Code(err).String()),
	}
	if err != nil {
		attrs = append(attrs, slog.String(logkey.Error, status.Convert(err).Message()))
	}
	t.log.LogAttrs(ctx, slog.LevelInfo, "BMC action", attrs...)
	if t.sink != nil {
		t.sink.Audited(r)
	}
}
