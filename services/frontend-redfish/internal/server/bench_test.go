// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"testing"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/fakebackend"
)

// BenchmarkIdleBMC reports what a BMC costs that nobody talks to: an HTTPS port
// with a certificate of its own, and one account. Heap and stacks of this
// process; the kernel's socket comes on top.
func BenchmarkIdleBMC(b *testing.B) {
	conn := fakebackend.New().Serve(b)
	s := startServer(b, Config{Listen: "127.0.0.1", Backend: backend.New(conn, conn, conn, conn), Log: slog.New(slog.DiscardHandler)})
	chain, key := selfSigned(b, "bmc")
	const n = 1000
	ports := make([]uint32, n)
	for i := range n {
		ports[i] = freePort(b)
	}
	for round := 0; b.Loop(); round++ {
		before := inUse()
		for i := range n {
			err := s.Apply(b.Context(), &registryv1.BMC{
				Bmc:      &referencev1.BMCReference{Namespace: "lab", Name: fmt.Sprintf("bmc-%d-%d", round, i)},
				Uuid:     bmcUUID,
				Accounts: []*registryv1.Account{account1(admin, password, registryv1.Role_ROLE_ADMINISTRATOR)},
				Redfish: &registryv1.RedfishEndpoint{
					Https:       &registryv1.Listener{Port: ports[i]},
					Certificate: &registryv1.Certificate{ChainPem: chain, PrivateKeyPem: key},
				},
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(inUse()-before)/n, "bytes/BMC")
		b.ReportMetric(0, "ns/op")
		b.StopTimer()
		for i := range n {
			s.Remove(&referencev1.BMCReference{Namespace: "lab", Name: fmt.Sprintf("bmc-%d-%d", round, i)})
		}
		b.StartTimer()
	}
}

func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkGetSystem is a read with a session over a kept connection, backend
// in memory included.
func BenchmarkGetSystem(b *testing.B) {
	bb := newBench(b)
	token := bb.do(request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":"correct horse"}`}).header.Get("X-Auth-Token")
	bb.server.cfg.Log = slog.New(slog.DiscardHandler)
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, bb.base+systemPath, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("X-Auth-Token", token)
		response, err := bb.client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			b.Fatal(response.Status)
		}
	}
}
