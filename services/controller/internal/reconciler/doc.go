// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package reconciler makes the cluster as VirtualMachineBMCs say: their Services
// and EndpointSlices, their entries of the registry, and their status.
//
// Decisions are functions of what was read, apart from those that read and write:
// how a BMC is to be served (wanted), who may log in (package credential), what its
// Service and EndpointSlices are to be, and which conditions it has.
//
// Two controllers work side by side. One looks at all of a BMC. The other keeps
// its EndpointSlices alone, from caches and with a client of its own, so that a
// replica's death moves hundreds of BMCs while the first is still busy with their
// status. Objects are written by server-side apply, and only when they differ.
//
// All of that is done by the leader of the controllers, which alone serves the
// registry.
package reconciler
