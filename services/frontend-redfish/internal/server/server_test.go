// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

func TestRoot_isServedWithoutLoginAndRedirect(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, path := range []string{
		"/redfish", "/redfish/", "/redfish/v1", "/redfish/v1/", "/redfish//v1/", "/redfish/v1/odata", "/redfish/v1/odata/",
		"/redfish/v1/$metadata", "/redfish/v1/$metadata/",
	} {
		if a := b.do(request{path: path, anonymous: true}); a.status != http.StatusOK {
			t.Errorf("GET %s = %d", path, a.status)
		}
	}
	a := b.do(request{path: "/redfish/v1", anonymous: true})
	if got := a.at("Links", "Sessions", "@odata.id"); got != "/redfish/v1/SessionService/Sessions" {
		t.Errorf("Links.Sessions = %v", got)
	}
	if got := a.at("UUID"); got != bmcUUID {
		t.Errorf("UUID = %v", got)
	}
}

func TestSystem_powerAndBoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.get("/redfish/v1/Systems/1/")
	if a.status != http.StatusOK || a.at("PowerState") != "On" || a.at("Name") != "lab/vm-1" {
		t.Fatalf("GET System = %d %s", a.status, a.raw)
	}
	a = b.do(request{method: "POST", path: "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", body: `{"ResetType":"ForceOff"}`})
	if a.status != http.StatusNoContent {
		t.Fatalf("Reset = %d %s", a.status, a.raw)
	}
	if diff := cmp.Diff([]powerv1.PowerAction{powerv1.PowerAction_POWER_ACTION_FORCE_OFF}, b.backend.Actions()); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if a = b.get("/redfish/v1/Systems/1"); a.at("PowerState") != "Off" {
		t.Errorf("PowerState = %v, want Off", a.at("PowerState"))
	}
	a = b.do(request{method: "PATCH", path: "/redfish/v1/Systems/1", body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`})
	if a.status != http.StatusOK || a.at("Boot", "BootSourceOverrideTarget") != "Pxe" || a.at("Boot", "BootSourceOverrideEnabled") != "Once" {
		t.Errorf("PATCH Boot = %d %s", a.status, a.raw)
	}
}

func TestSession_lifeCycle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, path := range []string{"/redfish/v1/SessionService/Sessions", "/redfish/v1/SessionService/Sessions/", "/redfish/v1/SessionService/Sessions/Members"} {
		a := b.do(request{method: "POST", path: path, anonymous: true, body: `{"UserName":"admin","Password":"correct horse"}`})
		token, location := a.header.Get("X-Auth-Token"), a.header.Get("Location")
		if a.status != http.StatusCreated || token == "" || location == "" || location != a.at("@odata.id") {
			t.Fatalf("POST %s = %d %v %s", path, a.status, a.header, a.raw)
		}
		if strings.Contains(string(a.raw), token) || strings.Contains(location, token) {
			t.Error("the token is told elsewhere than in its header")
		}
		if a := b.do(request{path: location, token: token}); a.status != http.StatusOK {
			t.Errorf("GET session = %d", a.status)
		}
		if a := b.do(request{method: "DELETE", path: location, token: token}); a.status != http.StatusNoContent {
			t.Errorf("DELETE session = %d", a.status)
		}
		if a := b.do(request{path: "/redfish/v1/Systems/1", token: token}); a.status != http.StatusUnauthorized {
			t.Errorf("GET with the token of an ended session = %d", a.status)
		}
	}
	if log := b.log.String(); strings.Contains(log, password) {
		t.Error("the log has the password")
	}
}
