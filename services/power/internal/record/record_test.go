// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

func TestRecord_roundTrip(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 9, 0, 0, 123, time.UTC)
	want := &record.Record{
		Power: record.Power{
			RunStrategy: hypervisor.RunStrategyAlways,
			Operation: &record.Operation{
				ID: "id", Action: transition.ActionPowerCycle, Goal: transition.GoalCycle, Phase: record.UnderWay,
				InstanceUID: "uid", Start: now, Deadline: now, Holder: "holder", Lease: now,
				Step: transition.StopAtOnce, StepTime: now,
			},
		},
		Override: &record.Override{
			ID: "override", Target: record.TargetPXE, Persistence: record.Once, Flags: []byte{1, 2}, Stage: record.Armed,
			Own: map[string]int{"disk": 1, "nic": 0}, Planned: map[string]int{"disk": 2, "nic": 1},
		},
	}
	document, err := want.Document()
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.Parse(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(record.Record{})); diff != "" {
		t.Errorf("record mismatch (-want +got)\n%s", diff)
	}
}

func TestRecord_keepsWhatOthersWrote(t *testing.T) {
	t.Parallel()
	rec, err := record.Parse([]byte(`{"media":{"CD1":{"url":"http://x"}},"power":{"runStrategy":"Once"},"later":[1,2]}`))
	if err != nil {
		t.Fatal(err)
	}
	rec.Power.RunStrategy = ""
	document, err := rec.Document()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(document, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"media": map[string]any{"CD1": map[string]any{"url": "http://x"}}, "later": []any{1.0, 2.0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document mismatch (-want +got)\n%s", diff)
	}
}

func TestRecord_nothingIsNoDocument(t *testing.T) {
	t.Parallel()
	rec, err := record.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	if document, err := rec.Document(); document != nil || err != nil {
		t.Errorf("an empty record is %q, %v", document, err)
	}
}

func TestParse_garbage(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"x", "[]", `{"power":1}`, `{"boot":"x"}`} {
		if _, err := record.Parse([]byte(document)); err == nil {
			t.Errorf("%s was accepted", document)
		}
	}
}

// TestRecord_view: what people are told is what the record says.
func TestRecord_view(t *testing.T) {
	t.Parallel()
	next := &record.Override{
		ID: "next", Target: record.TargetCD, Persistence: record.Continuous, Mode: hypervisor.FirmwareUEFI, Stage: record.Arming,
		InstanceUID: "instance", OwnMode: hypervisor.FirmwareBIOS,
	}
	viewOfNext := &bootoverride.View{
		ID: "next", Device: hypervisor.DeviceCDROM, Continuous: true, Mode: hypervisor.FirmwareUEFI,
		InstanceUID: "instance", OwnMode: hypervisor.FirmwareBIOS,
	}
	bypassed := &bootoverride.Bypassed{ID: "lost", Time: time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)}
	for name, test := range map[string]struct {
		record record.Record
		want   *bootoverride.View
	}{
		"no override": {record.Record{Power: record.Power{RunStrategy: hypervisor.RunStrategyAlways}}, nil},
		"in the template": {
			record.Record{Override: &record.Override{ID: "a", Target: record.TargetHDD, Persistence: record.Once, Stage: record.Armed}, Bypassed: bypassed},
			&bootoverride.View{ID: "a", Device: hypervisor.DeviceDisk},
		},
		"at admission": {
			record.Record{Override: &record.Override{
				ID: "a", Target: record.TargetPXE, Persistence: record.Once, Stage: record.Armed, Strategy: record.Admission,
			}},
			&bootoverride.View{ID: "a", Device: hypervisor.DeviceInterface, ByAdmission: true},
		},
		"another one's turn": {
			record.Record{Override: &record.Override{ID: "a", Target: record.TargetPXE, Persistence: record.Once, Stage: record.Restoring, Next: next}}, viewOfNext,
		},
		"used up": {
			record.Record{Override: &record.Override{ID: "a", Target: record.TargetPXE, Persistence: record.Once, Stage: record.Restoring}}, nil,
		},
		"over": {
			record.Record{Override: &record.Override{ID: "a", Target: record.TargetNone, Persistence: record.Disabled, Stage: record.Idle}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			document, err := test.record.Document()
			if err != nil {
				t.Fatal(err)
			}
			got, lost, err := bootoverride.ViewOf(document)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("view of %s mismatch (-want +got):\n%s", document, diff)
			}
			if diff := cmp.Diff(test.record.Bypassed, lost); diff != "" {
				t.Errorf("view of %s mismatch of what came to nothing (-want +got):\n%s", document, diff)
			}
		})
	}
}
