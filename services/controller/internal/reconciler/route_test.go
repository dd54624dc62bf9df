// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// slice is an EndpointSlice as the API server has it.
func slice(name, uid, version string) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "lab", Name: name, UID: types.UID(uid), ResourceVersion: version,
		Labels: map[string]string{v1beta1.LabelVirtualMachineBMCName: "a"},
	}}
}

func TestFreshSlices(t *testing.T) {
	t.Parallel()
	a, b := registry.Ref{Name: "a"}, registry.Ref{Name: "b"}
	before, after := slice("vm-virtbmc-ipmi", "1", "10"), slice("vm-virtbmc-ipmi", "1", "11")
	other := slice("vm-virtbmc-redfish", "2", "5")
	for name, tc := range map[string]struct {
		cached []discoveryv1.EndpointSlice
		want   string // resourceVersion of the newest
		left   int    // how many BMCs something is remembered of
	}{
		"the cache is behind":               {[]discoveryv1.EndpointSlice{other, before}, "11", 2},
		"it has seen the move":              {[]discoveryv1.EndpointSlice{other, after}, "11", 1},
		"it has seen a later change":        {[]discoveryv1.EndpointSlice{slice("vm-virtbmc-ipmi", "1", "12")}, "12", 1},
		"another one of the name":           {[]discoveryv1.EndpointSlice{slice("vm-virtbmc-ipmi", "3", "10")}, "10", 1},
		"it is gone, the move was not seen": {[]discoveryv1.EndpointSlice{other}, "", 1},
		"all are gone":                      {nil, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f freshSlices
			f.put(a, &before, &after)
			f.put(b, &before, &after)
			got := f.newest(a, tc.cached)
			if len(got) != len(tc.cached) {
				t.Errorf("%d EndpointSlices of %d", len(got), len(tc.cached))
			}
			version := ""
			if is := got["vm-virtbmc-ipmi"]; is != nil {
				version = is.ResourceVersion
			}
			if version != tc.want {
				t.Errorf("newest version %q, want %q", version, tc.want)
			}
			if len(f.list) != tc.left {
				t.Errorf("something is remembered of %d BMCs, want %d", len(f.list), tc.left)
			}
		})
	}
}

// TestRouting_forgets: nothing is remembered of EndpointSlices that are gone,
// whether their BMC is there or not.
func TestRouting_forgets(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	there := &v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "a"}}
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(there).
		WithIndex(&discoveryv1.EndpointSlice{}, indexBMC, func(object client.Object) []string {
			return []string{object.GetLabels()[v1beta1.LabelVirtualMachineBMCName]}
		}).Build()
	bmcs, err := registry.New(registry.Config{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	begun := newStart()
	begun.begin(nil)
	r := &routing{client: cached, registry: bmcs, ports: &ports{}, taken: &takenSlices{}, start: begun, moves: newMoves(&queue{})}
	before, after := slice("vm-virtbmc-ipmi", "1", "10"), slice("vm-virtbmc-ipmi", "1", "11")
	for _, name := range []string{"a", "gone"} {
		ref := registry.Ref{Namespace: "lab", Name: name}
		r.fresh.put(ref, &before, &after)
		if _, err := r.Reconcile(t.Context(), requestFor(ref)); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(map[registry.Ref]map[string]freshSlice{}, r.fresh.list, cmp.AllowUnexported(freshSlice{})); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
}
