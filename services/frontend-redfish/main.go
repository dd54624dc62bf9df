// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Frontend-redfish serves the Redfish endpoints of BMCs and carries out what
// clients ask for through the gRPC services.
package main

import (
	"kubevirtbmc.dev/pkg/process"
	"kubevirtbmc.dev/services/frontend-redfish/internal/app"
)

func main() { process.Main("frontend-redfish", app.New) }
