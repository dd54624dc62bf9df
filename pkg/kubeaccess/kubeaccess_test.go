// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubeaccess_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcserver"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/kubeaccess"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// apiServer answers reviews: it knows one token, and one right.
type apiServer struct {
	mu sync.Mutex
	// status that all requests are answered with; 0: as they should be.
	status int
	// audiences are those of the known token; nil: this API server knows none.
	audiences []string
	// allowed is the right, as verb subresource namespace/name.
	allowed string
	tokens  int
	rights  []authorizationv1.SubjectAccessReviewSpec
}

func (a *apiServer) set(change func(*apiServer)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

func (a *apiServer) asked() (tokens, rights int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokens, len(a.rights)
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status != 0 {
		http.Error(w, "no", a.status)
		return
	}
	var answer any
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		a.tokens++
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Spec.Token == "good" {
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User: authenticationv1.UserInfo{
					Username: "jane", UID: "42", Groups: []string{"lab"}, Extra: map[string]authenticationv1.ExtraValue{"key": {"value"}},
				},
			}
			for _, audience := range review.Spec.Audiences {
				if slices.Contains(a.audiences, audience) {
					review.Status.Audiences = append(review.Status.Audiences, audience)
				}
			}
			if a.audiences != nil && review.Status.Audiences == nil {
				review.Status = authenticationv1.TokenReviewStatus{Error: "wrong audience"}
			}
		}
		answer = review
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.rights = append(a.rights, review.Spec)
		attributes := review.Spec.ResourceAttributes
		review.Status.Allowed = a.allowed == attributes.Verb+" "+attributes.Subresource+" "+attributes.Namespace+"/"+attributes.Name
		if !review.Status.Allowed {
			review.Status.Reason = "no rule"
		}
		answer = review
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(answer)
}

const ttl = 200 * time.Millisecond

// newReviewer makes a reviewer that remembers for so long.
func newReviewer(t *testing.T, api *apiServer, remember time.Duration) (*kubeaccess.Reviewer, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	reviewer, err := kubeaccess.New(kubeaccess.Config{
		REST:      &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
		Audiences: []string{"ours", "also-ours"}, TokenTTL: remember, AllowTTL: remember, DenyTTL: remember,
	})
	if err != nil {
		t.Fatal(err)
	}
	return reviewer, server
}

func TestReviewer_tokens(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		audiences []string
		token     string
		status    int
		want      errorsv1.Reason
		reviews   int
	}{
		"for an audience of ours":           {[]string{"also-ours", "theirs"}, "good", 0, errorsv1.Reason_REASON_UNSPECIFIED, 1},
		"for another audience":              {[]string{"theirs"}, "good", 0, errorsv1.Reason_REASON_UNAUTHENTICATED, 1},
		"from where audiences are unknown":  {nil, "good", 0, errorsv1.Reason_REASON_UNAUTHENTICATED, 1},
		"not valid":                         {[]string{"ours"}, "bad", 0, errorsv1.Reason_REASON_UNAUTHENTICATED, 1},
		"empty":                             {[]string{"ours"}, "", 0, errorsv1.Reason_REASON_UNAUTHENTICATED, 0},
		"far too long":                      {[]string{"ours"}, strings.Repeat("x", 20<<10), 0, errorsv1.Reason_REASON_UNAUTHENTICATED, 0},
		"the service may not review tokens": {[]string{"ours"}, "good", http.StatusForbidden, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, 0},
		"the API server is in trouble":      {[]string{"ours"}, "good", http.StatusInternalServerError, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &apiServer{audiences: tc.audiences, status: tc.status}
			reviewer, _ := newReviewer(t, api, ttl)
			identity, err := reviewer.Authenticate(t.Context(), tc.token)
			if got := grpcstatus.ReasonOf(err); got != tc.want {
				t.Fatalf("got %v, want reason %v", err, tc.want)
			}
			if tokens, _ := api.asked(); tokens != tc.reviews {
				t.Errorf("%d reviews, want %d", tokens, tc.reviews)
			}
			if err != nil {
				return
			}
			want := grpcserver.Identity{Name: "jane", UID: "42", Groups: []string{"lab"}, Extra: map[string][]string{"key": {"value"}}}
			if d := cmp.Diff(want, identity); d != "" {
				t.Errorf("identity mismatch (-want +got):\n%s", d)
			}
		})
	}
}

var jane = grpcserver.Identity{Name: "jane", UID: "42", Groups: []string{"lab"}, Extra: map[string][]string{"key": {"value"}}}

func power(namespace, name string) access.Request {
	return access.Request{Subresource: "power", Verb: access.Update, BMC: &referencev1.BMCReference{Namespace: namespace, Name: name}}
}

func TestReviewer_rights(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		allowed string
		request access.Request
		status  int
		want    errorsv1.Reason
		reviews int
	}{
		"to all BMCs":           {"update power /", power("lab", "vm-1"), 0, errorsv1.Reason_REASON_UNSPECIFIED, 1},
		"to the BMC":            {"update power lab/vm-1", power("lab", "vm-1"), 0, errorsv1.Reason_REASON_UNSPECIFIED, 2},
		"to another BMC":        {"update power lab/vm-2", power("lab", "vm-1"), 0, errorsv1.Reason_REASON_PERMISSION_DENIED, 2},
		"in another namespace":  {"update power prod/vm-1", power("lab", "vm-1"), 0, errorsv1.Reason_REASON_PERMISSION_DENIED, 2},
		"to read":               {"get power lab/vm-1", power("lab", "vm-1"), 0, errorsv1.Reason_REASON_PERMISSION_DENIED, 2},
		"all is asked for":      {"get credentials /", access.Request{Subresource: access.Credentials, Verb: access.Get}, 0, errorsv1.Reason_REASON_UNSPECIFIED, 1},
		"all, but one is given": {"get credentials lab/vm-1", access.Request{Subresource: access.Credentials, Verb: access.Get}, 0, errorsv1.Reason_REASON_PERMISSION_DENIED, 1},
		"the service may not":   {"update power /", power("lab", "vm-1"), http.StatusForbidden, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &apiServer{allowed: tc.allowed, status: tc.status}
			reviewer, _ := newReviewer(t, api, ttl)
			err := reviewer.Authorize(t.Context(), jane, tc.request)
			if got := grpcstatus.ReasonOf(err); got != tc.want {
				t.Errorf("got %v, want reason %v", err, tc.want)
			}
			if tc.want == errorsv1.Reason_REASON_PERMISSION_DENIED {
				for _, part := range []string{"jane may not " + tc.request.String(), "no rule"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%v: it lacks %q", err, part)
					}
				}
			}
			if len(api.rights) != tc.reviews {
				t.Fatalf("%d reviews, want %d", len(api.rights), tc.reviews)
			}
			if tc.reviews == 0 {
				return
			}
			want := authorizationv1.SubjectAccessReviewSpec{
				User: "jane", UID: "42", Groups: []string{"lab"}, Extra: map[string]authorizationv1.ExtraValue{"key": {"value"}},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: tc.request.BMC.GetNamespace(), Name: tc.request.BMC.GetName(),
					Verb: tc.request.Verb, Group: "bmc.kubevirt.io", Version: "*", Resource: "virtualmachinebmcs", Subresource: tc.request.Subresource,
				},
			}
			if tc.reviews == 1 {
				want.ResourceAttributes.Namespace, want.ResourceAttributes.Name = "", ""
			}
			if d := cmp.Diff(want, api.rights[tc.reviews-1]); d != "" {
				t.Errorf("review mismatch (-want +got):\n%s", d)
			}
		})
	}
}

// Answers are remembered for a while and asked for again after it. What could
// not be asked is not remembered.
func TestReviewer_remembers(t *testing.T) {
	t.Parallel()
	api := &apiServer{audiences: []string{"ours"}, allowed: "update power /"}
	reviewer, server := newReviewer(t, api, ttl)
	ask := func() (authentication, authorization errorsv1.Reason) {
		_, err := reviewer.Authenticate(t.Context(), "good")
		return grpcstatus.ReasonOf(err), grpcstatus.ReasonOf(reviewer.Authorize(t.Context(), jane, power("lab", "vm-1")))
	}
	until := func(what string, wantToken, wantRight errorsv1.Reason) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(ttl / 10) {
			token, right := ask()
			if token == wantToken && right == wantRight {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: token %v, right %v", what, token, right)
			}
		}
	}
	none, denied, down := errorsv1.Reason_REASON_UNSPECIFIED, errorsv1.Reason_REASON_PERMISSION_DENIED, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE
	until("at first", none, none)
	api.set(func(a *apiServer) { a.allowed, a.audiences = "", []string{"theirs"} })
	until("after the right was taken away", errorsv1.Reason_REASON_UNAUTHENTICATED, denied)
	api.set(func(a *apiServer) { a.allowed, a.audiences = "update power /", []string{"ours"} })
	until("after it was given back", none, none)
	api.set(func(a *apiServer) { a.status = http.StatusServiceUnavailable })
	until("while the API server is down", down, down)
	api.set(func(a *apiServer) { a.status = 0 })
	until("after it came back", none, none)
	server.CloseClientConnections()
	server.Close()
	until("after it went for good", down, down)
}

func TestReviewer_asksOnceForManyBMCs(t *testing.T) {
	t.Parallel()
	api := &apiServer{audiences: []string{"ours"}, allowed: "update power /"}
	reviewer, _ := newReviewer(t, api, time.Hour)
	for i := range 500 {
		if _, err := reviewer.Authenticate(t.Context(), "good"); err != nil {
			t.Fatal(err)
		}
		if err := reviewer.Authorize(t.Context(), jane, power("lab", "vm-"+string(rune('a'+i%26)))); err != nil {
			t.Fatal(err)
		}
	}
	if tokens, rights := api.asked(); tokens != 1 || rights != 1 {
		t.Errorf("500 calls cost %d token reviews and %d access reviews, want 1 and 1", tokens, rights)
	}
}

// Of a caller that went away there is nothing to say.
func TestReviewer_canceledCall(t *testing.T) {
	t.Parallel()
	api := &apiServer{audiences: []string{"ours"}, allowed: "update power /"}
	reviewer, _ := newReviewer(t, api, ttl)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := reviewer.Authorize(ctx, jane, power("lab", "vm-1")); !errors.Is(err, context.Canceled) {
		t.Errorf("Authorize: %v, want context.Canceled", err)
	}
	if _, err := reviewer.Authenticate(ctx, "good"); !errors.Is(err, context.Canceled) {
		t.Errorf("Authenticate: %v, want context.Canceled", err)
	}
}

// Not beside the others: the flags choose where klog writes to.
func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no cluster":     {[]string{"--kubeconfig", "/nowhere"}, "load kubeconfig"},
		"no pod":         {nil, "in-cluster"},
		"empty audience": {[]string{"--kubeconfig", "testdata/kubeconfig", "--access-audience", "a,"}, "audience is empty"},
		"negative TTL":   {[]string{"--kubeconfig", "testdata/kubeconfig", "--access-deny-ttl", "-1s"}, "negative"},
		"good":           {[]string{"--kubeconfig", "testdata/kubeconfig", "--access-audience", "a, b"}, ""},
	} {
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		kubeconfig := flags.String("kubeconfig", "", "")
		open := kubeaccess.AddFlags(flags, kubeconfig)
		if err := flags.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		reviewer, err := open(slog.New(slog.DiscardHandler))
		switch {
		case tc.want == "" && (err != nil || reviewer == nil):
			t.Errorf("%s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
