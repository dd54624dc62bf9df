// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
