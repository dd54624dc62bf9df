// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// TestStart_all: many BMCs take as long as they need, those that fail a while.
func TestStart_all(t *testing.T) {
	t.Parallel()
	const all, each, while = 100, 5 * time.Second, 10 * time.Second
	for name, tc := range map[string]struct {
		done int
		want time.Duration
	}{
		"each comes":    {all, all * each},
		"some fail":     {all - 3, ((all - 3) * each).Truncate(while) + 2*while},
		"nothing comes": {0, while},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStart()
				refs := make([]registry.Ref, all)
				for i := range refs {
					refs[i] = registry.Ref{Name: fmt.Sprint(i)}
				}
				s.begin(refs)
				began := time.Now()
				go func() {
					for _, ref := range refs[:tc.done] {
						time.Sleep(each)
						s.done(ref)
					}
				}()
				if !s.all(t.Context(), while) {
					t.Error("the context has ended")
				}
				if got := time.Since(began); got > tc.want || got < tc.want-while {
					t.Errorf("it waited for %v, want %v", got, tc.want)
				}
				if got := len(s.left()); got != all-tc.done {
					t.Errorf("%d are left, want %d", got, all-tc.done)
				}
			})
		})
	}
}

func TestSoonest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ a, b, want time.Duration }{{0, 0, 0}, {0, 2, 2}, {3, 0, 3}, {3, 2, 2}, {2, 3, 2}} {
		if got := soonest(tc.a, tc.b); got != tc.want {
			t.Errorf("soonest(%v, %v) = %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestConflictsAlone(t *testing.T) {
	t.Parallel()
	conflict := fmt.Errorf("apply: %w", apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")))
	other := errors.New("no route to host")
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                  {nil, false},
		"one":                      {conflict, true},
		"another":                  {other, false},
		"one and nothing":          {errors.Join(conflict, nil), true},
		"two":                      {errors.Join(conflict, conflict), true},
		"one and another":          {errors.Join(conflict, other), false},
		"one and another, inside":  {errors.Join(conflict, errors.Join(nil, fmt.Errorf("agent: %w", errors.Join(conflict, other)))), false},
		"two, one of them inside":  {errors.Join(conflict, fmt.Errorf("agent: %w", errors.Join(conflict))), true},
		"another, wrapped at last": {fmt.Errorf("reconcile: %w", errors.Join(conflict, other)), false},
	} {
		if got := conflictsAlone(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
