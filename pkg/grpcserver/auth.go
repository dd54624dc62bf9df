// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// Identity is an authenticated caller.
type Identity struct {
	// Name is what logs and audit call it.
	Name string
	// UID, Groups and Extra are what Kubernetes says of it; empty elsewhere.
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Authenticator tells whose a bearer token is.
type Authenticator interface {
	// Authenticate returns whom a token stands for, or an error of package
	// grpcstatus: UNAUTHENTICATED when it stands for nobody,
	// HYPERVISOR_UNAVAILABLE when that can't be told at the moment.
	Authenticate(ctx context.Context, token string) (Identity, error)
}

// StaticTokens authenticates fixed tokens; used where no Kubernetes API server
// can review tokens.
type StaticTokens []staticToken

type staticToken struct {
	identity string
	digest   [sha256.Size]byte
}

// Add makes a token known that gives its holder an identity.
func (s *StaticTokens) Add(token, identity string) {
	*s = append(*s, staticToken{identity, sha256.Sum256([]byte(token))})
}

// Authenticate implements Authenticator. Its time depends neither on how much
// of a token is right nor on which it is.
func (s StaticTokens) Authenticate(_ context.Context, token string) (Identity, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i, known := range s {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], known.digest[:]), i, found)
	}
	if found < 0 {
		return Identity{}, grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "the bearer token is not valid")
	}
	return Identity{Name: s[found].identity}, nil
}

// credentialID is the part of Extra that is a token's own, not its holder's
// (CredentialIDKey of k8s.io/apiserver/pkg/authentication/user).
const credentialID = "authentication.kubernetes.io/credential-id"

// same tells whether two tokens are the same caller's: of the same account, and
// where they are bound to a pod, of the same one, with the same groups.
func (i Identity) same(other Identity) bool {
	extra := func(of Identity) map[string][]string {
		rest := maps.Clone(of.Extra)
		delete(rest, credentialID)
		return rest
	}
	return i.Name == other.Name && i.UID == other.UID && slices.Equal(slices.Sorted(slices.Values(i.Groups)), slices.Sorted(slices.Values(other.Groups))) &&
		maps.EqualFunc(extra(i), extra(other), slices.Equal)
}

// credential is a call's caller and the newest token that it has shown.
type credential struct {
	identity Identity

	mu    sync.Mutex
	token string
}

// renew takes another token of the caller's. One that can't be reviewed at the
// moment is taken: review will tell.
func (c *credential) renew(ctx context.Context, authenticator Authenticator, token string) error {
	if err := c.check(ctx, authenticator, token); err != nil && grpcstatus.ReasonOf(err) != errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
	return nil
}

// review tells whether the newest token is still valid, and the caller's.
func (c *credential) review(ctx context.Context, authenticator Authenticator) error {
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()
	return c.check(ctx, authenticator, token)
}

func (c *credential) check(ctx context.Context, authenticator Authenticator, token string) error {
	identity, err := authenticator.Authenticate(ctx, token)
	if err == nil && !c.identity.same(identity) {
		err = grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "the bearer token is not of the caller that opened the stream")
	}
	return err
}

type credentialKey struct{}

// IdentityOf returns the name of a call's authenticated caller; empty in one that
// needs none.
func IdentityOf(ctx context.Context) string {
	return identityOf(ctx).Name
}

func identityOf(ctx context.Context) Identity {
	if c := credentialOf(ctx); c != nil {
		return c.identity
	}
	return Identity{}
}

// credentialOf returns a call's; nil in one that needs none.
func credentialOf(ctx context.Context) *credential {
	c, _ := ctx.Value(credentialKey{}).(*credential)
	return c
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
	return context.WithValue(ctx, credentialKey{}, &credential{identity: identity, token: token}), nil
}

// open tells whether a method is served without authentication: health alone,
// since probes carry no token.
func open(method string) bool {
	return strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}
