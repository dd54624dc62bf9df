// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package follow_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
)

func TestSend_slowReceiverGetsTheLastState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ref := hypervisor.Ref{Namespace: "default", Name: "vm"}
		hub := follow.NewHub()
		changes, cancel := hub.Follow(ref)
		defer cancel()
		state := 0
		var got []int
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- follow.Send(ctx, changes, func() (int, error) { return state, nil },
				func(a, b int) bool { return a == b },
				func(n int) error {
					time.Sleep(time.Second)
					got = append(got, n)
					return nil
				})
		}()
		synctest.Wait()
		for range 10 {
			state++
			hub.Changed(ref)
		}
		hub.Changed(hypervisor.Ref{Namespace: "default", Name: "another"})
		time.Sleep(time.Minute)
		hub.Changed(ref)
		time.Sleep(time.Minute)
		end()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want %v", err, context.Canceled)
		}
		if diff := cmp.Diff([]int{0, 10}, got); diff != "" {
			t.Errorf("sent states mismatch (-want +got)\n%s", diff)
		}
	})
}
