// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulator is a hypervisor in memory. It answers as KubeVirt does, its
// refusals and races included, so that what runs against it has met KubeVirt's
// habits: requests that are accepted and acted on later, a start that is lost
// because the old instance is still there, ended instances that linger. The
// suite of package contract holds it to the behaviour that was read in
// KubeVirt's source and seen on a real one.
//
// A machine at rest costs a few kilobytes and no goroutine: everything that
// takes time is a timer. With no other clock than package time, the simulator
// works inside a testing/synctest bubble.
//
// What is not real: no guest code runs. The serial console prints what firmware
// would print, names the device that it boots from and ends in a login prompt
// that echoes input. Insert takes as long as an import would and never fetches
// the URL.
package simulator
