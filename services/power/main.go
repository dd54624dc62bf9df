// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Power reads and changes the power state, boot override and serial console of
// machines, and tells what they are made of.
package main

import (
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/power/internal/app"
)

func main() { process.Main("power", app.New) }
