// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build kubevirt18

package main

import kvv1 "kubevirt.io/api/core/v1"

// terminateOnReboot reports whether a reboot by the guest ends the machine.
func terminateOnReboot(vmi *kvv1.VirtualMachineInstance) bool {
	p := vmi.Spec.Domain.RebootPolicy
	return p != nil && *p == kvv1.RebootPolicyTerminate
}
