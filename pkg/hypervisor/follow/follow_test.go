// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package follow_test

import (
	"context"
	"errors"
	"sync/atomic"
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
		var state atomic.Int64
		var got []int64
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- follow.Send(ctx, changes, func() (int64, error) { return state.Load(), nil },
				func(a, b int64) bool { return a == b },
				func(n int64) error {
					time.Sleep(time.Second)
					got = append(got, n)
					return nil
				})
		}()
		synctest.Wait()
		for range 10 {
			state.Add(1)
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
		if diff := cmp.Diff([]int64{0, 10}, got); diff != "" {
			t.Errorf("sent states mismatch (-want +got)\n%s", diff)
		}
	})
}
