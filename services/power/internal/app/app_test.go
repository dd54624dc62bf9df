// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/hypervisor/backend/backendtest"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/power/internal/app"
)

var bmc = &referencev1.BMCReference{Namespace: "default", Name: "sim-0"}

// get reads the status, also from a program that is just starting again.
func get(t *testing.T, client powerv1.PowerServiceClient) *powerv1.PowerStatus {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		response, err := client.GetPower(t.Context(), &powerv1.GetPowerRequest{Bmc: bmc})
		switch {
		case err == nil:
			return response.GetStatus()
		case status.Code(err) != codes.Unavailable || time.Now().After(end):
			t.Fatal(err)
		}
	}
}

// TestRestart: a program that goes while it cycles a machine, and its successor
// that finishes the cycle.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := backendtest.New(t)
	stop := s.Start(t, app.New)
	client := powerv1.NewPowerServiceClient(s.Dial(t))
	act := func(action powerv1.PowerAction) {
		t.Helper()
		if _, err := client.TransitionPower(t.Context(), &powerv1.TransitionPowerRequest{Bmc: bmc, Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(want powerv1.PowerState) *powerv1.PowerStatus {
		t.Helper()
		for range 3000 {
			now := get(t, client)
			if now.GetState() == want && now.GetOperation().GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY {
				return now
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("machine is %v, want %s", get(t, client), want)
		return nil
	}
	act(powerv1.PowerAction_POWER_ACTION_ON)
	first := until(powerv1.PowerState_POWER_STATE_ON)
	for range 3 {
		act(powerv1.PowerAction_POWER_ACTION_POWER_CYCLE)
		stop()
		stop = s.Start(t, app.New)
		now := until(powerv1.PowerState_POWER_STATE_ON)
		if now.GetInstanceId() == first.GetInstanceId() || now.GetOperation().GetPhase() != powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED {
			t.Errorf("after the restart: %v", now)
		}
		first = now
	}
	stop()
	stops := 0
	for _, verb := range s.Simulator.Done(backendtest.Machine) {
		if verb == simulator.VerbStop {
			stops++
		}
	}
	if stops != 3 {
		t.Errorf("three cycles stopped the machine %d times", stops)
	}
}

func TestREST(t *testing.T) {
	t.Parallel()
	s := backendtest.New(t)
	defer s.Start(t, app.New)()
	const path = "/v1/namespaces/default/bmcs/sim-0"
	for name, test := range map[string]struct {
		method, path, bearer, body string
		code                       int
		want                       string
	}{
		"power":         {http.MethodGet, path + "/power", backendtest.Token, "", http.StatusOK, `"state":"POWER_STATE_OFF"`},
		"inventory":     {http.MethodGet, path + "/inventory", backendtest.Token, "", http.StatusOK, `"machine_name":"sim-0"`},
		"boot":          {http.MethodGet, path + "/boot", backendtest.Token, "", http.StatusOK, `"BOOT_TARGET_PXE"`},
		"no token":      {http.MethodGet, path + "/power", "", "", http.StatusUnauthorized, "UNAUTHENTICATED"},
		"wrong token":   {http.MethodGet, path + "/power", "guess", "", http.StatusUnauthorized, "UNAUTHENTICATED"},
		"no such BMC":   {http.MethodGet, "/v1/namespaces/default/bmcs/nobody/power", backendtest.Token, "", http.StatusNotFound, "BMC_NOT_FOUND"},
		"invalid BMC":   {http.MethodGet, "/v1/namespaces/default/bmcs/No_Body/power", backendtest.Token, "", http.StatusBadRequest, "INVALID_REQUEST"},
		"cycle, is off": {http.MethodPost, path + "/power", backendtest.Token, `{"action":"POWER_ACTION_POWER_CYCLE"}`, http.StatusBadRequest, "INVALID_POWER_STATE"},
		"not JSON":      {http.MethodPost, path + "/power", backendtest.Token, `{`, http.StatusBadRequest, ""},
		"no such path":  {http.MethodGet, path + "/weather", backendtest.Token, "", http.StatusNotFound, ""},
	} {
		code, content := s.Call(t, test.method, test.path, test.bearer, test.body)
		if code != test.code || !strings.Contains(content, test.want) {
			t.Errorf("%s: got %d %s, want %d with %s", name, code, content, test.code, test.want)
		}
	}
	code, content := s.Call(t, http.MethodPost, path+"/power", backendtest.Token, `{"action":"POWER_ACTION_ON","wait":"30s"}`)
	if code != http.StatusOK || !strings.Contains(content, "POWER_STATE_ON") {
		t.Errorf("on: got %d %s", code, content)
	}
}
