// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
)

// reviews answers what the controller may do.
type reviews struct {
	typedauthorizationv1.SelfSubjectAccessReviewInterface
	allowed atomic.Bool
}

func (r *reviews) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	review.Status.Allowed = r.allowed.Load()
	return review, nil
}

// TestOptional_revoked: a role that is taken away after all of it was there is
// noticed, and one that comes back too.
func TestOptional_revoked(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	rights, err := newRights(metrics)
	if err != nil {
		t.Fatal(err)
	}
	answers := &reviews{}
	rights.client = answers
	changes := make(chan struct{}, 10)
	o := &optional{
		role: &roleDedicated, rights: rights, namespaces: []string{"lab"}, interval: time.Millisecond,
		fill:    func([]string) (cache.Cache, error) { return &informertest.FakeInformers{}, nil },
		changed: func() { changes <- struct{}{} }, log: slog.New(slog.DiscardHandler), known: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	answers.allowed.Store(true)
	go func() { ended <- o.Start(ctx) }()
	for _, allowed := range []bool{true, false, true} {
		answers.allowed.Store(allowed)
		rights.mu.Lock()
		clear(rights.answers) // As if they were too old.
		rights.mu.Unlock()
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			t.Fatalf("allowed: %t: it is not noticed", allowed)
		}
		if reader, lacks := o.reader("lab"); (reader != nil) != allowed || (lacks == "") != allowed {
			t.Errorf("allowed: %t: reader %v, lacks %q", allowed, reader, lacks)
		}
		want := 1.0
		if allowed {
			want = 0
		}
		families, err := metrics.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%d metrics, %v", len(families), err)
		}
		if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != want {
			t.Errorf("allowed: %t: %s is %v", allowed, families[0].GetName(), got)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
