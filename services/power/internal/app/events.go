// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/kubevirt"
	"kubevirtbmc.dev/services/power/powerservice"
)

// sink is where calls are recorded beside the log: in Events of the
// VirtualMachineBMCs, where there are any.
func sink(machines powerservice.Hypervisor) audit.Sink {
	if withBMCs, ok := machines.(*kubevirt.WithBMCs); ok {
		return withBMCs.Events
	}
	return nil
}

// trouble tells, in the same way, of what failed later.
func trouble(machines powerservice.Hypervisor) func(machine hypervisor.Ref, action, message string) {
	withBMCs, ok := machines.(*kubevirt.WithBMCs)
	if !ok {
		return nil
	}
	return func(machine hypervisor.Ref, action, message string) {
		if bmc := withBMCs.BMCs.Of(machine); bmc != nil {
			withBMCs.Events.Trouble(bmc.Namespace, bmc.Name, action, message)
		}
	}
}
