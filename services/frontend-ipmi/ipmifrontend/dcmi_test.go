// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmifrontend_test

import "testing"

func TestDCMI_ofRealClients(t *testing.T) {
	t.Parallel()
	b := described(t)
	answers{
		"discover":   {[]string{"dcmi", "discover"}, []string{"SEL logging available", "500 SEL entries"}},
		"asset tag":  {[]string{"dcmi", "asset_tag"}, []string{"Asset tag: default/vm-a"}},
		"identifier": {[]string{"dcmi", "get_mc_id_string"}, []string{"Get Management Controller Identifier String: vm-a"}},
		"identify":   {[]string{"chassis", "identify", "force"}, []string{"Chassis identify interval: indefinite"}},
		"status":     {[]string{"chassis", "status"}, []string{"Last Power Event"}},
		"policy":     {[]string{"chassis", "policy", "list"}, nil},
		"enables":    {[]string{"mc", "getenables"}, []string{"System Event Logging                     : enabled"}},
	}.check(t, func(args ...string) (string, bool) { return b.ipmitool(t, args...) })
	login := []string{"-u", "admin", "-p", "password"}
	answers{
		"capabilities": {[]string{"--get-dcmi-capability-info"}, []string{"Temperature Monitor                                : Not Compliant", "500"}},
		"asset tag":    {[]string{"--get-asset-tag"}, []string{"default/vm-a"}},
		"identifier":   {[]string{"--get-management-controller-identifier-string"}, []string{"vm-a"}},
	}.check(t, func(args ...string) (string, bool) { return b.freeipmi(t, "ipmi-dcmi", append(login, args...)...) })
}
