// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

func TestExpiries(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	e, err := newExpiries(metrics)
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, by maker, at int64) {
		e.set(registry.Ref{Namespace: "lab", Name: name}, by, &served{notAfter: time.Unix(at, 0)})
	}
	for _, step := range []struct {
		name string
		do   func()
		want map[string]float64
	}{
		{"no BMC", func() {}, map[string]float64{}},
		{"one", func() { set("a", madeHere, 2000) }, map[string]float64{"controller": 2000}},
		{"a later one", func() { set("b", madeHere, 3000) }, map[string]float64{"controller": 2000}},
		{"a user's", func() { set("c", madeByUser, 1000) }, map[string]float64{"controller": 2000, "user": 1000}},
		{"the first is renewed", func() { set("a", madeHere, 4000) }, map[string]float64{"controller": 3000, "user": 1000}},
		{"a user's in place of the controller's", func() { set("b", madeByUser, 500) }, map[string]float64{"controller": 4000, "user": 500}},
		{"it is served no more", func() { e.set(registry.Ref{Namespace: "lab", Name: "b"}, madeHere, nil) }, map[string]float64{"controller": 4000, "user": 1000}},
		{"one of the same name elsewhere goes", func() { e.set(registry.Ref{Namespace: "other", Name: "a"}, madeHere, nil) }, map[string]float64{"controller": 4000, "user": 1000}},
	} {
		step.do()
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s: metric mismatch (-want +got):\n%s", step.name, diff)
		}
	}
}
