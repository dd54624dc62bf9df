// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Keys of the Secret that spec.authSecretRef names. Its type does not matter.
const (
	// SecretKeyUsername is the user name of the BMC's account; required. IPMI
	// carries 16 bytes of it.
	SecretKeyUsername = "username"
	// SecretKeyPassword is the password of the BMC's account; required. IPMI 2.0
	// carries 20 bytes of it, IPMI v1.5 carries 16.
	SecretKeyPassword = "password"
	// SecretKeyIPMIUsername is the user name for IPMI alone, where it has to
	// differ from Redfish's.
	SecretKeyIPMIUsername = "ipmi-username"
	// SecretKeyIPMIPassword is the password for IPMI alone.
	SecretKeyIPMIPassword = "ipmi-password"
	// SecretKeyIPMIKg is the key-generating key Kg, up to 20 bytes; without it
	// the password serves as such (IPMI 2.0 section 13.31).
	SecretKeyIPMIKg = "ipmi-kg"
)

// KeyCABundle is the key of the ConfigMap that
// spec.redfish.virtualMedia.tls.caBundleConfigMapRef names: certificates in PEM.
const KeyCABundle = "ca.pem"

// Labels of the objects that belong to a VirtualMachineBMC.
const (
	// LabelVirtualMachineBMCName is the name of the VirtualMachineBMC.
	LabelVirtualMachineBMCName = "kubevirt.io/virtualmachinebmc-name"
	// LabelVMName is the name of its VirtualMachine.
	LabelVMName = "kubevirt.io/vm-name"
	// LabelProvisioned is "true" on a VirtualMachineBMC that the controller has
	// given a machine, and on its Secret.
	LabelProvisioned = "bmc.kubevirt.io/provisioned"
)

// Annotations of a VirtualMachineBMC.
const (
	// AnnotationDataVolumeSizeMargin is how many per cent larger than its image
	// the volume of a virtual medium is made: an integer over 0. Anything else
	// means no margin.
	AnnotationDataVolumeSizeMargin = "bmc.kubevirt.io/datavolume-size-margin"
	// AnnotationState is what the services remember of the BMC, in JSON. Users
	// leave it alone.
	AnnotationState = "bmc.kubevirt.io/state"
)

// AnnotationNetworks is the annotation of a dedicated agent's pod that gets the
// value of spec.networkRef.
const AnnotationNetworks = "k8s.v1.cni.cncf.io/networks"
