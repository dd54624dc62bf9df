// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// Authenticator tells whose a bearer token is.
type Authenticator interface {
	// Authenticate returns the identity that a token stands for, or an error of
	// package grpcstatus: UNAUTHENTICATED when it stands for none.
	Authenticate(ctx context.Context, token string) (identity string, err error)
}

// StaticToken authenticates the one token that it was made of; used where no
// Kubernetes API server can review tokens.
type StaticToken struct {
	identity string
	digest   [sha256.Size]byte
}

// NewStaticToken returns an authenticator that knows one token and gives its
// holder an identity.
func NewStaticToken(token, identity string) StaticToken {
	return StaticToken{identity, sha256.Sum256([]byte(token))}
}

// Authenticate implements Authenticator. Its time does not depend on how much
// of the token is right.
func (s StaticToken) Authenticate(_ context.Context, token string) (string, error) {
	digest := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(digest[:], s.digest[:]) != 1 {
		return "", grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "the bearer token is not valid")
	}
	return s.identity, nil
}

type identityKey struct{}

// IdentityOf returns the authenticated caller of a call; empty in one that
// needs none.
func IdentityOf(ctx context.Context) string {
	identity, _ := ctx.Value(identityKey{}).(string)
	return identity
}

func authenticate(ctx context.Context, authenticator Authenticator) (context.Context, error) {
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		return ctx, grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "the call carries no bearer token")
	}
	identity, err := authenticator.Authenticate(ctx, token)
	if err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, identityKey{}, identity), nil
}

// open tells whether a method is served without authentication: health alone,
// since probes carry no token.
func open(method string) bool {
	return strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}
