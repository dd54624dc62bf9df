// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/pkg/hypervisor"
)

var update = flag.Bool("update", false, "write what the snapshots are to testdata")

// load reads an object; nil when there is no such file.
func load[T any](t *testing.T, path string) *T {
	t.Helper()
	document, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return object
}

// TestSnapshot compares the machines that objects make with those in testdata,
// and makes sure that nothing of them is in what the caches drop.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/snapshot/*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			vm := load[kvv1.VirtualMachine](t, filepath.Join(dir, "vm.yaml"))
			vmi := load[kvv1.VirtualMachineInstance](t, filepath.Join(dir, "vmi.yaml"))
			got := snapshot(vm, vmi, nil)

			trimmed := trimVM(vm)
			var trimmedVMI *kvv1.VirtualMachineInstance
			if vmi != nil {
				trimmedVMI = trimVMI(vmi)
			}
			if diff := cmp.Diff(got, snapshot(trimmed, trimmedVMI, nil)); diff != "" {
				t.Errorf("the caches drop what the machine is made of (-whole +trimmed):\n%s", diff)
			}

			golden := filepath.Join(dir, "machine.json")
			if *update {
				document, err := json.MarshalIndent(got, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, append(document, '\n'), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			document, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			var want hypervisor.Machine
			if err := json.Unmarshal(document, &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("machine mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSnapshot_power_state(t *testing.T) {
	t.Parallel()
	condition := func(kind kvv1.VirtualMachineInstanceConditionType) []kvv1.VirtualMachineInstanceCondition {
		return []kvv1.VirtualMachineInstanceCondition{{Type: kind, Status: "True"}}
	}
	for name, c := range map[string]struct {
		change func(*kvv1.VirtualMachineInstance)
		want   hypervisor.Instance
	}{
		"a new instance has no phase yet": {
			change: func(vmi *kvv1.VirtualMachineInstance) { vmi.Status.Phase = kvv1.VmPhaseUnset },
			want:   hypervisor.Instance{Phase: hypervisor.PhasePending},
		},
		"lost node": {
			change: func(vmi *kvv1.VirtualMachineInstance) { vmi.Status.Phase = kvv1.Unknown },
			want:   hypervisor.Instance{Phase: hypervisor.PhaseUnknown},
		},
		"paused": {
			change: func(vmi *kvv1.VirtualMachineInstance) {
				vmi.Status.Conditions = condition(kvv1.VirtualMachineInstancePaused)
			},
			want: hypervisor.Instance{Phase: hypervisor.PhaseRunning, Paused: true},
		},
		"an ended guest is not paused, whatever the conditions still say": {
			change: func(vmi *kvv1.VirtualMachineInstance) {
				vmi.Status.Phase = kvv1.Failed
				vmi.Status.Conditions = condition(kvv1.VirtualMachineInstancePaused)
			},
			want: hypervisor.Instance{Phase: hypervisor.PhaseFailed},
		},
		"shutting down": {
			change: func(vmi *kvv1.VirtualMachineInstance) {
				vmi.DeletionTimestamp = &vmi.CreationTimestamp
				vmi.Spec.TerminationGracePeriodSeconds = pointer[int64](0)
			},
			want: hypervisor.Instance{Phase: hypervisor.PhaseRunning, Deleting: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi := testVMI("one", kvv1.Running)
			vmi.Spec.TerminationGracePeriodSeconds = nil
			c.change(vmi)
			want := c.want
			want.UID = "one"
			want.Mode = hypervisor.FirmwareBIOS
			want.BootOrder = map[string]int{"root": 1, "default": 2}
			if !want.Deleting {
				want.GracePeriod = 30 * time.Second
			}
			if diff := cmp.Diff(&want, snapshot(testVM(on), vmi, nil).Instance); diff != "" {
				t.Errorf("instance mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSnapshot_remembers_the_last_instance: the MAC addresses that KubeVirt made
// up, and what an instance type and a preference had decided.
func TestSnapshot_remembers_the_last_instance(t *testing.T) {
	t.Parallel()
	dir := "testdata/snapshot/instancetype/"
	vm := load[kvv1.VirtualMachine](t, dir+"vm.yaml")
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: "default"}}
	vmi := load[kvv1.VirtualMachineInstance](t, dir+"vmi.yaml")
	before := snapshot(vm, nil, nil)
	if before.Firmware.Mode != "" || before.Hardware.Sockets != 0 || before.Hardware.Interfaces[0].MAC != "" {
		t.Errorf("the machine tells what nobody knows: %+v, %+v", before.Firmware, before.Hardware)
	}
	seen := sight(vmi, nil)
	after := snapshot(vm, nil, seen)
	if after.Firmware.Mode != hypervisor.FirmwareUEFI {
		t.Errorf("mode is %q", after.Firmware.Mode)
	}
	if h := after.Hardware; h.Sockets != 2 || h.MemoryBytes != 4<<30 || h.Interfaces[0].MAC != "52:54:00:00:00:09" {
		t.Errorf("hardware is %+v", h)
	}
	if again := sight(vmi, seen); again != seen {
		t.Error("the same instance was seen anew")
	}
	if snapshot(vm, vmi, seen).OutOfDate() {
		t.Error("the instance is out of date")
	}
}

// TestSnapshot_long_grace_periods are as long as a duration can be, never
// shorter than they were meant.
func TestSnapshot_long_grace_periods(t *testing.T) {
	t.Parallel()
	for _, seconds := range []int64{9_223_372_036, 10_000_000_000, 20_000_000_000, math.MaxInt64} {
		vm := testVM(on)
		vm.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds
		if got := snapshot(vm, nil, nil).GracePeriod; got < 290*365*24*time.Hour {
			t.Errorf("%d s became %s", seconds, got)
		}
	}
}
