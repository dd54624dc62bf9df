// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Condition types of a VirtualMachineBMC. Each has observedGeneration set. A
// condition that does not apply (as CertificateReady without HTTPS) is left out.
const (
	// ConditionReady is True when a client could log in now: machine and Secret
	// are there, the Service has its address, and each frontend that is wanted
	// has acknowledged that it serves the BMC with its present credentials. When
	// it is False its reason and message are those of the condition that stands
	// in the way.
	ConditionReady = "Ready"
	// ConditionServiceReady is True when the Service has what its type promises:
	// an address of the cluster, node ports, or an address or host name of the
	// load balancer.
	ConditionServiceReady = "ServiceReady"
	// ConditionVirtualMachineAvailable is True when the VirtualMachine exists and
	// is this BMC's.
	ConditionVirtualMachineAvailable = "VirtualMachineAvailable"
	// ConditionSecretAvailable is True when the Secret exists and its keys can be
	// used.
	ConditionSecretAvailable = "SecretAvailable"
	// ConditionFrontendReady is True when each frontend that is wanted has
	// acknowledged that it serves the BMC.
	ConditionFrontendReady = "FrontendReady"
	// ConditionCertificateReady is True when HTTPS has a certificate that is
	// valid now. Left out where HTTPS is off.
	ConditionCertificateReady = "CertificateReady"
	// ConditionHypervisorAvailable is True when KubeVirt's API is served. Logins
	// to BMCs that were served before work without it, actions don't.
	ConditionHypervisorAvailable = "HypervisorAvailable"
	// ConditionVirtualMediaAvailable is True when media can be inserted, which
	// takes CDI's API.
	ConditionVirtualMediaAvailable = "VirtualMediaAvailable"
	// ConditionBootOverrideAvailable is True when boot overrides take effect.
	ConditionBootOverrideAvailable = "BootOverrideAvailable"
	// ConditionIPMIDisabledByUpgrade is True for an object that was served over
	// IPMI by an earlier line, says nothing of IPMI, and is not served over it
	// any more. It goes when spec.ipmi.enabled is set to either value.
	ConditionIPMIDisabledByUpgrade = "IPMIDisabledByUpgrade"
)

// Reasons of ConditionReady when it is True.
const (
	// ReasonServing says that clients can log in.
	ReasonServing = "Serving"
)

// Reasons of ConditionServiceReady.
const (
	// ReasonServiceReady says that the Service has what its type promises.
	ReasonServiceReady = "ServiceReady"
	// ReasonServiceNotReady says that the Service waits for its address, node
	// ports or load balancer, or that there is none, as in a namespace that is
	// being deleted.
	ReasonServiceNotReady = "ServiceNotReady"
	// ReasonServiceRefused says that the API server did not accept the Service,
	// as for a node port that is taken.
	ReasonServiceRefused = "ServiceRefused"
	// ReasonServiceNotOwned says that a Service of that name exists that is
	// somebody else's and is left alone.
	ReasonServiceNotOwned = "ServiceNotOwned"
)

// Reasons of ConditionVirtualMachineAvailable.
const (
	// ReasonVirtualMachineFound says that the machine exists.
	ReasonVirtualMachineFound = "VirtualMachineFound"
	// ReasonVirtualMachineNotFound says that it does not, or is not named.
	ReasonVirtualMachineNotFound = "VirtualMachineNotFound"
	// ReasonVirtualMachineUnknown says that KubeVirt's API is not served any more; the
	// BMC is served as before until it is.
	ReasonVirtualMachineUnknown = "VirtualMachineUnknown"
	// ReasonVirtualMachineTaken says that an older VirtualMachineBMC has the
	// machine.
	ReasonVirtualMachineTaken = "VirtualMachineTaken"
)

// Reasons of ConditionSecretAvailable.
const (
	// ReasonSecretFound says that the Secret exists and can be used.
	ReasonSecretFound = "SecretFound"
	// ReasonSecretNotFound says that it does not exist, or is not named.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretInvalid says that a key is missing, empty, or longer than the
	// protocols carry.
	ReasonSecretInvalid = "SecretInvalid"
)

// Reasons of ConditionFrontendReady.
const (
	// ReasonFrontendServing says that each frontend that is wanted serves the
	// BMC.
	ReasonFrontendServing = "FrontendServing"
	// ReasonFrontendPending says that a frontend has not acknowledged yet what
	// it was told last.
	ReasonFrontendPending = "FrontendPending"
	// ReasonFrontendFailed says that a frontend was told and can't serve; the
	// message is the frontend's.
	ReasonFrontendFailed = "FrontendFailed"
	// ReasonFrontendAbsent says that no replica of a frontend is connected.
	ReasonFrontendAbsent = "FrontendAbsent"
	// ReasonEndpointSliceNotOwned says that an EndpointSlice of the name that a
	// frontend's is to have exists that is somebody else's and is left alone.
	ReasonEndpointSliceNotOwned = "EndpointSliceNotOwned"
	// ReasonPortsExhausted says that no port of the configured range is left.
	ReasonPortsExhausted = "PortsExhausted"
	// ReasonAgentNotReady says that the Deployment of the dedicated agent has no
	// pod that is ready.
	ReasonAgentNotReady = "AgentNotReady"
	// ReasonAgentRefused says that the API server did not accept an object of the
	// dedicated agent, that one of that name is somebody else's, or that the
	// controller has no right to run agents.
	ReasonAgentRefused = "AgentRefused"
	// ReasonAdoptionForbidden says that the agent of an earlier version serves the
	// BMC, which the controller has no right to remove.
	ReasonAdoptionForbidden = "AdoptionForbidden"
	// ReasonNothingEnabled says that neither Redfish nor IPMI is switched on.
	ReasonNothingEnabled = "NothingEnabled"
)

// Reasons of ConditionCertificateReady.
const (
	// ReasonCertificateIssued says that the controller or cert-manager has issued
	// the certificate.
	ReasonCertificateIssued = "CertificateIssued"
	// ReasonCertificatePending says that it has not been issued yet.
	ReasonCertificatePending = "CertificatePending"
	// ReasonCertificateProvided says that the user's Secret has a certificate
	// that can be used.
	ReasonCertificateProvided = "CertificateProvided"
	// ReasonCertificateSecretNotFound says that the user's Secret does not exist.
	ReasonCertificateSecretNotFound = "CertificateSecretNotFound"
	// ReasonCertificateInvalid says that the user's Secret has no certificate
	// with its key.
	ReasonCertificateInvalid = "CertificateInvalid"
	// ReasonCertificateExpired says that the certificate is not valid now.
	ReasonCertificateExpired = "CertificateExpired"
)

// Reasons of ConditionHypervisorAvailable.
const (
	// ReasonKubeVirtFound says that KubeVirt's API is served.
	ReasonKubeVirtFound = "KubeVirtFound"
	// ReasonKubeVirtNotFound says that it is not.
	ReasonKubeVirtNotFound = "KubeVirtNotFound"
)

// Reasons of ConditionVirtualMediaAvailable.
const (
	// ReasonCDIFound says that CDI's API is served.
	ReasonCDIFound = "CDIFound"
	// ReasonCDINotFound says that it is not.
	ReasonCDINotFound = "CDINotFound"
)

// Reasons of ConditionBootOverrideAvailable.
const (
	// ReasonAdmission says that the admission webhook answers: the API server
	// reached it when that was tried last.
	ReasonAdmission = "Admission"
	// ReasonTemplate says that overrides are written to the machine's template.
	ReasonTemplate = "Template"
	// ReasonWebhookUnavailable says that the admission webhook does not answer,
	// or is not called.
	ReasonWebhookUnavailable = "WebhookUnavailable"
	// ReasonWebhookUntried says that it is not known yet whether the API server
	// reaches the admission webhook.
	ReasonWebhookUntried = "WebhookUntried"
	// ReasonWebhookBypassed says that the machine started without the override
	// that was armed for that start, and again when it was made anew.
	ReasonWebhookBypassed = "WebhookBypassed"
)

// Reasons of ConditionIPMIDisabledByUpgrade.
const (
	// ReasonDefaultChanged says that this line serves IPMI only where the object
	// asks for it; the earlier one did so unless it was told not to.
	ReasonDefaultChanged = "DefaultChanged"
)
