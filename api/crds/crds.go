// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package crds has the custom resource definitions of package v1beta1, as
// generated from it.
package crds

import _ "embed" // for the definitions

// VirtualMachineBMC is the CustomResourceDefinition of VirtualMachineBMC, in
// YAML.
//
//go:embed bmc.kubevirt.io_virtualmachinebmcs.yaml
var VirtualMachineBMC []byte
