// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "testing"

func TestNetworkProblem(t *testing.T) {
	t.Parallel()
	allowed := []string{"infra/bmc", "open/*"}
	for networks, fine := range map[string]bool{
		"bmc":                true,
		"lab/bmc":            true,
		"bmc@eth1, lab/two":  true,
		"infra/bmc@net1":     true,
		"open/anything":      true,
		"infra/other":        false,
		"bmc,kube-system/it": false,
		`[{"name":"bmc","ips":["192.0.2.7/24"]}]`:              true,
		`[{"name":"bmc","namespace":"lab"}]`:                   true,
		`[{"name":"bmc","namespace":"infra"}]`:                 true,
		` [{"name":"bmc"},{"name":"it","namespace":"system"}]`: false,
		`[{"Name":"it","NAMESPACE":"system"}]`:                 false,
		`[{"name":`:                                            false,
	} {
		if got := NetworkProblem(networks, "lab", allowed); (got == "") != fine {
			t.Errorf("%s: %q", networks, got)
		}
	}
	if NetworkProblem("infra/bmc", "lab", nil) == "" {
		t.Error("without any that is allowed one of another namespace is")
	}
}
