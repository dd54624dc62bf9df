// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/port"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// A BMC moves when what is to serve it is connected; a new one has nothing to wait
// with.
func TestModeInUse(t *testing.T) {
	t.Parallel()
	const shared, dedicated = v1beta1.FrontendModeShared, v1beta1.FrontendModeDedicated
	for name, tc := range map[string]struct {
		status    *v1beta1.FrontendStatus
		target    v1beta1.FrontendMode
		connected bool
		want      v1beta1.FrontendMode
	}{
		"a new BMC":                         {nil, dedicated, false, dedicated},
		"one without a mode":                {&v1beta1.FrontendStatus{}, dedicated, false, dedicated},
		"nothing changes":                   {&v1beta1.FrontendStatus{Mode: shared}, shared, false, shared},
		"its agent is not there yet":        {&v1beta1.FrontendStatus{Mode: shared}, dedicated, false, shared},
		"its agent is there":                {&v1beta1.FrontendStatus{Mode: shared}, dedicated, true, dedicated},
		"the shared ones are not there yet": {&v1beta1.FrontendStatus{Mode: dedicated}, shared, false, dedicated},
		"the shared ones are there":         {&v1beta1.FrontendStatus{Mode: dedicated}, shared, true, shared},
	} {
		if got := modeInUse(tc.status, tc.target, tc.connected); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// An agent's ports are not those that BMCs share out among each other.
func TestPorts_ofAgents(t *testing.T) {
	t.Parallel()
	ports := newPorts(port.Range{First: 10000, Last: 10999})
	status := func(mode v1beta1.FrontendMode, n int32) *v1beta1.FrontendStatus {
		return &v1beta1.FrontendStatus{Mode: mode, IPMI: &v1beta1.IPMIFrontendStatus{Port: &n}}
	}
	bmc := func(name string, mode v1beta1.FrontendMode, n int32) *v1beta1.VirtualMachineBMC {
		return &v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1beta1.VirtualMachineBMCStatus{Frontend: status(mode, n)}}
	}
	ports.restore([]*v1beta1.VirtualMachineBMC{
		bmc("agent", v1beta1.FrontendModeDedicated, 10623), bmc("shared", v1beta1.FrontendModeShared, 10623),
	})
	w := wanted{ref: registry.Ref{Name: "shared"}, mode: v1beta1.FrontendModeShared, ipmi: true, https: true}
	if d := cmp.Diff(map[listener]int32{listenIPMI: 10623}, ports.ofBMC(&w)); d != "" {
		t.Errorf("the shared BMC's ports (-want +got):\n%s", d)
	}
	w = wanted{ref: registry.Ref{Name: "agent"}, mode: v1beta1.FrontendModeDedicated, ipmi: true, https: true}
	if d := cmp.Diff(map[listener]int32{listenIPMI: 10623, listenHTTPS: 10443}, ports.ofBMC(&w)); d != "" {
		t.Errorf("the agent's ports (-want +got):\n%s", d)
	}
	w.networks, w.http, w.ipmi = "bmc-net", true, false
	if d := cmp.Diff(map[listener]int32{listenHTTP: 80, listenHTTPS: 443}, ports.ofBMC(&w)); d != "" {
		t.Errorf("the agent's ports on a network of its own (-want +got):\n%s", d)
	}
}
