// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/api/v1beta1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/credential"
)

// TestEntryOf_lan: frontends are told whether sessions of IPMI v1.5 are wanted.
func TestEntryOf_lan(t *testing.T) {
	t.Parallel()
	on, off := true, false
	for name, tc := range map[string]struct {
		lan      *v1beta1.IPMILANSpec
		defaults bool
		want     bool
	}{
		"unset":               {nil, false, false},
		"unset, by default":   {nil, true, true},
		"empty, by default":   {&v1beta1.IPMILANSpec{}, true, true},
		"on":                  {&v1beta1.IPMILANSpec{Enabled: &on}, false, true},
		"off, not by default": {&v1beta1.IPMILANSpec{Enabled: &off}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bmc := &v1beta1.VirtualMachineBMC{Spec: v1beta1.VirtualMachineBMCSpec{IPMI: &v1beta1.IPMISpec{Enabled: &on, LAN: tc.lan, CipherSuites: []int32{3}}}}
			credentials := credential.Parse(map[string][]byte{"username": []byte("admin"), "password": []byte("secret")})
			entry := entryOf(wantedOf(bmc, Defaults{LAN: tc.defaults}), &credentials, nil, map[listener]int32{listenIPMI: 20623}, nil, nil)
			want := &registryv1.IPMIEndpoint{Udp: &registryv1.Listener{Port: 20623, ClientPort: 623}, CipherSuites: []uint32{3}, Lan: tc.want}
			if diff := cmp.Diff(want, entry.BMC.Ipmi, protocmp.Transform()); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWantedOf(t *testing.T) {
	t.Parallel()
	on, off, network := true, false, "lab/bmc"
	for name, tc := range map[string]struct {
		spec      v1beta1.VirtualMachineBMCSpec
		defaults  Defaults
		listeners []listener
		mode      v1beta1.FrontendMode
	}{
		"a BMC that says nothing": {
			listeners: []listener{listenHTTPS}, mode: v1beta1.FrontendModeShared,
		},
		"the defaults of the first lines": {
			defaults: Defaults{IPMI: true, HTTP: true}, listeners: []listener{listenIPMI, listenHTTPS, listenHTTP}, mode: v1beta1.FrontendModeShared,
		},
		"what it says counts more than defaults": {
			spec: v1beta1.VirtualMachineBMCSpec{
				IPMI:    &v1beta1.IPMISpec{Enabled: &off},
				Redfish: &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{Enabled: &off}, HTTP: &v1beta1.RedfishHTTPSpec{Enabled: &on}},
			},
			defaults: Defaults{IPMI: true}, listeners: []listener{listenHTTP}, mode: v1beta1.FrontendModeShared,
		},
		"IPMI alone": {
			spec: v1beta1.VirtualMachineBMCSpec{
				IPMI: &v1beta1.IPMISpec{Enabled: &on}, Redfish: &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{Enabled: &off}},
			},
			listeners: []listener{listenIPMI}, mode: v1beta1.FrontendModeShared,
		},
		"nothing at all": {
			spec: v1beta1.VirtualMachineBMCSpec{Redfish: &v1beta1.RedfishSpec{HTTPS: &v1beta1.RedfishHTTPSSpec{Enabled: &off}}},
			mode: v1beta1.FrontendModeShared,
		},
		"a network of its own": {
			spec: v1beta1.VirtualMachineBMCSpec{NetworkRef: &network}, listeners: []listener{listenHTTPS}, mode: v1beta1.FrontendModeDedicated,
		},
		"a mode by default": {
			defaults: Defaults{Mode: v1beta1.FrontendModeDedicated}, listeners: []listener{listenHTTPS}, mode: v1beta1.FrontendModeDedicated,
		},
		"a mode of its own": {
			spec:     v1beta1.VirtualMachineBMCSpec{Frontend: &v1beta1.FrontendSpec{Mode: v1beta1.FrontendModeShared}},
			defaults: Defaults{Mode: v1beta1.FrontendModeDedicated}, listeners: []listener{listenHTTPS}, mode: v1beta1.FrontendModeShared,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := wantedOf(&v1beta1.VirtualMachineBMC{Spec: tc.spec}, tc.defaults)
			if diff := cmp.Diff(tc.listeners, w.listeners()); diff != "" {
				t.Errorf("listeners (-want +got):\n%s", diff)
			}
			if w.mode != tc.mode {
				t.Errorf("mode %s, want %s", w.mode, tc.mode)
			}
			if (w.agent() != "") != (tc.mode == v1beta1.FrontendModeDedicated) {
				t.Errorf("agent %q in mode %s", w.agent(), w.mode)
			}
			for _, l := range w.listeners() {
				found := 0
				for _, protocol := range w.protocols() {
					if slices.Contains(listenersOf(w, protocol), l) {
						found++
					}
				}
				if found != 1 {
					t.Errorf("listener %d belongs to %d protocols", l, found)
				}
			}
		})
	}
}

func TestTakenBy(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	bmc := func(name string, age time.Duration) v1beta1.VirtualMachineBMC {
		return v1beta1.VirtualMachineBMC{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(start.Add(-age))}}
	}
	going := bmc("going", time.Hour)
	going.DeletionTimestamp = &metav1.Time{Time: start}
	goingToo := bmc("m", time.Second)
	goingToo.DeletionTimestamp = &metav1.Time{Time: start}
	for name, tc := range map[string]struct {
		this   v1beta1.VirtualMachineBMC
		others []v1beta1.VirtualMachineBMC
		want   string
	}{
		"it is alone":                     {bmc("m", time.Second), nil, ""},
		"it is the oldest":                {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{bmc("a", 0)}, ""},
		"another is older":                {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{bmc("a", 0), bmc("z", time.Minute)}, "z"},
		"the oldest of all has it":        {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{bmc("y", time.Minute), bmc("z", time.Hour)}, "z"},
		"the name decides within second":  {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{bmc("a", time.Second)}, "a"},
		"the name decides for it as well": {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{bmc("n", time.Second)}, ""},
		"one that is being deleted":       {bmc("m", time.Second), []v1beta1.VirtualMachineBMC{going}, ""},
		"it is being deleted itself":      {goingToo, []v1beta1.VirtualMachineBMC{bmc("a", 0)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := takenBy(&tc.this, append(tc.others, tc.this)); got != tc.want {
				t.Errorf("taken by %q, want %q", got, tc.want)
			}
		})
	}
}
