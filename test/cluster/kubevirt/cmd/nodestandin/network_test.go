// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"slices"
	"testing"

	kvv1 "kubevirt.io/api/core/v1"
)

func TestDescribeNetwork(t *testing.T) {
	const mac = "02:00:00:00:00:01"
	masquerade := kvv1.InterfaceBindingMethod{Masquerade: &kvv1.InterfaceMasquerade{}}
	bridge := kvv1.InterfaceBindingMethod{Bridge: &kvv1.InterfaceBridge{}}
	for name, test := range map[string]struct {
		binding kvv1.InterfaceBindingMethod
		agent   string
		podIPs  []string
		ips     []string
		source  string
		guest   string
	}{
		"no agent: the pod's address":           {masquerade, "", []string{"10.244.0.9"}, []string{"10.244.0.9"}, "domain", ""},
		"no agent, address not yet known":       {masquerade, "", nil, nil, "domain", ""},
		"agent: the pod's address hides 10.0.2": {masquerade, "true", []string{"10.244.0.9"}, []string{"10.244.0.9", "fe80::ff:fe00:1"}, "domain, guest-agent", "eth0"},
		"agent behind a bridge":                 {bridge, "true", []string{"10.244.0.9"}, []string{"10.244.0.9", "fe80::ff:fe00:1"}, "domain, guest-agent", "eth0"},
		"agent, two families":                   {masquerade, "true", []string{"10.244.0.9", "fd00::9"}, []string{"10.244.0.9", "fd00::9"}, "domain, guest-agent", "eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi := instance(map[string]string{agentAnnotation: test.agent})
			vmi.Spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: "default", MacAddress: mac, InterfaceBindingMethod: test.binding}}
			vmi.Spec.Networks = []kvv1.Network{{Name: "default", NetworkSource: kvv1.NetworkSource{Pod: &kvv1.PodNetwork{}}}}
			// virt-controller's part, which has to survive.
			vmi.Status.Interfaces = []kvv1.VirtualMachineInstanceNetworkInterface{{Name: "default", PodInterfaceName: "eth0"}}
			if err := describeNetwork(vmi, test.podIPs); err != nil {
				t.Fatal(err)
			}
			if len(vmi.Status.Interfaces) != 1 {
				t.Fatalf("interfaces are %+v, want one", vmi.Status.Interfaces)
			}
			got := vmi.Status.Interfaces[0]
			first := ""
			if len(test.ips) > 0 {
				first = test.ips[0]
			}
			if got.MAC != mac || got.IP != first || !slices.Equal(got.IPs, test.ips) || got.InfoSource != test.source || got.InterfaceName != test.guest || got.PodInterfaceName != "eth0" || got.QueueCount != 1 {
				t.Errorf("interface is %+v, want addresses %q from %q, in the guest %q", got, test.ips, test.source, test.guest)
			}
		})
	}
}
