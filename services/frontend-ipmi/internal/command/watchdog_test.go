// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"context"
	"encoding/hex"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// watched runs a test with a machine that runs, in a bubble of simulated time.
func watched(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.power.status = &powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, InstanceId: "first"}
		var background sync.WaitGroup
		b.target.Background = func(f func(context.Context)) { background.Go(func() { f(t.Context()) }) }
		f(t, b)
		b.target.Close()
		background.Wait()
	})
}

func TestWatchdogCommands(t *testing.T) {
	t.Parallel()
	runExchanges(t, map[string]exchange{
		"get, never set":        {user, "06 25", "00 0000000000000000"},
		"get with data":         {user, "06 25 00", "c7"},
		"reset, never set":      {operator, "06 22", "80"},
		"reset by a user":       {user, "06 22", "d4"},
		"reset with data":       {operator, "06 22 00", "c7"},
		"set":                   {operator, "06 24 040100106400", "00"},
		"set by a user":         {user, "06 24 040100106400", "d4"},
		"set cut off":           {operator, "06 24 0401001064", "c7"},
		"set, no such use":      {operator, "06 24 000100106400", "cc"},
		"set, no such action":   {operator, "06 24 040400106400", "cc"},
		"set, NMI":              {operator, "06 24 042101106400", "cc"},
		"set, interrupt before": {operator, "06 24 04310b106400", "cc"},
	})
}

// Each action, what is logged of it (generator 20h, Watchdog 2, event data) and the
// restart cause.
func TestWatchdog_expiry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set    string
		did    []powerv1.PowerAction
		record string
		cause  string
	}{
		"nothing":          {"0400000a6400", nil, "2000042300" + "6fc004ff", "00 0000"},
		"hard reset":       {"010100026400", []powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_FORCE_RESTART}, "2000042300" + "6fc101ff", "00 0400"},
		"power down":       {"0302000a6400", []powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_FORCE_OFF}, "2000042300" + "6fc203ff", "00 0400"},
		"power cycle":      {"0503000a6400", []powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_POWER_CYCLE}, "2000042300" + "6fc305ff", "00 0400"},
		"hard reset, mute": {"8401000a6400", []powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_FORCE_RESTART}, "", "00 0400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, b *bench) {
				b.send(t, session(operator), "06 24 "+tc.set)
				if got := b.send(t, session(operator), "06 22"); got != "00" {
					t.Fatalf("reset: %q", got)
				}
				time.Sleep(9900 * time.Millisecond)
				synctest.Wait()
				if len(b.power.actions()) > 0 || len(b.events.entries()) > 0 {
					t.Fatalf("too early: %v, %v", b.power.actions(), b.events.entries())
				}
				time.Sleep(200 * time.Millisecond)
				synctest.Wait()
				if diff := cmp.Diff(tc.did, b.power.actions()); diff != "" {
					t.Errorf("actions mismatch (-want +got):\n%s", diff)
				}
				var record string
				if len(b.events.entries()) > 0 {
					record = hex.EncodeToString(b.events.entries()[0].GetIpmiRecord()[7:])
				}
				if record != tc.record || len(b.events.entries()) > 1 {
					t.Errorf("%d entries, record %s, want %s", len(b.events.entries()), record, tc.record)
				}
				now := &powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON}
				if tc.did != nil {
					now.Operation = &powerv1.Operation{Id: "operation", Action: powerv1.PowerAction_POWER_ACTION_ON}
				}
				b.power.set(now, nil)
				if got := b.send(t, session(user), "00 07"); got != tc.cause {
					t.Errorf("restart cause: %q, want %q", got, tc.cause)
				}
			})
		})
	}
}

// The time of the interrupt is logged as one, and nothing is done then.
func TestWatchdog_preTimeout(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, b *bench) {
		b.send(t, session(operator), "06 24 043102006400")
		b.send(t, session(operator), "06 22")
		time.Sleep(8100 * time.Millisecond)
		synctest.Wait()
		if len(b.events.entries()) != 1 || hex.EncodeToString(b.events.entries()[0].GetIpmiRecord()[12:]) != "6fc834ff" || len(b.power.actions()) > 0 {
			t.Fatalf("%v, %v", b.events.entries(), b.power.actions())
		}
		if got := b.send(t, session(operator), "06 22"); got != "d5" {
			t.Errorf("reset after the interrupt: %q", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(b.events.entries()) != 2 || len(b.power.actions()) != 1 {
			t.Errorf("%v, %v", b.events.entries(), b.power.actions())
		}
	})
}

// A machine that is off, or was, is left alone.
func TestWatchdog_machineOff(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]*powerv1.PowerStatus{
		"off":         {State: powerv1.PowerState_POWER_STATE_OFF},
		"power cycle": {State: powerv1.PowerState_POWER_STATE_ON, InstanceId: "second"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, b *bench) {
				b.send(t, session(operator), "06 24 040300006400")
				b.send(t, session(operator), "06 22")
				b.power.set(now, nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(b.power.actions()) > 0 || len(b.events.entries()) > 0 {
					t.Errorf("%v, %v", b.power.actions(), b.events.entries())
				}
				if got := b.send(t, session(user), "06 25"); got != "00 0403000064000000" {
					t.Errorf("the timer: %q", got)
				}
			})
		})
	}
}

// Services that do not answer when the time comes are asked again.
func TestWatchdog_servicesDown(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, b *bench) {
		b.send(t, session(operator), "06 24 040300006400")
		b.send(t, session(operator), "06 22")
		running := b.power.status
		b.power.set(running, grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "down"))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(b.power.actions()) > 0 {
			t.Fatalf("%v", b.power.actions())
		}
		b.power.set(running, nil)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(b.power.actions()) != 1 {
			t.Errorf("%v, want a cycle", b.power.actions())
		}
	})
}

// A one-time boot override is for a restart that somebody asks for, unless
// parameter 3 says otherwise.
func TestWatchdog_bootOverride(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options []string
		want    bootv1.BootPersistence
	}{
		"one-time":                {[]string{"00 08 058004000000"}, bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED},
		"persistent":              {[]string{"00 08 05c004000000"}, bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS},
		"one-time, to be kept":    {[]string{"00 08 0304", "00 08 058004000000"}, bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE},
		"one-time, kept for else": {[]string{"00 08 031b", "00 08 058004000000"}, bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, b *bench) {
				for _, option := range tc.options {
					b.send(t, session(operator), option)
				}
				b.send(t, session(operator), "06 24 040100000100")
				b.send(t, session(operator), "06 22")
				time.Sleep(time.Second)
				synctest.Wait()
				now, _ := b.boot.Status(t.Context(), nil)
				if got := now.GetOverride().GetPersistence(); got != tc.want || len(b.power.actions()) != 1 {
					t.Errorf("override is %s, did %v", got, b.power.actions())
				}
			})
		})
	}
}
