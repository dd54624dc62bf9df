// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

// ServiceConfig is what all connections use.
func ServiceConfig() string { return serviceConfig() }
