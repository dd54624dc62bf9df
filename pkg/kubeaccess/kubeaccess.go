// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeaccess has the Kubernetes API server say who callers are and what
// they may do: a TokenReview for each token and a SubjectAccessReview for each
// right, both remembered for a while.
//
// It is a module of its own, so that who imports package grpcserver does not
// require Kubernetes with it.
package kubeaccess

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

const (
	// client-go's own limits of 5 and 10 are meant for one controller. Reviews of
	// tokens and of rights have a limit each, so that callers with bad tokens
	// don't hold up those with good ones.
	qps   = 200
	burst = 400

	// requestTimeout bounds each request.
	requestTimeout = 5 * time.Second

	// maxToken is the longest token that is reviewed, in bytes. Kubernetes' own
	// have about 1 KiB.
	maxToken = 16 << 10
)

// backoff is for requests that the API server answers with an internal error or
// asks to repeat.
var backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}

// Config of a Reviewer. All fields are needed.
type Config struct {
	// REST says how to reach the API server, as somebody who may create
	// TokenReviews and SubjectAccessReviews (ClusterRole system:auth-delegator).
	REST *rest.Config
	// Audiences of which a token must have one.
	Audiences []string
	// TokenTTL is how long it is remembered whose a token is, and that one is not
	// valid.
	TokenTTL time.Duration
	// AllowTTL and DenyTTL are how long it is remembered that somebody may do
	// something, and that they may not.
	AllowTTL, DenyTTL time.Duration
}

// Reviewer knows callers and their rights from the API server. It implements
// grpcserver.Authenticator and grpcserver.Authorizer. Why the API server could
// not be asked is logged by Kubernetes' code, through klog.
type Reviewer struct {
	audiences authenticator.Audiences
	tokens    authenticator.Token
	rights    authorizer.Authorizer
}

// New makes a reviewer. It asks nothing yet.
func New(config Config) (*Reviewer, error) {
	if config.REST == nil || len(config.Audiences) == 0 {
		return nil, errors.New("make access reviewer: REST configuration and audiences are needed")
	}
	for name, ttl := range map[string]time.Duration{"token": config.TokenTTL, "allow": config.AllowTTL, "deny": config.DenyTTL} {
		if ttl < 0 {
			return nil, fmt.Errorf("make access reviewer: the %s TTL is negative: %v", name, ttl)
		}
	}
	restConfig := rest.CopyConfig(config.REST)
	restConfig.QPS, restConfig.Burst = qps, burst
	restConfig.Timeout = requestTimeout
	tokenClient, err := authenticationclient.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make client for token reviews: %w", err)
	}
	rightsClient, err := authorizationclient.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make client for access reviews: %w", err)
	}
	// Without audiences of its own it refuses tokens of which the API server does
	// not say that they are for one of ours.
	tokens, err := webhook.NewFromInterface(tokenClient, nil, backoff, requestTimeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal:   func(context.Context, string) {},
		RecordRequestLatency: func(context.Context, string, float64) {},
	})
	if err != nil {
		return nil, fmt.Errorf("make token reviewer: %w", err)
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: rightsClient,
		AllowCacheTTL:             config.AllowTTL,
		DenyCacheTTL:              config.DenyTTL,
		WebhookRetryBackoff:       &backoff,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("make rights reviewer: %w", err)
	}
	return &Reviewer{
		audiences: config.Audiences,
		tokens:    cache.New(tokens, false, config.TokenTTL, config.TokenTTL),
		rights:    rights,
	}, nil
}

// Authenticate implements grpcserver.Authenticator.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (grpcserver.Identity, error) {
	if token == "" || len(token) > maxToken {
		return grpcserver.Identity{}, errNotValid
	}
	response, ok, err := r.tokens.AuthenticateToken(authenticator.WithAudiences(ctx, r.audiences), token)
	if err != nil {
		return grpcserver.Identity{}, unavailable(ctx, "who the caller is")
	}
	if !ok {
		return grpcserver.Identity{}, errNotValid
	}
	return grpcserver.Identity{
		Name: response.User.GetName(), UID: response.User.GetUID(),
		Groups: response.User.GetGroups(), Extra: response.User.GetExtra(),
	}, nil
}

// errNotValid does not say what is wrong with a token: that helps who guesses.
var errNotValid = grpcstatus.New(errorsv1.Reason_REASON_UNAUTHENTICATED, "the bearer token is not valid for this service")

// Authorize implements grpcserver.Authorizer. It asks for the right to all BMCs
// first: for a frontend one answer then counts for all of its BMCs.
func (r *Reviewer) Authorize(ctx context.Context, caller grpcserver.Identity, request access.Request) error {
	var why string
	for _, scope := range scopes(request) {
		decision, reason, err := r.rights.Authorize(ctx, attributes(caller, scope))
		if err != nil {
			return unavailable(ctx, "what the caller may do")
		}
		if decision == authorizer.DecisionAllow {
			return nil
		}
		why = reason
	}
	message := fmt.Sprintf("%s may not %s", caller.Name, request)
	if why != "" {
		message += ": " + why
	}
	return grpcstatus.New(errorsv1.Reason_REASON_PERMISSION_DENIED, "%s", message)
}

// scopes are the requests of which any that is allowed allows a request.
func scopes(request access.Request) []access.Request {
	if request.BMC == nil {
		return []access.Request{request}
	}
	return []access.Request{{Subresource: request.Subresource, Verb: request.Verb}, request}
}

// attributes puts a request into Kubernetes' terms, in which no namespace and no
// name are all namespaces and names.
func attributes(caller grpcserver.Identity, request access.Request) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User:            &user.DefaultInfo{Name: caller.Name, UID: caller.UID, Groups: caller.Groups, Extra: caller.Extra},
		Verb:            request.Verb,
		APIGroup:        access.Group,
		APIVersion:      "*",
		Resource:        access.Resource,
		Subresource:     request.Subresource,
		Namespace:       request.BMC.GetNamespace(),
		Name:            request.BMC.GetName(),
		ResourceRequest: true,
	}
}

// unavailable is the error of a review that the API server did not answer. Its
// text names no cause, since callers who are not known yet get it too.
func unavailable(ctx context.Context, unknown string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "the Kubernetes API server can't be asked %s", unknown)
}
