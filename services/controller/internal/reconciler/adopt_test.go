// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func TestLosesIPMI(t *testing.T) {
	t.Parallel()
	on, off := true, false
	both := []*corev1.Service{{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: "redfish", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "ipmi", Port: 623, Protocol: corev1.ProtocolUDP},
	}}}}
	redfish := []*corev1.Service{{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "redfish", Port: 80, Protocol: corev1.ProtocolTCP}}}}}
	port := int32(20623)
	served := &v1beta1.FrontendStatus{IPMI: &v1beta1.IPMIFrontendStatus{Port: &port}}
	told := []metav1.Condition{{Type: v1beta1.ConditionIPMIDisabledByUpgrade, Status: metav1.ConditionTrue}}
	for name, tc := range map[string]struct {
		ipmi     *v1beta1.IPMISpec
		defaults Defaults
		status   v1beta1.VirtualMachineBMCStatus
		services []*corev1.Service
		had      bool
		want     bool
	}{
		"an object of the first lines":        {services: both, want: true},
		"one of ours, by another default":     {status: v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 3}, services: both, want: true},
		"it suits cipher suites alone":        {ipmi: &v1beta1.IPMISpec{CipherSuites: []int32{17}}, services: both, want: true},
		"it had no IPMI":                      {services: redfish},
		"a new one":                           {},
		"it is served still":                  {defaults: Defaults{IPMI: true}, services: both},
		"it says yes":                         {ipmi: &v1beta1.IPMISpec{Enabled: &on}, services: both},
		"it says no":                          {ipmi: &v1beta1.IPMISpec{Enabled: &off}, services: both},
		"its owner took it out just now":      {status: v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 2}, services: both, had: true},
		"it was changed with the upgrade":     {status: v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 2, Frontend: served}, services: both, want: true},
		"its Service has been changed":        {status: v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 2, Frontend: served}, services: redfish, want: true},
		"it goes on to be so":                 {status: v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 2, Conditions: told}, services: redfish, want: true},
		"until its owner says yes":            {ipmi: &v1beta1.IPMISpec{Enabled: &on}, status: v1beta1.VirtualMachineBMCStatus{Conditions: told}},
		"until its owner says no":             {ipmi: &v1beta1.IPMISpec{Enabled: &off}, status: v1beta1.VirtualMachineBMCStatus{Conditions: told}},
		"until the default is as it was":      {defaults: Defaults{IPMI: true}, status: v1beta1.VirtualMachineBMCStatus{Conditions: told}},
		"a Service of a machine that is gone": {services: append(redfish, both...), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bmc := &v1beta1.VirtualMachineBMC{
				ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: v1beta1.VirtualMachineBMCSpec{IPMI: tc.ipmi}, Status: tc.status,
			}
			if got := losesIPMI(bmc, wantedOf(bmc, tc.defaults), tc.services, tc.had); got != tc.want {
				t.Errorf("loses IPMI: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestDropped(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	for name, tc := range map[string]struct{ had, has, want object }{
		"nothing":      {object{"a": 1}, object{"a": 2, "b": 3}, object{}},
		"a field":      {object{"a": 1, "b": 2}, object{"b": 3}, object{"a": nil}},
		"an inner one": {object{"a": object{"b": 1, "c": 2}}, object{"a": object{"c": 3}}, object{"a": object{"b": nil}}},
		"a list":       {object{"a": []any{1, 2}}, object{"a": []any{1}}, object{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, dropped(tc.had, tc.has)); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLeftover(t *testing.T) {
	t.Parallel()
	left := v1beta1.BootOverrideStatus{
		Mode: v1beta1.BootOverrideModeOneshot, VMIUID: "i", BootOrders: map[string]int64{"interface:default": 0, "disk:root": 1}, OriginalFirmware: v1beta1.BootFirmwareLegacy,
	}
	want := &bootoverride.Leftover{InstanceUID: "i", Orders: map[string]int{"interface:default": 0, "disk:root": 1}, Mode: hypervisor.FirmwareBIOS}
	edit := func(f func(*v1beta1.BootOverrideStatus)) v1beta1.VirtualMachineBMCStatus {
		edited := left
		f(&edited)
		return v1beta1.VirtualMachineBMCStatus{BootOverride: &edited}
	}
	for name, tc := range map[string]struct {
		status v1beta1.VirtualMachineBMCStatus
		want   *bootoverride.Leftover
	}{
		"none":                {v1beta1.VirtualMachineBMCStatus{}, nil},
		"one":                 {v1beta1.VirtualMachineBMCStatus{BootOverride: &left}, want},
		"of this machine":     {edit(func(is *v1beta1.BootOverrideStatus) { is.VMUID = "vm" }), want},
		"of an earlier one":   {edit(func(is *v1beta1.BootOverrideStatus) { is.VMUID = "before" }), nil},
		"one that is to stay": {edit(func(is *v1beta1.BootOverrideStatus) { is.Mode = v1beta1.BootOverrideModePersistent }), nil},
		"ours":                {edit(func(is *v1beta1.BootOverrideStatus) { is.ID = "x" }), nil},
		"written by hand":     {v1beta1.VirtualMachineBMCStatus{BootOverride: &left, ObservedGeneration: 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := leftover(&v1beta1.VirtualMachineBMC{Status: tc.status}, "vm")
			if got != nil && got.ID == "" {
				t.Error("it has no ID")
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(bootoverride.Leftover{}, "ID")); diff != "" {
				t.Errorf("leftover (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAbandoned(t *testing.T) {
	t.Parallel()
	bmc := &v1beta1.VirtualMachineBMC{Status: v1beta1.VirtualMachineBMCStatus{BootOverride: &v1beta1.BootOverrideStatus{
		Mode: v1beta1.BootOverrideModeOneshot, BootOrders: map[string]int64{"interface:default": 0, "disk:root": 1}, OriginalFirmware: v1beta1.BootFirmwareLegacy,
	}}}
	list := abandoned(bmc, wanted{machine: "vm"}, "no right")
	if len(list) != 1 || !strings.HasSuffix(list[0].message, "(no right); its boot orders were (0: none): disk:root 1, interface:default 0; its firmware was Legacy") {
		t.Errorf("says %+v", list)
	}
}

func TestLegacy(t *testing.T) {
	t.Parallel()
	selecting := &corev1.Service{Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}}
	for name, tc := range map[string]struct {
		status  v1beta1.VirtualMachineBMCStatus
		service *corev1.Service
		want    bool
	}{
		"a new BMC":                  {v1beta1.VirtualMachineBMCStatus{}, nil, false},
		"a new BMC with ports":       {v1beta1.VirtualMachineBMCStatus{Frontend: &v1beta1.FrontendStatus{}}, nil, false},
		"one of ours":                {v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 1, ClusterIP: "10.96.0.1"}, &corev1.Service{}, false},
		"a selector put in by hand":  {v1beta1.VirtualMachineBMCStatus{ObservedGeneration: 1}, selecting, false},
		"a Service of another line":  {v1beta1.VirtualMachineBMCStatus{}, selecting, true},
		"left before it was written": {v1beta1.VirtualMachineBMCStatus{}, &corev1.Service{}, true},
		"a machine that was gone":    {v1beta1.VirtualMachineBMCStatus{Conditions: []metav1.Condition{{}}}, nil, true},
		"an address":                 {v1beta1.VirtualMachineBMCStatus{ClusterIP: "10.96.0.1"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := legacy(&tc.status, tc.service); got != tc.want {
				t.Errorf("legacy: %v, want %v", got, tc.want)
			}
		})
	}
}
