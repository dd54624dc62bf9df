// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 has the Kubernetes API of KubeVirtBMC: the VirtualMachineBMC
// of group bmc.kubevirt.io, with the names and conditions that belong to it.
//
// The schema accepts whatever the schemas of the product's chart lines 0.4.1,
// 0.5.1 and 0.6.0 and of its successors accepted, so that no stored object
// becomes one that nobody can edit any more. What those left to their admission
// webhook (that both references are there and named) is left to ours too; rules
// in the schema are about fields that those lines did not have.
//
// Where a field says "unset: as the controller is set", the Helm chart decides,
// so that each line of the chart keeps what its users are used to.
//
// +kubebuilder:object:generate=true
// +groupName=bmc.kubevirt.io
package v1beta1
