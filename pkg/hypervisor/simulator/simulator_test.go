// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
)

func refOf(n int) hypervisor.Ref {
	return hypervisor.Ref{Namespace: "default", Name: fmt.Sprintf("sim-%d", n)}
}

// BenchmarkMachines measures what machines at rest cost.
func BenchmarkMachines(b *testing.B) {
	const machines = 10_000
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyHalted, hypervisor.RunStrategyAlways} {
		b.Run(string(strategy), func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				goroutines := runtime.NumGoroutine()
				s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
				for n := range machines {
					if err := s.AddMachine(simulator.Spec{Ref: refOf(n), RunStrategy: strategy}); err != nil {
						b.Fatal(err)
					}
				}
				if strategy == hypervisor.RunStrategyAlways {
					waitRunning(b, s, machines)
				}
				time.Sleep(200 * time.Millisecond)
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/machines, "B/machine")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
				runtime.KeepAlive(s)
			}
		})
	}
}

func waitRunning(b *testing.B, s *simulator.Simulator, machines int) {
	b.Helper()
	for range 1000 {
		all, err := s.List()
		if err != nil {
			b.Fatal(err)
		}
		running := 0
		for _, m := range all {
			if m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning {
				running++
			}
		}
		if running == machines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatal("not all machines run")
}

func BenchmarkGet(b *testing.B) {
	s := simulator.New(simulator.Config{})
	if err := s.AddMachine(simulator.Spec{Ref: refOf(0)}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Get(refOf(0)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMACsAndUUIDsAreUniqueAndStay(t *testing.T) {
	t.Parallel()
	const machines = 10_000
	seen := map[string]hypervisor.Ref{}
	s, again := simulator.New(simulator.Config{}), simulator.New(simulator.Config{})
	for n := range machines {
		for _, sim := range []*simulator.Simulator{s, again} {
			if err := sim.AddMachine(simulator.Spec{Ref: refOf(n)}); err != nil {
				t.Fatal(err)
			}
		}
		m, err := s.Get(refOf(n))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{m.Hardware.Interfaces[0].MAC, m.Firmware.UUID, m.Firmware.Serial, m.UID} {
			if other, ok := seen[id]; ok {
				t.Errorf("%s and %s both have %s", other, m.Ref, id)
			}
			seen[id] = m.Ref
		}
		o, err := again.Get(refOf(n))
		if err != nil {
			t.Fatal(err)
		}
		if m.Hardware.Interfaces[0].MAC != o.Hardware.Interfaces[0].MAC || m.Firmware.UUID != o.Firmware.UUID || m.Firmware.Serial != o.Firmware.Serial {
			t.Errorf("%s is another one in the next run", m.Ref)
		}
	}
}

// TestConsole_namesTheDevice: the guest's output says what it was booted from.
func TestConsole_namesTheDevice(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec simulator.Spec
		want string
		text string
	}{
		"UEFI disk": {simulator.Spec{}, "rootdisk", "BdsDxe: starting Boot0001 \"UEFI Hard Drive\" [disk rootdisk]"},
		"BIOS disk": {simulator.Spec{Mode: hypervisor.FirmwareBIOS}, "rootdisk", "Booting from Hard Disk... [disk rootdisk]"},
		"network first": {
			simulator.Spec{
				Disks:      []simulator.DiskSpec{{Name: "disk", Order: 2}},
				Interfaces: []simulator.InterfaceSpec{{Name: "nic", Order: 1, MAC: "02:00:00:00:00:01"}},
			},
			"nic", "UEFI PXEv4 (MAC:02:00:00:00:00:01)",
		},
		"an empty tray falls through": {
			simulator.Spec{
				Mode:       hypervisor.FirmwareBIOS,
				Trays:      []simulator.TraySpec{{Name: "empty", Order: 1}, {Name: "full", Order: 3, Volume: "iso"}},
				Disks:      []simulator.DiskSpec{{Name: "disk", Order: 2, Blank: true}},
				Interfaces: []simulator.InterfaceSpec{{Name: "nic", Order: 4}},
			},
			"full", "Booting from DVD/CD... [cdrom full: iso]",
		},
		"an interface without order does not boot": {
			simulator.Spec{
				Disks:      []simulator.DiskSpec{{Name: "disk", Blank: true}},
				Interfaces: []simulator.InterfaceSpec{{Name: "nic"}},
			},
			"", "No bootable option",
		},
		"disks without order are tried in theirs": {
			simulator.Spec{Disks: []simulator.DiskSpec{{Name: "one", Blank: true}, {Name: "two"}}, Interfaces: []simulator.InterfaceSpec{}},
			"two", "[disk two]",
		},
		"kernel": {simulator.Spec{KernelBoot: true}, "kernel", "kernelBoot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := simulator.New(simulator.Config{})
				ref := refOf(0)
				test.spec.Ref = ref
				test.spec.RunStrategy = hypervisor.RunStrategyManual
				if err := s.AddMachine(test.spec); err != nil {
					t.Fatal(err)
				}
				if err := s.Start(t.Context(), ref); err != nil {
					t.Fatal(err)
				}
				for {
					time.Sleep(10 * time.Millisecond)
					if m, err := s.Get(ref); err != nil {
						t.Fatal(err)
					} else if m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning {
						break
					}
				}
				conn, err := s.OpenConsole(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				var output []byte
				go func() {
					buffer := make([]byte, 100)
					for {
						n, err := conn.Read(buffer)
						if err != nil {
							return
						}
						output = append(output, buffer[:n]...)
					}
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := s.BootedFrom(ref); got != test.want {
					t.Errorf("booted from %q, want %q", got, test.want)
				}
				if !bytes.Contains(output, []byte(test.text)) {
					t.Errorf("console says %q, want it to have %q", output, test.text)
				}
				if bytes.Contains(output, []byte("sim-0 login: ")) != (test.want != "") {
					t.Errorf("console says %q", output)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				synctest.Wait()
			})
		})
	}
}

// TestBackOff: KubeVirt keeps back what starts by itself, and nothing that
// somebody asks for.
func TestBackOff(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[hypervisor.RunStrategy]time.Duration{
		// Three failures cost 1, 4 and 9 units.
		hypervisor.RunStrategyAlways: 14 * 10 * time.Second,
		hypervisor.RunStrategyManual: 0,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := simulator.New(simulator.Config{})
				if err := s.AddMachine(simulator.Spec{Ref: refOf(0), RunStrategy: strategy}); err != nil {
					t.Fatal(err)
				}
				if err := s.FailStarts(refOf(0), 3); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				for {
					m, err := s.Get(refOf(0))
					if err != nil {
						t.Fatal(err)
					}
					if m.Instance != nil && m.Instance.Phase == hypervisor.PhaseRunning {
						break
					}
					if strategy == hypervisor.RunStrategyManual && !m.StartQueued && (m.Instance == nil || m.Instance.Phase.Final()) {
						if err := s.Start(t.Context(), refOf(0)); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
				// Four starts of 1.3 s, and what is left of three instances.
				if took := time.Since(begin); took < want || took > want+10*time.Second {
					t.Errorf("the fourth instance ran after %s, want about %s", took, want)
				}
			})
		})
	}
}
