// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt is the hypervisor that KubeVirt is: package hypervisor's
// interface on top of VirtualMachine and VirtualMachineInstance objects and
// their subresources.
//
// Reads come from shared informers, which keep only what a machine's snapshot
// needs: no user data, no credentials, no managed fields. Verbs are the
// subresources of subresources.kubevirt.io/v1; writes are JSON patches with
// test operations, so that a concurrent writer's change is never lost. Both
// wait until the informers show what they did.
//
// Which answer of KubeVirt becomes which error of package hypervisor is in
// errors.go.
package kubevirt
