// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulatortest puts the simulator under the contract suite.
package simulatortest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
)

// Bench is a bench whose machines s simulates and h reaches: s itself, or what
// stands between.
func Bench(s *simulator.Simulator, h hypervisor.Hypervisor) contract.Bench {
	var count atomic.Int64
	return contract.Bench{
		Name:       "simulator",
		Hypervisor: h,
		NewMachine: func(t *testing.T, spec contract.Spec) hypervisor.Ref {
			t.Helper()
			name := spec.Name
			if name == "" {
				name = fmt.Sprintf("machine-%d", count.Add(1))
			}
			ref := hypervisor.Ref{Namespace: "default", Name: name}
			if err := s.AddMachine(machine(ref, spec)); err != nil {
				t.Fatal(err)
			}
			// Where there is a connection between, the machine takes a moment to
			// show.
			for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
				_, err := h.Get(ref)
				if err == nil {
					return ref
				}
				if time.Now().After(end) {
					t.Fatalf("new machine does not show: %v", err)
				}
			}
		},
		DeleteMachine: s.Delete,
		Migrate:       s.Migrate,
		Template: func(ref hypervisor.Ref) (string, error) {
			m, err := s.Get(ref)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("run strategy %s\ngrace period %s\nfirmware %+v\ndevices %+v\n", m.RunStrategy, m.GracePeriod, m.Firmware, m.Devices), nil
		},
		Guest: contract.Guest{
			PowerOff: s.PowerOffGuest, Crash: s.CrashGuest, Reboot: s.RebootGuest,
			BootedFrom: func(ref hypervisor.Ref) (string, error) { return s.BootedFrom(ref), nil },
			Echoes:     true,
		},
		Timeout:    timeout,
		Quiet:      100 * time.Millisecond,
		ShortGrace: 30 * time.Millisecond,
		ImageURL:   "http://images.example/one.iso",
		ImageURL2:  "http://images.example/two.iso",
	}
}

// Slow makes a bench one of realistic delays, which takes simulated time.
func Slow(bench contract.Bench) contract.Bench {
	bench.Timeout, bench.Quiet, bench.ShortGrace = time.Hour, 5*time.Second, 5*time.Second
	return bench
}

const timeout = 10 * time.Second

// machine is the simulator's spec of what the suite asks for.
func machine(ref hypervisor.Ref, spec contract.Spec) simulator.Spec {
	s := simulator.Spec{
		Ref:             ref,
		RunStrategy:     spec.RunStrategy,
		GracePeriod:     spec.GracePeriod,
		KernelBoot:      spec.KernelBoot,
		Agent:           spec.Agent,
		IgnoreACPI:      spec.IgnoreACPI,
		NoSerialConsole: spec.NoSerialConsole,
		Disks:           []simulator.DiskSpec{},
		Trays:           []simulator.TraySpec{},
		Interfaces:      []simulator.InterfaceSpec{},
	}
	if spec.Running != nil {
		// The field is KubeVirt's; what it means is the run strategy.
		s.RunStrategy = hypervisor.RunStrategyHalted
		if *spec.Running {
			s.RunStrategy = hypervisor.RunStrategyAlways
		}
	}
	devices := spec.Devices
	if devices == nil {
		devices = contract.Devices()
	}
	for _, d := range devices {
		switch d.Kind {
		case hypervisor.DeviceDisk:
			s.Disks = append(s.Disks, simulator.DiskSpec{Name: d.Name, Order: d.Order})
		case hypervisor.DeviceCDROM:
			s.Trays = append(s.Trays, simulator.TraySpec{Name: d.Name, Order: d.Order, Volume: d.Volume})
		case hypervisor.DeviceInterface:
			s.Interfaces = append(s.Interfaces, simulator.InterfaceSpec{Name: d.Name, Order: d.Order})
		}
	}
	return s
}
