// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package testport

import (
	"fmt"
	"net"
	"sync"
	"testing"
)

func TestFree_givesNoPortTwice(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				port := Free(t)
				mu.Lock()
				if seen[port] {
					t.Errorf("port %d was given twice", port)
				}
				seen[port] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestFreeRow_isFreeForBothProtocols(t *testing.T) {
	t.Parallel()
	const n = 50
	from := FreeRow(t, n)
	for port := from; port < from+n; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		u, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = u.Close() })
	}
}

// A row that is longer than a zone comes from all of them.
func TestFreeRow_longerThanAZone(t *testing.T) {
	t.Parallel()
	handedOut.Lock()
	defer handedOut.Unlock()
	if _, ok := find(first, zoneSize, zoneSize+1); ok {
		t.Error("a zone has given more ports than it has")
	}
}

func TestHostFor(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"https://127.0.0.1:6443", "https://127.0.0.1/prefix"} {
		if got := HostFor(t, server); got != "127.0.0.1" {
			t.Errorf("HostFor(%s) = %s", server, got)
		}
	}
}
