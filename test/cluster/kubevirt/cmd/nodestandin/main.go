// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command nodestandin plays virt-handler under the real virt-operator, virt-api
// and virt-controller.
//
// It moves VirtualMachineInstances through their phases and answers what
// virt-api passes on: pause, unpause, reset, softreboot, guestosinfo, userlist,
// filesystemlist and the serial console. It is also both ends of a live
// migration that virt-controller directs. The machines exist in its memory
// only; see guest.go for how they behave.
//
// KubeVirt's own rights and admission policies apply to it, and hold it to
// what the true virt-handler may do.
package main

import "log"

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if err := runHandler(); err != nil {
		log.Fatal(err)
	}
}
