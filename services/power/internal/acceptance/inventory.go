// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"net/netip"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
)

// inventory is about what the service says of a machine's hardware.
var inventory = map[string]func(*bed){
	"basics": func(b *bed) {
		ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyHalted, Devices: devices()})
		got := b.hardware(ref)
		if got.GetMachineName() != ref.Name || got.GetMachineNamespace() != ref.Namespace || got.GetMachineUid() != b.get(ref).UID {
			b.Errorf("inventory is of another machine: %s", got)
		}
		if p := got.GetProcessors(); p.GetSockets() < 1 || p.GetCoresPerSocket() < 1 || p.GetThreadsPerCore() < 1 || got.GetMemoryBytes() < 1 {
			b.Errorf("machine has no processor or memory: %s", got)
		}
		if len(got.GetDisks()) != 1 || got.GetDisks()[0].GetName() != "disk" || !got.GetHasSerialConsole() {
			b.Errorf("inventory lacks disk or console: %s", got)
		}
		b.do(ref, on)
		running := b.hardware(ref)
		if running.GetMachineUid() != got.GetMachineUid() || running.GetMemoryBytes() != got.GetMemoryBytes() {
			b.Errorf("inventory was %s, and %s once it ran", got, running)
		}
		if running.GetFirmwareUuid() == "" {
			b.Errorf("machine has no firmware UUID: %s", running)
		}
	},
	"what the guest agent tells": func(b *bed) {
		ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, Agent: true})
		var got *inventoryv1.Inventory
		for range 100 {
			got = b.hardware(ref)
			if got.GetGuestOperatingSystem() != nil && len(got.GetInterfaces()) == 1 && len(got.GetInterfaces()[0].GetIpAddresses()) > 0 {
				break
			}
			b.rest()
		}
		if os := got.GetGuestOperatingSystem(); os.GetName() == "" || os.GetKernelRelease() == "" {
			b.Errorf("the guest's operating system is %s", os)
		}
		if i := got.GetInterfaces(); len(i) != 1 || len(i[0].GetIpAddresses()) == 0 {
			b.Fatalf("no address in %s", i)
		}
		for _, address := range got.GetInterfaces()[0].GetIpAddresses() {
			if _, err := netip.ParseAddr(address); err != nil {
				b.Errorf("address %q: %v", address, err)
			}
		}
		b.do(ref, forceOff)
		b.cleared(ref)
		if got := b.hardware(ref); got.GetGuestOperatingSystem() != nil || len(got.GetInterfaces()[0].GetIpAddresses()) > 0 {
			b.Errorf("while off the guest still has %s", got)
		}
	},
	"MAC addresses are known while off": func(b *bed) {
		// The addresses are in the instance alone.
		ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyManual, NoMAC: true})
		address := func() string {
			i := b.hardware(ref).GetInterfaces()
			if len(i) != 1 || i[0].GetName() != "nic" {
				b.Fatalf("interfaces are %s", i)
			}
			return i[0].GetMacAddress()
		}
		for range 100 {
			if address() != "" {
				break
			}
			b.rest()
		}
		before := address()
		if before == "" {
			b.Fatal("the running machine's MAC address does not show")
		}
		b.do(ref, forceOff)
		b.cleared(ref)
		if got := address(); got != before {
			b.Errorf("MAC address is %q while off, was %q", got, before)
		}
	},
}

// hardware reads a machine's inventory.
func (b *bed) hardware(ref hypervisor.Ref) *inventoryv1.Inventory {
	b.Helper()
	response, err := b.inventory.GetInventory(b.Context(), &inventoryv1.GetInventoryRequest{Bmc: bmc(ref)})
	b.ok("get inventory", err)
	return response.GetInventory()
}
