// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// TestMoves: a status waits for all EndpointSlices and for its owner's answer, and
// no longer than moveTime.
func TestMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMoves(&queue{})
		a, b := registry.Ref{Name: "a"}, registry.Ref{Name: "b"}
		want := func(what string, ref registry.Ref, unanswered bool, want time.Duration) {
			t.Helper()
			if got := m.hold(ref, unanswered); got != want {
				t.Errorf("%s: waits for %v, want %v", what, got, want)
			}
		}
		want("nothing moves", a, false, 0)
		m.changed(a)
		m.changed(b)
		want("both move", a, true, moveTime)
		m.routed(a)
		time.Sleep(time.Second)
		want("the other moves still", a, false, moveTime-time.Second)
		m.routed(b)
		want("the owner has not answered", a, true, moveTime-time.Second)
		want("all is done", a, false, 0)
		m.changed(b)
		want("the next move", a, false, moveTime)
		time.Sleep(moveTime)
		want("that takes too long", a, true, 0)
		want("the wait begins anew", a, true, moveTime)
		m.forget(a)
		m.routed(b)
		want("forgotten", a, false, 0)
	})
}
