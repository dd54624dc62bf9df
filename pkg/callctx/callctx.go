// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package callctx carries who asked for a call, and the call's request id, from
// the protocol frontends through gRPC metadata to the backends, for logs and
// audit. It grants nothing: a backend authorizes the authenticated gRPC caller.
package callctx

import (
	"context"
	"crypto/rand"
	"strings"
	"unicode"

	"google.golang.org/grpc/metadata"
)

// Metadata keys.
const (
	requestIDKey = "x-request-id"
	userKey      = "x-bmc-user"
	addressKey   = "x-bmc-address"
	protocolKey  = "x-bmc-protocol"
)

// maxValue bounds what is taken from metadata into logs, in bytes.
const maxValue = 128

// Caller is the client that a frontend acts for.
type Caller struct {
	// User is the name that it logged in with.
	User string
	// Address is where it connects from, as host:port.
	Address string
	// Protocol is what it speaks: ipmi, redfish, grpc.
	Protocol string
}

type (
	requestIDContextKey struct{}
	callerContextKey    struct{}
)

// NewRequestID returns a random request id of 26 letters and digits.
func NewRequestID() string { return rand.Text() }

// WithRequestID returns a context with a request id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDContextKey{}, id)
}

// RequestID returns the context's request id, empty when it has none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDContextKey{}).(string)
	return id
}

// WithCaller returns a context with the client that the call is made for.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	return context.WithValue(ctx, callerContextKey{}, caller)
}

// CallerOf returns the client that the call is made for; the zero Caller when
// the context names none.
func CallerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerContextKey{}).(Caller)
	return caller
}

// Outgoing returns the context with its request id and caller as outgoing gRPC
// metadata.
func Outgoing(ctx context.Context) context.Context {
	caller := CallerOf(ctx)
	var pairs []string
	for _, kv := range [...][2]string{
		{requestIDKey, RequestID(ctx)},
		{userKey, caller.User},
		{addressKey, caller.Address},
		{protocolKey, caller.Protocol},
	} {
		if v := clean(kv[1]); v != "" {
			pairs = append(pairs, kv[0], v)
		}
	}
	if pairs == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// Incoming returns the context with the request id and caller of the incoming
// gRPC metadata; a call without a request id gets a new one.
func Incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	id := first(md, requestIDKey)
	if id == "" {
		id = NewRequestID()
	}
	return WithCaller(WithRequestID(ctx, id), Caller{
		User:     first(md, userKey),
		Address:  first(md, addressKey),
		Protocol: first(md, protocolKey),
	})
}

func first(md metadata.MD, key string) string {
	values := md.Get(key)
	if len(values) == 0 {
		return ""
	}
	return clean(values[0])
}

// clean makes client-given text safe for metadata and logs: printable ASCII of
// bounded length. User names of either protocol can hold anything.
func clean(s string) string {
	if len(s) > maxValue {
		s = s[:maxValue]
	}
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
