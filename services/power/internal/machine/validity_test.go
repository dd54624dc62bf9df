// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

// inForce tells whether a boot override is in force.
func (b *bed) inForce() bool {
	b.Helper()
	status, err := b.engine.BootStatus(ref)
	b.ok(err)
	return status.Override != nil && status.Override.Persistence != record.Disabled
}

func (b *bed) wantInForce(what string, want bool) {
	b.Helper()
	if got := b.inForce(); got != want {
		b.Fatalf("%s: override in force is %v, want %v", what, got, want)
	}
}

// TestValidity: an override that waits for a minute, and what makes it wait longer.
func TestValidity(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	once := record.Override{Target: record.TargetPXE, Persistence: record.Once, Validity: minute}
	for name, run := range map[string]func(b *bed){
		"a minute": func(b *bed) {
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			time.Sleep(59 * time.Second)
			b.wantInForce("before", true)
			time.Sleep(2 * time.Second)
			b.wantInForce("after", false)
			b.settle()
			b.orders(own)
		},
		"set again": func(b *bed) {
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			time.Sleep(50 * time.Second)
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			time.Sleep(50 * time.Second)
			b.wantInForce("after both", true)
			time.Sleep(11 * time.Second)
			b.wantInForce("a minute after the second", false)
		},
		"made to stay": func(b *bed) {
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			stays := once
			stays.Validity = 0
			b.ok(b.engine.SetOverride(b.Context(), ref, stays))
			time.Sleep(time.Hour)
			b.wantInForce("an hour later", true)
		},
		"persistent": func(b *bed) {
			always := once
			always.Persistence = record.Continuous
			b.ok(b.engine.SetOverride(b.Context(), ref, always))
			time.Sleep(time.Hour)
			b.wantInForce("an hour later", true)
		},
		"a power action meanwhile": func(b *bed) {
			b.do(transition.ActionOn)
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			time.Sleep(50 * time.Second)
			b.do(transition.ActionForceOff)
			time.Sleep(50 * time.Second)
			b.wantInForce("50 s after the action", true)
			b.do(transition.ActionOn)
			b.settle()
			b.wantInForce("used", false)
			if got := b.simulator.BootedFrom(ref); got != "default" {
				b.Errorf("booted from %s", got)
			}
		},
		"a process that comes later": func(b *bed) {
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			b.kill()
			time.Sleep(30 * time.Second)
			b.start(b.simulator, "another")
			time.Sleep(29 * time.Second)
			b.wantInForce("before", true)
			time.Sleep(2 * time.Second)
			b.wantInForce("after", false)
		},
		"a start that takes long": func(b *bed) {
			b.ok(b.engine.SetOverride(b.Context(), ref, once))
			for range 25 { // With pauses of up to 5 s.
				b.ok(b.simulator.FailNext(ref, simulator.VerbStart, hypervisor.ErrUnavailable))
			}
			began := time.Now()
			b.do(transition.ActionOn)
			if took := time.Since(began); took < minute {
				b.Fatalf("the start took %s", took)
			}
			b.settle() // The firmware takes its time.
			if got := b.simulator.BootedFrom(ref); got != "default" {
				b.Errorf("booted from %s", got)
			}
		},
	} {
		for _, admission := range []bool{false, true} {
			where := "/template"
			if admission {
				where = "/admission"
			}
			t.Run(name+where, func(t *testing.T) {
				t.Parallel()
				bubble(t, simulator.Spec{RunStrategy: hypervisor.RunStrategyManual}, func(b *bed) {
					b.admits = admission
					b.simulator.SetAdmission(admission)
					run(b)
				})
			})
		}
	}
}
