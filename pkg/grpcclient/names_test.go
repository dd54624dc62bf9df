// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Names are looked up every few seconds for as long as there is a connection.
func TestNames_lookedUpAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		times, closed := 0, false
		inner := manual.NewBuilderWithScheme("dns")
		inner.ResolveNowCallback = func(resolver.ResolveNowOptions) { times++ }
		inner.CloseCallback = func() { closed = true }
		r, err := names{inner}.Build(resolver.Target{}, nil, resolver.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		r.Close()
		time.Sleep(time.Minute)
		if times != 2 || !closed {
			t.Errorf("looked up %d times in 12 s, closed: %v", times, closed)
		}
	})
}

func TestNames_areThoseOfDNS(t *testing.T) {
	t.Parallel()
	if scheme := newNames().Scheme(); scheme != "dns" {
		t.Errorf("scheme is %s", scheme)
	}
}
