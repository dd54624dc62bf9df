// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package follow_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
)

// Each subscriber is told of each change until it cancels, which it may do while it
// is being told; equal functions are two subscribers.
func TestSubscribers(t *testing.T) {
	t.Parallel()
	var s follow.Subscribers
	one, two := hypervisor.Ref{Namespace: "lab", Name: "one"}, hypervisor.Ref{Namespace: "lab", Name: "two"}
	var all, first []hypervisor.Ref
	note := func(ref hypervisor.Ref) { all = append(all, ref) }
	s.Changed(one)
	cancelA := s.Subscribe(note)
	cancelB := s.Subscribe(note)
	var cancelFirst func()
	cancelFirst = s.Subscribe(func(ref hypervisor.Ref) {
		first = append(first, ref)
		cancelFirst()
	})
	s.Changed(one)
	cancelA()
	cancelA()
	s.Changed(two)
	cancelB()
	s.Changed(one)
	if d := cmp.Diff([]hypervisor.Ref{one, one, two}, all); d != "" {
		t.Errorf("two subscribers (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]hypervisor.Ref{one}, first); d != "" {
		t.Errorf("one that cancels (-want +got):\n%s", d)
	}
}
