// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Simulator keeps simulated machines in a process of its own.
package main

import (
	"kubevirtbmc.dev/pkg/hypervisor/simulator/simulatorprocess"
	"kubevirtbmc.dev/pkg/process"
)

func main() { process.Main("simulator", simulatorprocess.New) }
