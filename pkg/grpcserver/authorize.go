// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/peer"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/grpcstatus"
	accessv1 "kubevirtbmc.dev/proto/gen/go/bmc/access/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// Authorizer tells who may do what.
type Authorizer interface {
	// Authorize returns nil when a caller may do what it asks for, else an error
	// of package grpcstatus: PERMISSION_DENIED, which tells nothing of whether
	// the BMC exists, or HYPERVISOR_UNAVAILABLE when it can't be told at the
	// moment.
	Authorize(ctx context.Context, caller Identity, request access.Request) error
}

// governed tells whether a method needs a right. Health and reflection do not:
// the one is open, the other says no more than the published .proto files, to
// whoever is authenticated.
func governed(method string) bool {
	return !open(method) &&
		!strings.HasPrefix(method, "/"+reflectionv1.ServerReflection_ServiceDesc.ServiceName+"/") &&
		!strings.HasPrefix(method, "/"+reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName+"/")
}

// authorize authorizes a call by its first message, and gives its context the
// client that the caller vouches for where it may. It returns what was asked for;
// nil: nothing. A refused action leaves a line in the audit log, as one that a
// handler refuses does.
func (g guard) authorize(ctx context.Context, method string, message any) (context.Context, *access.Request, error) {
	if g.authorizer == nil {
		ctx, err := g.vouched(ctx, nil)
		return ctx, nil, err
	}
	m, ok := message.(proto.Message)
	if !ok {
		return ctx, nil, grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "authorize call: %T is not a message", message)
	}
	request, ok, err := access.RequestOf(method, m)
	switch {
	case err != nil:
		return ctx, nil, err
	case !ok:
		ctx, err := g.vouched(ctx, nil)
		return ctx, nil, err
	}
	if err := g.authorizer.Authorize(ctx, identityOf(ctx), request); err != nil {
		if request.Verb == access.Update && grpcstatus.ReasonOf(err) == errorsv1.Reason_REASON_PERMISSION_DENIED {
			audit.New(g.log, nil).Record(ctx, IdentityOf(ctx), path.Base(method), request.BMC, err)
		}
		return ctx, nil, err
	}
	ctx, err = g.vouched(ctx, request.BMC)
	return ctx, &request, err
}

// Authorize tells whether the caller of a call may do something, for methods
// whose rule leaves that to the service. Errors are those of Authorizer; nil where
// whoever is authenticated may do everything.
func Authorize(ctx context.Context, request access.Request) error {
	authorizer, ok := ctx.Value(authorizerKey{}).(Authorizer)
	if !ok {
		return nil
	}
	return authorizer.Authorize(ctx, identityOf(ctx), request)
}

type authorizerKey struct{}

// vouched gives a call's context the client that its metadata names, if the
// caller may vouch for it: whoever may read a BMC's credentials could log in as
// any of its users anyway. From others such metadata does not count, so that
// they can't put others' names into the audit log.
func (g guard) vouched(ctx context.Context, bmc *referencev1.BMCReference) (context.Context, error) {
	claimed := callctx.CallerOf(callctx.Incoming(ctx))
	if claimed == (callctx.Caller{}) {
		return ctx, nil
	}
	if g.authorizer == nil || inProcess(ctx) {
		return callctx.WithCaller(ctx, claimed), nil
	}
	err := g.authorizer.Authorize(ctx, identityOf(ctx), access.Request{Subresource: access.Credentials, Verb: access.Get, BMC: bmc})
	switch {
	case err == nil:
		return callctx.WithCaller(ctx, claimed), nil
	case grpcstatus.ReasonOf(err) == errorsv1.Reason_REASON_PERMISSION_DENIED:
		return ctx, nil
	default:
		return ctx, err
	}
}

// watch reviews a stream's caller again and again: its newest token, and its right
// where the stream needs one (request is not nil). It ends the stream when either
// is lost. While that can't be told the stream goes on.
func (g guard) watch(ctx context.Context, request *access.Request, end context.CancelCauseFunc) {
	ticker := time.NewTicker(g.recheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := credentialOf(ctx).review(ctx, g.authenticator)
		if err == nil && request != nil {
			err = g.authorizer.Authorize(ctx, identityOf(ctx), *request)
		}
		switch grpcstatus.ReasonOf(err) {
		case errorsv1.Reason_REASON_UNAUTHENTICATED, errorsv1.Reason_REASON_PERMISSION_DENIED:
			end(err)
			return
		}
	}
}

// renewal returns another token that a stream's message shows, and nothing else;
// empty: it is another message.
func renewal(message any) string {
	m, _ := message.(interface{ GetRenewal() *accessv1.Renewal })
	if m == nil {
		return ""
	}
	return m.GetRenewal().GetToken()
}

// sameBMC refuses a message that names a BMC other than the first message's, or
// wants more than that.
func (s *guardedStream) sameBMC(message any) error {
	m, ok := message.(proto.Message)
	if s.request == nil || !ok || access.BMCOf(m) == nil {
		return nil
	}
	if request, ok, err := access.RequestOf(s.method, m); err != nil || !ok || !request.Equal(*s.request) {
		return grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "a later message asks for something else than the first")
	}
	return nil
}

// observed is what the server itself sees of a call's client.
func observed(ctx context.Context) callctx.Caller {
	caller := callctx.Caller{Protocol: "grpc"}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		caller.Address = p.Addr.String()
	}
	return caller
}

// inProcess tells whether a call comes from this process over package bufconn,
// where nobody else connects: from the REST gateway, which names the client's
// address, or from standalone mode's frontends.
func inProcess(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr != nil && p.Addr.Network() == "bufconn"
}
