// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"fmt"
	"slices"
	"testing"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// A controller of another version has to come to the same owners.
func TestWeigh_isAsEver(t *testing.T) {
	t.Parallel()
	if got := registry.Weigh("frontend-ipmi-0", "lab/node-1"); got != 0x7e905f6f167c0833 {
		t.Errorf("weight is %#x", got)
	}
}

func TestBest(t *testing.T) {
	t.Parallel()
	if got := registry.BestOf(nil, "lab/node-1"); got != "" {
		t.Errorf("the best of none is %q", got)
	}
	names := []string{"a", "b", "c", "d"}
	count := map[string]int{}
	for n := range 4000 {
		key := fmt.Sprintf("lab/node-%d", n)
		best := registry.BestOf(names, key)
		count[best]++
		others := slices.Clone(names)
		slices.Reverse(others)
		if got := registry.BestOf(others, key); got != best {
			t.Fatalf("%s: the order of replicas makes %s of %s", key, got, best)
		}
		others = slices.DeleteFunc(others, func(r string) bool { return r == "d" })
		if got := registry.BestOf(others, key); best != "d" && got != best {
			t.Fatalf("%s moved from %s to %s although d went", key, best, got)
		}
	}
	for _, name := range names {
		if n := count[name]; n < 850 || n > 1150 {
			t.Errorf("%s has %d of 4000", name, n)
		}
	}
}
