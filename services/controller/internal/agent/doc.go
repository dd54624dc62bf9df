// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent keeps the dedicated agents of VirtualMachineBMCs: for each a
// Deployment that runs both frontends for that BMC alone, in its namespace, with a
// ServiceAccount whose rights end with it.
//
// What an agent consists of is a function of the BMC and of the controller's
// options (Options.Objects). A Keeper makes the cluster so, by server-side apply,
// and only where it differs from what was applied last.
package agent
