// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Controller tells the frontends which BMCs to serve, and keeps what a BMC has to
// remember.
package main

import (
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/controller/internal/app"
)

func main() { process.Main("controller", app.New) }
