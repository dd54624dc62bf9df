// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// MachineName returns the name of the BMC's VirtualMachine; empty: it names none.
func (b *VirtualMachineBMC) MachineName() string {
	if b.Spec.VirtualMachineRef == nil {
		return ""
	}
	return b.Spec.VirtualMachineRef.Name
}

// AuthSecretName returns the name of the Secret with the BMC's account; empty: it
// names none.
func (b *VirtualMachineBMC) AuthSecretName() string {
	if b.Spec.AuthSecretRef == nil {
		return ""
	}
	return b.Spec.AuthSecretRef.Name
}

// CertificateSecretName returns the name of the Secret with the BMC's certificate;
// empty: it names none.
func (b *VirtualMachineBMC) CertificateSecretName() string {
	redfish := b.Spec.Redfish
	if redfish == nil || redfish.HTTPS == nil || redfish.HTTPS.CertificateSecretRef == nil {
		return ""
	}
	return redfish.HTTPS.CertificateSecretRef.Name
}
