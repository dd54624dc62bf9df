// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

const (
	systemPath  = "/redfish/v1/Systems/1"
	resetPath   = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"
	sessionPath = "/redfish/v1/SessionService/Sessions"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	big := `{"x":"` + strings.Repeat("a", maxBodyBytes) + `"}`
	for name, tc := range map[string]struct {
		request request
		status  int
		ids     []string
		header  map[string]string
	}{
		"no credentials": {
			request{path: systemPath, anonymous: true},
			401,
			[]string{"NoValidSession"},
			map[string]string{"WWW-Authenticate": `Basic realm="Redfish"`},
		},
		"no credentials, unknown path":   {request{path: "/redfish/v1/Nothing", anonymous: true}, 401, []string{"NoValidSession"}, nil},
		"no credentials, unknown method": {request{path: systemPath, method: "PUT", anonymous: true}, 401, []string{"NoValidSession"}, nil},
		"wrong password":                 {request{path: systemPath, user: admin, pass: "wrong"}, 401, []string{"ResourceAtUriUnauthorized"}, map[string]string{"WWW-Authenticate": `Basic realm="Redfish"`}},
		"unknown user":                   {request{path: systemPath, user: "nobody", pass: "wrong"}, 401, []string{"ResourceAtUriUnauthorized"}, map[string]string{"WWW-Authenticate": `Basic realm="Redfish"`}},
		"an account for IPMI only":       {request{path: systemPath, user: "ipmi-only", pass: "ipmi password"}, 401, []string{"ResourceAtUriUnauthorized"}, nil},
		"a made-up token":                {request{path: systemPath, token: "nonsense"}, 401, []string{"NoValidSession"}, nil},
		"another scheme": {
			request{path: systemPath, anonymous: true, header: http.Header{"Authorization": {"Bearer x"}}}, 401, []string{"NoValidSession"}, nil,
		},
		"login with a wrong password": {
			request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":"wrong"}`}, 401, []string{"ResourceAtUriUnauthorized"}, nil,
		},
		"login without a password": {
			request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin"}`}, 400, []string{"PropertyMissing"}, nil,
		},
		"login with a number as password": {
			request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":1234}`}, 400, []string{"PropertyValueTypeError"}, nil,
		},
		"login without a body": {request{method: "POST", path: sessionPath, anonymous: true}, 400, []string{"MalformedJSON"}, nil},
		"malformed JSON":       {request{method: "POST", path: resetPath, body: `{"ResetType":`}, 400, []string{"MalformedJSON"}, nil},
		"too large": {
			request{method: "POST", path: resetPath, body: big}, 413, []string{"PayloadTooLarge"}, nil,
		},
		"a form instead of JSON": {
			request{method: "POST", path: resetPath, body: `ResetType=On`, header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}},
			415,
			[]string{"HeaderInvalid"},
			nil,
		},
		"a body that is compressed": {
			request{method: "POST", path: resetPath, body: `{"ResetType":"On"}`, header: http.Header{"Content-Encoding": {"gzip"}}},
			415,
			[]string{"HeaderInvalid"},
			map[string]string{"Accept-Encoding": "identity"},
		},
		"a body that is compressed after all": {
			request{method: "POST", path: resetPath, body: `{"ResetType":"On"}`, header: http.Header{"Content-Encoding": {"identity", "identity, BR"}}},
			415,
			[]string{"HeaderInvalid"},
			nil,
		},
		"a name twice": {
			request{method: "POST", path: resetPath, body: `{"ResetType":"On","ResetType":"ForceOff"}`}, 400, []string{"MalformedJSON"}, nil,
		},
		"a name twice, spelt in two ways": {
			request{method: "POST", path: resetPath, body: `{"ResetType":"On","Reset\u0054ype":"ForceOff"}`}, 400, []string{"MalformedJSON"}, nil,
		},
		"a name twice, inside": {
			request{method: "PATCH", path: systemPath, body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideTarget":"Cd"}}`}, 400, []string{"MalformedJSON"}, nil,
		},
		"no such resource":     {request{path: "/redfish/v1/Systems/2"}, 404, []string{"ResourceMissingAtURI"}, nil},
		"no such member":       {request{path: systemPath + "/Processors/99"}, 404, []string{"ResourceMissingAtURI"}, nil},
		"no such session":      {request{path: sessionPath + "/x"}, 404, []string{"ResourceMissingAtURI"}, nil},
		"outside the tree":     {request{path: "/"}, 404, []string{"ResourceMissingAtURI"}, nil},
		"upwards":              {request{path: "/redfish/v1/../../etc/passwd"}, 404, []string{"ResourceMissingAtURI"}, nil},
		"DELETE of the system": {request{method: "DELETE", path: systemPath}, 405, []string{"OperationNotAllowed"}, map[string]string{"Allow": "GET, HEAD, OPTIONS, PATCH"}},
		"PUT of the system":    {request{method: "PUT", path: systemPath, body: "{}"}, 405, []string{"OperationNotAllowed"}, map[string]string{"Allow": "GET, HEAD, OPTIONS, PATCH"}},
		"GET of an action":     {request{path: resetPath}, 405, []string{"OperationNotAllowed"}, map[string]string{"Allow": "OPTIONS, POST"}},
		"POST to the root":     {request{method: "POST", path: "/redfish/v1/", body: "{}"}, 405, []string{"OperationNotAllowed"}, map[string]string{"Allow": "GET, HEAD, OPTIONS"}},
		"made-up method":       {request{method: "FROB", path: systemPath}, 405, []string{"OperationNotAllowed"}, nil},
		"reset without a type": {request{method: "POST", path: resetPath, body: `{}`}, 400, []string{"ActionParameterMissing"}, nil},
		"reset without a body": {request{method: "POST", path: resetPath}, 400, []string{"ActionParameterMissing"}, nil},
		"reset with a type that is not served": {
			request{method: "POST", path: resetPath, body: `{"ResetType":"Nmi"}`}, 400, []string{"ActionParameterValueNotInList"}, nil,
		},
		"reset with a number as type": {
			request{method: "POST", path: resetPath, body: `{"ResetType":1}`}, 400, []string{"ActionParameterValueTypeError"}, nil,
		},
		"a query that is not served": {request{path: systemPath + "?$apply=x"}, 501, []string{"QueryNotSupported"}, nil},
		"another OData version": {
			request{path: systemPath, header: http.Header{"OData-Version": {"3.0"}}}, 412, []string{"HeaderInvalid"}, nil,
		},
		"a media type that is not served": {
			request{path: systemPath, header: http.Header{"Accept": {"text/html"}}}, 406, []string{"HeaderInvalid"}, nil,
		},
		"JSON not accepted": {
			request{path: systemPath, header: http.Header{"Accept": {"application/json;q=0, text/plain"}}}, 406, []string{"HeaderInvalid"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := b.do(tc.request)
			if a.status != tc.status {
				t.Errorf("status = %d, want %d: %s", a.status, tc.status, a.raw)
			}
			if diff := cmp.Diff(tc.ids, a.messageIDs()); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			for name, want := range tc.header {
				if got := a.header.Get(name); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
			if a.header.Get("OData-Version") != "4.0" {
				t.Error("no OData-Version")
			}
		})
	}
	if got := b.backend.Actions(); len(got) != 0 {
		t.Errorf("refused requests led to %v", got)
	}
	if log := b.log.String(); strings.Contains(log, password) || strings.Contains(log, "ipmi password") {
		t.Error("the log has a password")
	}
}

func TestTolerance(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, r := range map[string]request{
		"gofish: Content-Type on GET":         {path: systemPath, header: http.Header{"Content-Type": {"application/json"}}},
		"sushy: its headers":                  {path: systemPath, header: http.Header{"OData-Version": {"4.0"}, "Accept": {"*/*"}, "Accept-Encoding": {"identity"}, "Connection": {"close"}}},
		"browser's Accept":                    {path: systemPath, header: http.Header{"Accept": {"text/html,application/xhtml+xml,*/*;q=0.8"}}},
		"query parameters without $":          {path: systemPath + "?excerpt=1&foo=bar"},
		"doubled slashes":                     {path: "/redfish/v1//Systems//1"},
		"escaped path":                        {path: "/redfish/v1/%53ystems/1"},
		"a stale token at the root":           {path: "/redfish/v1/", token: "stale"},
		"a stale token at login":              {method: "POST", path: sessionPath, token: "stale", body: `{"UserName":"admin","Password":"correct horse"}`},
		"login with more properties":          {method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":"correct horse","Context":"x","Oem":{}}`},
		"reset with vendor parameters":        {method: "POST", path: resetPath, body: `{"ResetType":"On","Oem":{"x":1},"Delay":3}`},
		"reset with a charset":                {method: "POST", path: resetPath, body: `{"ResetType":"On"}`, header: http.Header{"Content-Type": {"application/json; charset=utf-8"}}},
		"reset, expressly not compressed":     {method: "POST", path: resetPath, body: `{"ResetType":"On"}`, header: http.Header{"Content-Encoding": {"Identity"}}},
		"reset without a content type":        {method: "POST", path: resetPath, body: `{"ResetType":"On"}`, header: http.Header{"Content-Type": nil}},
		"metadata as XML":                     {path: "/redfish/v1/$metadata", header: http.Header{"Accept": {"application/xml"}}},
		"manager reset":                       {method: "POST", path: "/redfish/v1/Managers/BMC/Actions/Manager.Reset", body: `{"ResetType":"GracefulRestart"}`},
		"unchanged Enabled beside the target": {method: "PATCH", path: systemPath, body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Disabled"}}`},
		"OPTIONS":                             {method: "OPTIONS", path: systemPath},
	} {
		if a := b.do(r); a.status < 200 || a.status > 299 {
			t.Errorf("%s: status = %d: %s", name, a.status, a.raw)
		}
	}
}

func TestReset_types(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]powerv1.PowerAction{
		"On":               powerv1.PowerAction_POWER_ACTION_ON,
		"ForceOn":          powerv1.PowerAction_POWER_ACTION_ON,
		"ForceOff":         powerv1.PowerAction_POWER_ACTION_FORCE_OFF,
		"GracefulShutdown": powerv1.PowerAction_POWER_ACTION_GRACEFUL_SHUTDOWN,
		"GracefulRestart":  powerv1.PowerAction_POWER_ACTION_GRACEFUL_RESTART,
		"ForceRestart":     powerv1.PowerAction_POWER_ACTION_FORCE_RESTART,
		"PowerCycle":       powerv1.PowerAction_POWER_ACTION_POWER_CYCLE,
		"PushPowerButton":  powerv1.PowerAction_POWER_ACTION_PUSH_POWER_BUTTON,
		"Pause":            powerv1.PowerAction_POWER_ACTION_PAUSE,
		"Resume":           powerv1.PowerAction_POWER_ACTION_RESUME,
	} {
		b := newBench(t)
		a := b.do(request{method: "POST", path: resetPath, body: fmt.Sprintf(`{"ResetType":%q}`, name)})
		if a.status != http.StatusNoContent || len(a.raw) != 0 {
			t.Errorf("%s = %d %s", name, a.status, a.raw)
		}
		if diff := cmp.Diff([]powerv1.PowerAction{want}, b.backend.Actions()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := b.get(systemPath).at("Actions", "#ComputerSystem.Reset", "ResetType@Redfish.AllowableValues"); !slices.Contains(got.([]any), any(name)) {
			t.Errorf("%s is not among the allowable values", name)
		}
	}
}

// A machine that is off is restarted by switching it on; a guest that does not run
// can't be asked to restart.
func TestReset_ofAMachineThatIsOff(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{
		"ForceRestart": http.StatusNoContent, "PowerCycle": http.StatusNoContent,
		"GracefulRestart": http.StatusConflict, "Pause": http.StatusConflict, "Resume": http.StatusConflict,
		"ForceOff": http.StatusNoContent, "GracefulShutdown": http.StatusNoContent,
	} {
		b := newBench(t)
		b.backend.Update(func(power *powerv1.PowerStatus, _ *bootv1.BootStatus, _ *inventoryv1.Inventory) {
			power.State = powerv1.PowerState_POWER_STATE_OFF
		})
		if a := b.do(request{method: "POST", path: resetPath, body: fmt.Sprintf(`{"ResetType":%q}`, name)}); a.status != want {
			t.Errorf("%s = %d, want %d: %s", name, a.status, want, a.raw)
		}
		state := "Off"
		if want == http.StatusNoContent && (name == "ForceRestart" || name == "PowerCycle") {
			state = "On"
		}
		if got := b.get(systemPath).at("PowerState"); got != state {
			t.Errorf("after %s the machine is %v, want %s", name, got, state)
		}
	}
}

func TestReset_whenTheOperationDoesNotEndWell(t *testing.T) {
	t.Parallel()
	for phase, want := range map[powerv1.OperationPhase]int{
		powerv1.OperationPhase_OPERATION_PHASE_UNDER_WAY:  http.StatusNoContent,
		powerv1.OperationPhase_OPERATION_PHASE_SUCCEEDED:  http.StatusNoContent,
		powerv1.OperationPhase_OPERATION_PHASE_FAILED:     http.StatusInternalServerError,
		powerv1.OperationPhase_OPERATION_PHASE_SUPERSEDED: http.StatusConflict,
	} {
		b := newBench(t)
		b.backend.EndOperations(&powerv1.Operation{Id: "7", Phase: phase, Message: "no node has room"})
		a := b.do(request{method: "POST", path: resetPath, body: `{"ResetType":"On"}`})
		if a.status != want {
			t.Errorf("%s: status = %d, want %d", phase, a.status, want)
		}
		if phase == powerv1.OperationPhase_OPERATION_PHASE_FAILED && a.at("error", "message") != "no node has room" {
			t.Errorf("a failed operation does not say why: %s", a.raw)
		}
	}
}

func TestPowerState_isOnUntilNothingRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for state, want := range map[powerv1.PowerState]any{
		powerv1.PowerState_POWER_STATE_ON:           "On",
		powerv1.PowerState_POWER_STATE_POWERING_ON:  "On",
		powerv1.PowerState_POWER_STATE_POWERING_OFF: "On",
		powerv1.PowerState_POWER_STATE_PAUSED:       "On",
		powerv1.PowerState_POWER_STATE_OFF:          "Off",
		powerv1.PowerState_POWER_STATE_UNKNOWN:      nil,
	} {
		b.backend.Update(func(p *powerv1.PowerStatus, _ *bootv1.BootStatus, _ *inventoryv1.Inventory) { p.State = state })
		for _, path := range []string{systemPath, "/redfish/v1/Chassis/1"} {
			if got := b.get(path).at("PowerState"); got != want {
				t.Errorf("%s: PowerState of %s = %v, want %v", state, path, got, want)
			}
		}
	}
}

// Provisioners poll: a backend that is away must not look like a defect, nor
// like a machine that is off.
func TestBackend_unavailableAndBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for reason, want := range map[errorsv1.Reason]int{
		errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: 503,
		errorsv1.Reason_REASON_UNAUTHENTICATED:        503,
		errorsv1.Reason_REASON_MACHINE_NOT_FOUND:      404,
		errorsv1.Reason_REASON_INTERNAL:               500,
	} {
		b.backend.Fail(grpcstatus.New(reason, "on purpose"))
		for _, r := range []request{
			{path: systemPath},
			{path: "/redfish/v1/Chassis/1"},
			{path: systemPath + "/Processors"},
			{path: systemPath + "/EthernetInterfaces/default"},
			{method: "PATCH", path: systemPath, body: `{"Boot":{"BootSourceOverrideTarget":"Pxe"}}`},
			{method: "POST", path: resetPath, body: `{"ResetType":"On"}`},
		} {
			a := b.do(r)
			if a.status != want {
				t.Errorf("%s: %s %s = %d, want %d", reason, r.method, r.path, a.status, want)
			}
			if retry := a.header.Get("Retry-After"); (retry != "") != (want == 503) {
				t.Errorf("%s: %s %s: Retry-After = %q", reason, r.method, r.path, retry)
			}
		}
		for _, path := range []string{"/redfish/v1/", "/redfish/v1/Systems", "/redfish/v1/Managers/BMC", "/redfish/v1/SessionService"} {
			if a := b.get(path); a.status != http.StatusOK {
				t.Errorf("%s: GET %s = %d: it needs no backend", reason, path, a.status)
			}
		}
		b.backend.Fail(nil)
		if a := b.get(systemPath); a.status != http.StatusOK {
			t.Errorf("GET System = %d once the backend is back", a.status)
		}
	}
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	users := []struct{ name, pass string }{{"reader", "reader password"}, {"operator", "operator password"}, {admin, password}}
	for name, tc := range map[string]struct {
		request request
		status  [3]int // of reader, operator, administrator
	}{
		"read the system":    {request{path: systemPath}, [3]int{200, 200, 200}},
		"read the sessions":  {request{path: sessionPath}, [3]int{200, 200, 200}},
		"reset the system":   {request{method: "POST", path: resetPath, body: `{"ResetType":"On"}`}, [3]int{403, 204, 204}},
		"set a boot device":  {request{method: "PATCH", path: systemPath, body: `{"Boot":{"BootSourceOverrideTarget":"Pxe"}}`}, [3]int{403, 200, 200}},
		"reset the manager":  {request{method: "POST", path: "/redfish/v1/Managers/BMC/Actions/Manager.Reset", body: `{"ResetType":"ForceRestart"}`}, [3]int{403, 403, 204}},
		"see what is served": {request{method: "OPTIONS", path: resetPath}, [3]int{204, 204, 204}},
	} {
		for i, u := range users {
			r := tc.request
			r.user, r.pass = u.name, u.pass
			a := b.do(r)
			if a.status != tc.status[i] {
				t.Errorf("%s as %s = %d, want %d", name, u.name, a.status, tc.status[i])
			}
			if a.status == 403 {
				if diff := cmp.Diff([]string{"InsufficientPrivilege"}, a.messageIDs()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		}
	}
}

func TestSessions_ofOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	logIn := func(user, pass string) (location, token string) {
		a := b.do(request{method: "POST", path: sessionPath, anonymous: true, body: fmt.Sprintf(`{"UserName":%q,"Password":%q}`, user, pass)})
		return a.header.Get("Location"), a.header.Get("X-Auth-Token")
	}
	adminSession, _ := logIn(admin, password)
	readerSession, readerToken := logIn("reader", "reader password")
	if a := b.do(request{method: "DELETE", path: adminSession, token: readerToken}); a.status != http.StatusForbidden {
		t.Errorf("DELETE of another's session = %d, want 403", a.status)
	}
	if a := b.do(request{method: "DELETE", path: readerSession}); a.status != http.StatusNoContent {
		t.Errorf("DELETE of another's session by an administrator = %d, want 204", a.status)
	}
	if a := b.do(request{path: systemPath, token: readerToken}); a.status != http.StatusUnauthorized {
		t.Errorf("the session is still good for %d", a.status)
	}
	a := b.get(sessionPath)
	if got := a.at("Members@odata.count"); got != float64(1) {
		t.Errorf("sessions left = %v, want 1", got)
	}
}

func TestBackoff_holdsBackOneUserFromOneSource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, token := func() (string, string) {
		a := b.do(request{method: "POST", path: sessionPath, anonymous: true, body: `{"UserName":"admin","Password":"correct horse"}`})
		return a.header.Get("Location"), a.header.Get("X-Auth-Token")
	}()
	for _, user := range []string{admin, "nobody"} {
		var statuses []int
		for range 8 {
			statuses = append(statuses, b.do(request{path: systemPath, user: user, pass: "wrong"}).status)
		}
		if diff := cmp.Diff([]int{401, 401, 401, 401, 401, 401, 503, 503}, statuses); diff != "" {
			t.Errorf("wrong passwords of %s (-want +got):\n%s", user, diff)
		}
	}
	a := b.do(request{path: systemPath, user: admin, pass: password})
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("the right password while held back = %d %v", a.status, a.header)
	}
	if a := b.do(request{path: systemPath, user: "operator", pass: "operator password"}); a.status != http.StatusOK {
		t.Errorf("another user from the same address = %d", a.status)
	}
	if a := b.do(request{path: systemPath, token: token}); a.status != http.StatusOK {
		t.Errorf("a session of the user = %d", a.status)
	}
}

func TestCall_context(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.do(request{path: systemPath + "/Processors", user: "reader", pass: "reader password"})
	id, caller := b.backend.LastCall()
	if id == "" || id != a.header.Get("X-Request-Id") {
		t.Errorf("request id at the backend = %q, in the answer %q", id, a.header.Get("X-Request-Id"))
	}
	if caller.User != "reader" || caller.Protocol != "redfish" || !strings.HasPrefix(caller.Address, "127.0.0.1:") {
		t.Errorf("caller = %+v", caller)
	}
	if !strings.Contains(b.log.String(), id) {
		t.Error("the log does not have the request id")
	}
}

// The answer to a raw request that no client library would send.
func TestReadBody_namesTwice(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{
		`{}`:                false,
		`{"a":"a","b":"a"}`: false,
		`{"a":{"a":1},"b":{"a":[{"a":1},{"a":2},"a","a"]},"c":1}`: false,
		`{"a":1,"A":2}`:             false,
		`{"a":1,"b":2,"a":3}`:       true,
		`{"b":[1,{"a":[],"a":{}}]}`: true,
		`{"b":{"c":{}},"b":1}`:      true,
	} {
		if got := hasDuplicates([]byte(raw)); got != want {
			t.Errorf("hasDuplicates(%s) = %v", raw, got)
		}
	}
}

// The rest of a body does not come before the read time-out.
func TestReadBody_tooSlow(t *testing.T) {
	t.Parallel()
	client, conn := net.Pipe()
	defer client.Close()
	defer conn.Close()
	conn.SetReadDeadline(time.Unix(1, 0))
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, resetPath, io.MultiReader(strings.NewReader(`{"ResetType":`), conn))
	_, refusal := readBody(&call{w: w, r: r})
	if refusal == nil || refusal.Status != http.StatusRequestTimeout || w.Header().Get("Connection") != "close" {
		t.Errorf("refusal %+v, header %v", refusal, w.Header())
	}
}

func TestRawRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, tc := range map[string]struct {
		request string
		want    string
	}{
		"server-wide OPTIONS": {"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 401"},
		"CONNECT":             {"CONNECT example:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 401"},
		"absolute form":       {"GET http://other/redfish/v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200"},
		"nonsense":            {"\x00\x01\r\n\r\n", "HTTP/1.1 400"},
		"huge header":         {"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", "HTTP/1.1 431"},
	} {
		conn := b.dialTLS()
		if _, err := io.WriteString(conn, tc.request); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		raw, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(raw), tc.want) {
			t.Errorf("%s = %.100q, want %s", name, raw, tc.want)
		}
		conn.Close()
	}
}
