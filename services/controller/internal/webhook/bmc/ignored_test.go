// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"kubevirtbmc.dev/api/v1beta1"
)

// TestValidator_ignored: what does not count under one default counts under another.
func TestValidator_ignored(t *testing.T) {
	t.Parallel()
	all := v1beta1.VirtualMachineBMCSpec{
		Frontend: &v1beta1.FrontendSpec{Dedicated: &v1beta1.DedicatedFrontendSpec{}},
		Service: &v1beta1.ServiceSpec{NodePorts: &v1beta1.ServicePorts{
			IPMI: ptr.To[int32](30623), HTTP: ptr.To[int32](30080), HTTPS: ptr.To[int32](30443),
		}},
	}
	asked := all
	asked.Frontend = &v1beta1.FrontendSpec{Mode: v1beta1.FrontendModeDedicated, Dedicated: &v1beta1.DedicatedFrontendSpec{}}
	asked.IPMI = &v1beta1.IPMISpec{Enabled: ptr.To(true)}
	asked.Redfish = &v1beta1.RedfishSpec{
		HTTP: &v1beta1.RedfishHTTPSpec{Enabled: ptr.To(true)}, HTTPS: &v1beta1.RedfishHTTPSSpec{Enabled: ptr.To(false)},
	}
	network := v1beta1.VirtualMachineBMCSpec{NetworkRef: ptr.To("net"), Frontend: all.Frontend}
	for name, tc := range map[string]struct {
		v    Validator
		spec v1beta1.VirtualMachineBMCSpec
		want []string
	}{
		"the controller's defaults": {
			Validator{Mode: v1beta1.FrontendModeShared},
			all,
			[]string{"spec.frontend.dedicated", "spec.service.nodePorts.ipmi", "spec.service.nodePorts.http"},
		},
		"everything by default": {Validator{Mode: v1beta1.FrontendModeDedicated, IPMI: true, HTTP: true}, all, nil},
		"what it says itself":   {Validator{Mode: v1beta1.FrontendModeShared}, asked, []string{"spec.service.nodePorts.https"}},
		"a network":             {Validator{Mode: v1beta1.FrontendModeShared}, network, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, one := range tc.v.ignored(&v1beta1.VirtualMachineBMC{Spec: tc.spec}) {
				got = append(got, one.path.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ignored (-want +got):\n%s", diff)
			}
		})
	}
}
