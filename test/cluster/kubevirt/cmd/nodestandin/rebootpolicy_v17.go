// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build !kubevirt18

package main

import kvv1 "kubevirt.io/api/core/v1"

// terminateOnReboot is false: this version has no reboot policy.
func terminateOnReboot(*kvv1.VirtualMachineInstance) bool { return false }
