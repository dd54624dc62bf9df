// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// fleet is an engine on many machines.
func fleet(b *testing.B, machines int) (engine *machine.Engine, refs []hypervisor.Ref, stop func()) {
	b.Helper()
	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	for n := range machines {
		ref := hypervisor.Ref{Namespace: "default", Name: fmt.Sprintf("sim-%d", n)}
		if err := s.AddMachine(simulator.Spec{Ref: ref}); err != nil {
			b.Fatal(err)
		}
		refs = append(refs, ref)
	}
	engine = machine.New(machine.Config{Hypervisor: s, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = engine.Run(ctx) })
	return engine, refs, func() {
		cancel()
		running.Wait()
	}
}

// BenchmarkEngine_allOn switches 10,000 machines on at once.
func BenchmarkEngine_allOn(b *testing.B) {
	const machines = 10_000
	for b.Loop() {
		engine, refs, stop := fleet(b, machines)
		var clients sync.WaitGroup
		begin := time.Now()
		for _, ref := range refs {
			clients.Go(func() {
				status, err := engine.Transition(b.Context(), ref, transition.ActionOn, 2*time.Minute)
				if err != nil || status.Operation.Phase != record.Succeeded {
					b.Errorf("%s: %v, %v", ref, status, err)
				}
			})
		}
		clients.Wait()
		b.ReportMetric(machines/time.Since(begin).Seconds(), "operations/s")
		runtime.GC()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		b.ReportMetric(float64(memory.HeapAlloc)/machines, "B/machine")
		runtime.KeepAlive(engine)
		stop()
	}
}

// BenchmarkEngine_status reads the status of a machine, as each GetPower does.
func BenchmarkEngine_status(b *testing.B) {
	engine, refs, stop := fleet(b, 1)
	defer stop()
	if _, err := engine.Transition(b.Context(), refs[0], transition.ActionOn, time.Minute); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := engine.Status(refs[0]); err != nil {
			b.Fatal(err)
		}
	}
}
