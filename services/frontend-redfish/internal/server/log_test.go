// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const logPath = systemPath + "/LogServices/EventLog"

func TestEventLog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := b.get(logPath)
	if log.at("MaxNumberOfRecords") != 128.0 || log.at("OverWritePolicy") != "WrapsWhenFull" {
		t.Errorf("the log is %v", log.body)
	}
	if d := cmp.Diff([]string{logPath + "/Entries/7", logPath + "/Entries/8"}, b.get(logPath+"/Entries").memberIDs()); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
	// Its schema has the term OData.AutoExpand: the entries are in the collection.
	members, _ := b.get(logPath + "/Entries").at("Members").([]any)
	if entry, _ := members[0].(map[string]any); entry["Message"] != "The machine was powered on." {
		t.Errorf("the first entry in the collection is %v", members[0])
	}
	for id, want := range map[string]map[string]any{
		"7": {
			"EntryType": "Event", "EventId": "on-1", "Severity": "OK", "Created": "2026-01-02T03:04:05Z", "Message": "The machine was powered on.",
			"Originator": "admin from 192.0.2.1 over ipmi", "OriginatorType": "Client",
			"Links": map[string]any{"OriginOfCondition": map[string]any{"@odata.id": systemPath}},
		},
		"8": {
			"EntryType": "Event", "EventId": "login-1", "Severity": "Warning", "Created": "2026-01-02T03:04:06Z", "Message": "Logins failed.",
			"Originator": nil, "OriginatorType": nil,
			"Links": map[string]any{"OriginOfCondition": map[string]any{"@odata.id": "/redfish/v1/Managers/BMC"}},
		},
	} {
		a := b.get(logPath + "/Entries/" + id)
		for name, value := range want {
			if d := cmp.Diff(value, a.at(name)); d != "" {
				t.Errorf("%s of entry %s (-want +got):\n%s", name, id, d)
			}
		}
	}
	if a := b.get(logPath + "/Entries/6"); a.status != http.StatusNotFound {
		t.Errorf("an entry that is not there = %d", a.status)
	}
	if d := cmp.Diff([]string{logPath + "/Entries/8"}, b.get(queried(logPath+"/Entries", "$filter=Severity ne 'OK'")).memberIDs()); d != "" {
		t.Errorf("entries that are not OK (-want +got):\n%s", d)
	}

	clear, _ := log.at("Actions", "#LogService.ClearLog", "target").(string)
	refused := b.do(request{method: "POST", path: clear, body: `{"LogEntriesETag":"x"}`})
	if d := cmp.Diff([]string{"ActionParameterNotSupported"}, refused.messageIDs()); d != "" {
		t.Errorf("a parameter that is not taken (-want +got):\n%s", d)
	}
	for _, tc := range []struct {
		request request
		status  int
		left    int
	}{
		{request{method: "POST", path: clear, body: "{}", user: "reader", pass: "reader password"}, http.StatusForbidden, 2},
		{request{method: "POST", path: clear, body: `{"LogEntriesETag":"x"}`}, http.StatusBadRequest, 2},
		{request{method: "POST", path: clear, body: `{`}, http.StatusBadRequest, 2},
		{request{method: "POST", path: clear}, http.StatusNoContent, 0},
		{request{method: "POST", path: clear, body: "{}"}, http.StatusNoContent, 0},
	} {
		if a := b.do(tc.request); a.status != tc.status {
			t.Errorf("clearing with %q = %d, want %d", tc.request.body, a.status, tc.status)
		}
		if got := len(b.get(logPath + "/Entries").memberIDs()); got != tc.left {
			t.Errorf("after clearing with %q there are %d entries, want %d", tc.request.body, got, tc.left)
		}
	}
}
