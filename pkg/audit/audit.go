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

// Record writes the one line that each mutating call leaves, whether it was
// carried out (err is nil) or refused. The identity is the authenticated gRPC
// caller; user, source and protocol are what that caller vouches for.
func Record(ctx context.Context, log *slog.Logger, identity, action string, bmc *referencev1.BMCReference, err error) {
	caller := callctx.CallerOf(ctx)
	attrs := []slog.Attr{
		slog.Bool("audit", true),
		slog.String(logkey.Action, action),
		slog.String(logkey.Namespace, bmc.GetNamespace()), slog.String(logkey.BMC, bmc.GetName()),
		slog.String(logkey.Identity, identity), slog.String(logkey.User, caller.User),
		slog.String(logkey.Source, caller.Address), slog.String(logkey.Protocol, caller.Protocol),
		slog.String(logkey.Request, callctx.RequestID(ctx)),
		slog.String(logkey.Code, status.Code(err).String()),
	}
	if err != nil {
		attrs = append(attrs, slog.String(logkey.Error, status.Convert(err).Message()))
	}
	log.LogAttrs(ctx, slog.LevelInfo, "BMC action", attrs...)
}
