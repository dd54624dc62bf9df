// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Command virtbmc serves one virtual machine over IPMI 2.0 and Redfish: the
// dedicated agent of a VirtualMachineBMC.
package main

import (
	"kubevirtbmc.dev/cmd/virtbmc/internal/app"
	"kubevirtbmc.dev/pkg/process"
)

func main() { process.Main("virtbmc", app.Configure) }
