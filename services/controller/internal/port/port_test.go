// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package port

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRange_Set(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want Range
		fail bool
	}{
		"a range":                 {"20000-20009", Range{20000, 20009}, false},
		"one port":                {"65535-65535", Range{65535, 65535}, false},
		"no end":                  {"20000", Range{}, true},
		"empty":                   {"", Range{}, true},
		"turned round":            {"20009-20000", Range{}, true},
		"ports of root":           {"623-20000", Range{}, true},
		"more than there are":     {"20000-65536", Range{}, true},
		"no number":               {"20000-many", Range{}, true},
		"less than no port":       {"-1-20000", Range{}, true},
		"the default as a string": {DefaultRange.String(), DefaultRange, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got Range
			if err := got.Set(tc.text); (err != nil) != tc.fail {
				t.Errorf("Set(%q): %v", tc.text, err)
			}
			if got != tc.want {
				t.Errorf("Set(%q) = %v, want %v", tc.text, got, tc.want)
			}
		})
	}
}

func TestAllocator(t *testing.T) {
	t.Parallel()
	type claims = []Claim[string]
	for name, tc := range map[string]struct {
		restore claims
		// steps are owners to allocate for, or, after a minus sign, to release.
		steps []string
		want  []string
		free  int
	}{
		"ports come one after the other": {nil, []string{"a", "b"}, []string{"a 10", "b 11"}, 1},
		"an owner keeps its port":        {nil, []string{"a", "b", "a"}, []string{"a 10", "b 11", "a 10"}, 1},
		"a restart changes nothing":      {claims{{"a", 12}, {"b", 10}}, []string{"b", "a", "c"}, []string{"b 10", "a 12", "c 11"}, 0},
		"a port that is returned rests":  {nil, []string{"a", "-a", "b", "c", "d"}, []string{"a 10", "b 11", "c 12", "d 10"}, 0},
		"none is left":                   {nil, []string{"a", "b", "c", "d"}, []string{"a 10", "b 11", "c 12", "d none"}, 0},
		"one is returned when none is":   {nil, []string{"a", "b", "c", "-b", "d"}, []string{"a 10", "b 11", "c 12", "d 11"}, 0},
		"two claim the same port":        {claims{{"old", 11}, {"new", 11}}, []string{"new", "old"}, []string{"new 12", "old 11"}, 1},
		"a claim out of the range":       {claims{{"a", 99}}, []string{"a"}, []string{"a 10"}, 2},
		"one owner claims two":           {claims{{"a", 11}, {"a", 12}}, []string{"a", "b", "c"}, []string{"a 11", "b 12", "c 10"}, 0},
		"nobody has what is returned":    {nil, []string{"-a", "a"}, []string{"a 10"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := New[string](Range{10, 12})
			a.Restore(tc.restore)
			var got []string
			for _, step := range tc.steps {
				if step[0] == '-' {
					a.Release(step[1:])
					if port, ok := a.Port(step[1:]); ok {
						t.Errorf("%s has port %d after its release", step[1:], port)
					}
					continue
				}
				port, ok := a.Allocate(step)
				if known, has := a.Port(step); known != port || has != ok {
					t.Errorf("Port(%q) = %d, %v after %d, %v", step, known, has, port, ok)
				}
				if ok {
					got = append(got, fmt.Sprintf("%s %d", step, port))
				} else {
					got = append(got, step+" none")
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			if got := a.Free(); got != tc.free {
				t.Errorf("%d ports are free, want %d", got, tc.free)
			}
		})
	}
}

func TestAllocator_at_once(t *testing.T) {
	t.Parallel()
	const owners = 64
	a := New[int](Range{2000, 2000 + owners - 1})
	var group sync.WaitGroup
	ports := make([]int32, owners)
	for owner := range owners {
		group.Go(func() { ports[owner], _ = a.Allocate(owner) })
	}
	group.Wait()
	seen := map[int32]int{}
	for owner, port := range ports {
		if other, ok := seen[port]; ok {
			t.Errorf("%d and %d both have port %d", owner, other, port)
		}
		seen[port] = owner
	}
	if port, ok := a.Allocate(owners); ok {
		t.Errorf("one owner too many got port %d", port)
	}
}
