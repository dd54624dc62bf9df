// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// TestNetworkProtocol: clients are told the ports that they reach the BMC at, and
// the console where there is one.
func TestNetworkProtocol(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const managerPath = "/redfish/v1/Managers/BMC"
	type protocols map[string]any
	at := func(port any) map[string]any { return map[string]any{"ProtocolEnabled": port != nil, "Port": port} }
	check := func(when string, want protocols, console, service any) {
		t.Helper()
		a := b.get(managerPath + "/NetworkProtocol")
		for name, value := range want {
			if d := cmp.Diff(value, a.at(name)); d != "" {
				t.Errorf("%s: %s (-want +got):\n%s", when, name, d)
			}
		}
		if d := cmp.Diff(console, b.get(systemPath).at("SerialConsole")); d != "" {
			t.Errorf("%s: the system's console (-want +got):\n%s", when, d)
		}
		if d := cmp.Diff(service, b.get(managerPath).at("SerialConsole")); d != "" {
			t.Errorf("%s: the manager's console (-want +got):\n%s", when, d)
		}
	}
	ipmi := b.entry.Ipmi
	b.entry.Ipmi = nil
	b.apply()
	own := float64(b.entry.GetRedfish().GetHttps().GetPort())
	check("HTTPS alone", protocols{"HTTPS": at(own), "HTTP": at(nil), "IPMI": at(nil)}, nil, nil)

	b.entry.Redfish.Https.ClientPort = 443
	b.entry.Redfish.Http = &registryv1.Listener{Port: freePort(t), ClientPort: 80}
	b.entry.Ipmi = ipmi
	b.apply()
	console := map[string]any{"MaxConcurrentSessions": 8.0, "IPMI": map[string]any{"ServiceEnabled": true, "Port": 623.0}}
	service := map[string]any{"ServiceEnabled": true, "MaxConcurrentSessions": 8.0, "ConnectTypesSupported": []any{"IPMI"}}
	check("all", protocols{"HTTPS": at(443.0), "HTTP": at(80.0), "IPMI": at(623.0)}, console, service)

	b.backend.Update(func(_ *powerv1.PowerStatus, _ *bootv1.BootStatus, i *inventoryv1.Inventory) {
		i.HasSerialConsole = false
	})
	check("without a console", protocols{"IPMI": at(623.0)}, nil, service)
}
