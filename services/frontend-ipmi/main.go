// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Command frontend-ipmi serves virtual machines over IPMI 2.0.
package main

import (
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/app"
)

func main() { process.Main("frontend-ipmi", app.Configure) }
