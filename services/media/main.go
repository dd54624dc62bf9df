// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Media inserts images into the virtual media slots of machines and ejects them.
package main

import (
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/media/internal/app"
)

func main() { process.Main("media", app.New) }
