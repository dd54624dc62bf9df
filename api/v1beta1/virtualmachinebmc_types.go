// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineBMC gives a KubeVirt VirtualMachine a baseboard management
// controller: IPMI 2.0 and Redfish behind a Service of its own.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=vmbmc;vmbmcs,categories=all
// +kubebuilder:printcolumn:name="VirtualMachine",type=string,JSONPath=`.spec.virtualMachineRef.name`,description="Machine behind the BMC"
// +kubebuilder:printcolumn:name="Secret",type=string,JSONPath=`.spec.authSecretRef.name`,description="Secret with the BMC's account"
// +kubebuilder:printcolumn:name="ClusterIP",type=string,JSONPath=`.status.clusterIP`,description="Address within the cluster"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether clients can log in now"
// +kubebuilder:printcolumn:name="ServiceReady",type=string,JSONPath=`.status.conditions[?(@.type=="ServiceReady")].status`,description="Whether the Service has its address"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is ready or not"
// +kubebuilder:printcolumn:name="LoadBalancerIP",type=string,priority=1,JSONPath=`.status.loadBalancerIP`,description="Address of the load balancer"
// +kubebuilder:printcolumn:name="LoadBalancerHostname",type=string,priority=1,JSONPath=`.status.loadBalancerHostname`,description="Host name of the load balancer"
// +kubebuilder:printcolumn:name="HTTPSNodePort",type=integer,priority=1,JSONPath=`.status.nodePorts.https`,description="Port of each node for Redfish over HTTPS"
// +kubebuilder:printcolumn:name="IPMINodePort",type=integer,priority=1,JSONPath=`.status.nodePorts.ipmi`,description="Port of each node for IPMI"
// +kubebuilder:printcolumn:name="Mode",type=string,priority=1,JSONPath=`.status.frontend.mode`,description="Whether frontends are shared with other BMCs"
// +kubebuilder:printcolumn:name="RedfishReplica",type=string,priority=1,JSONPath=`.status.frontend.redfish.replica`,description="Pod that serves Redfish"
// +kubebuilder:printcolumn:name="IPMIReplica",type=string,priority=1,JSONPath=`.status.frontend.ipmi.replica`,description="Pod that serves IPMI"
type VirtualMachineBMC struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what is wanted.
	// +optional
	Spec VirtualMachineBMCSpec `json:"spec,omitzero"`
	// status is what was last observed.
	// +optional
	Status VirtualMachineBMCStatus `json:"status,omitzero"`
}

// VirtualMachineBMCList is a list of VirtualMachineBMCs.
//
// +kubebuilder:object:root=true
type VirtualMachineBMCList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineBMC `json:"items"`
}

// VirtualMachineBMCSpec is what is wanted of a BMC.
//
// +kubebuilder:validation:XValidation:rule="!has(self.networkRef) || size(self.networkRef) == 0 || !has(self.frontend) || !has(self.frontend.mode) || self.frontend.mode == 'Dedicated'",fieldPath=".networkRef",message="only a dedicated frontend has a network of its own: leave frontend.mode out or make it Dedicated"
type VirtualMachineBMCSpec struct {
	// virtualMachineRef names the VirtualMachine, in the same namespace. Admission
	// requires it. A machine has one BMC.
	// +optional
	VirtualMachineRef *LocalObjectReference `json:"virtualMachineRef,omitempty"`
	// authSecretRef names the Secret with the keys username and password, in the
	// same namespace. Admission requires it. A change of the Secret counts at
	// once, for new logins. The keys ipmi-username, ipmi-password and ipmi-kg are
	// optional, for IPMI alone.
	// +optional
	AuthSecretRef *LocalObjectReference `json:"authSecretRef,omitempty"`
	// ipmi is how the BMC is served over IPMI.
	// +optional
	IPMI *IPMISpec `json:"ipmi,omitempty"`
	// redfish is how the BMC is served over Redfish.
	// +optional
	Redfish *RedfishSpec `json:"redfish,omitempty"`
	// bootOverride is how boot overrides are carried out.
	// +optional
	BootOverride *BootOverrideSpec `json:"bootOverride,omitempty"`
	// service is how the BMC's Service is made.
	// +optional
	Service *ServiceSpec `json:"service,omitempty"`
	// frontend is what serves the BMC.
	// +optional
	Frontend *FrontendSpec `json:"frontend,omitempty"`
	// networkRef attaches a dedicated frontend to further networks: the value of
	// the annotation k8s.v1.cni.cncf.io/networks of its pod. Where it is set, and
	// frontend.mode is not, the frontend is dedicated.
	// +optional
	NetworkRef *string `json:"networkRef,omitempty"`
	// storageClassName is the storage class for virtual media.
	// redfish.virtualMedia.storage.storageClassName, which replaces it, has
	// precedence.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// LocalObjectReference names an object in the same namespace. An empty name
// names none.
//
// +structType=atomic
type LocalObjectReference struct {
	// name of the object.
	// +optional
	// +kubebuilder:default=""
	Name string `json:"name,omitempty"`
}

// SecretReference names a Secret in the same namespace.
//
// +structType=atomic
type SecretReference struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// IPMISpec is how a BMC is served over IPMI.
type IPMISpec struct {
	// enabled serves IPMI 2.0 (RMCP+) on UDP port 623. Unset: as the controller
	// is set, which is true for chart lines up to 0.5.1 and false for later ones.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// lan is about sessions of IPMI v1.5.
	// +optional
	LAN *IPMILANSpec `json:"lan,omitempty"`
	// cipherSuites are the cipher suites of RMCP+ to offer, most wanted first, by
	// their ids (IPMI 2.0 table 22-20): 17 (SHA-256) and 3 (SHA-1). Unset: 17,
	// then 3.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=3;17
	// +kubebuilder:validation:XValidation:rule="self.all(suite, self.exists_one(other, other == suite))",message="a cipher suite is named twice"
	CipherSuites []int32 `json:"cipherSuites,omitempty"`
}

// IPMILANSpec is about sessions of IPMI v1.5, ipmitool's interface "lan".
type IPMILANSpec struct {
	// enabled serves such sessions too: authenticated, never encrypted. Unset: as
	// the controller is set, which is true for chart lines up to 0.6.0 and false
	// for later ones. The frontend for IPMI has no such sessions so far.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// RedfishSpec is how a BMC is served over Redfish.
type RedfishSpec struct {
	// https is about port 443.
	// +optional
	HTTPS *RedfishHTTPSSpec `json:"https,omitempty"`
	// http is about port 80, where passwords are sent in clear text.
	// +optional
	HTTP *RedfishHTTPSpec `json:"http,omitempty"`
	// virtualMedia is how virtual media are fetched and stored.
	// +optional
	VirtualMedia *VirtualMediaSpec `json:"virtualMedia,omitempty"`
}

// RedfishHTTPSSpec is about Redfish over HTTPS, TCP port 443.
type RedfishHTTPSSpec struct {
	// enabled serves HTTPS. Unset: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// certificateSecretRef names a Secret with a certificate chain and its key,
	// under tls.crt and tls.key in PEM, as of type kubernetes.io/tls. A change
	// counts for new connections. Unset: the controller has one issued.
	// +optional
	CertificateSecretRef *SecretReference `json:"certificateSecretRef,omitempty"`
}

// RedfishHTTPSpec is about Redfish over plain HTTP, TCP port 80.
type RedfishHTTPSpec struct {
	// enabled serves HTTP. Unset: as the controller is set, which is true for
	// chart lines up to 0.6.0 and false for later ones.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// VirtualMediaSpec is how virtual media are fetched and stored.
type VirtualMediaSpec struct {
	// storage is where the image of a medium is kept.
	// +optional
	Storage *VirtualMediaStorageSpec `json:"storage,omitempty"`
	// tls is how the server of an https image is verified.
	// +optional
	TLS *VirtualMediaTLSSpec `json:"tls,omitempty"`
}

// VirtualMediaStorageSpec is where the image of a medium is kept.
type VirtualMediaStorageSpec struct {
	// storageClassName is the storage class of the volume. Unset: the cluster's
	// default.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
	// volumeMode of the volume. Unset: CDI chooses by the storage class.
	// +optional
	VolumeMode *VolumeMode `json:"volumeMode,omitempty"`
}

// VolumeMode is what a volume is to those who use it.
//
// +kubebuilder:validation:Enum=Filesystem;Block
type VolumeMode string

const (
	// VolumeModeFilesystem is a volume with a file system.
	VolumeModeFilesystem VolumeMode = "Filesystem"
	// VolumeModeBlock is a raw block device.
	VolumeModeBlock VolumeMode = "Block"
)

// VirtualMediaTLSSpec is how the server of an https image is verified.
type VirtualMediaTLSSpec struct {
	// insecureSkipVerify accepts any certificate. Unset: false.
	// +optional
	InsecureSkipVerify *bool `json:"insecureSkipVerify,omitempty"`
	// caBundleConfigMapRef names a ConfigMap in the same namespace with
	// certificates to trust, in PEM under the key ca.pem.
	// +optional
	CABundleConfigMapRef *LocalObjectReference `json:"caBundleConfigMapRef,omitempty"`
}

// BootOverrideSpec is how boot overrides are carried out.
type BootOverrideSpec struct {
	// strategy is Admission (an admission webhook changes the one instance that
	// an override is for) or Template (the template of the VirtualMachine is
	// changed, and restored afterwards). Unset: as the controller is set.
	// +optional
	Strategy BootOverrideStrategy `json:"strategy,omitempty"`
}

// BootOverrideStrategy is how boot overrides are carried out.
//
// +kubebuilder:validation:Enum=Admission;Template
type BootOverrideStrategy string

const (
	// BootOverrideStrategyAdmission changes the instance at its admission.
	BootOverrideStrategyAdmission BootOverrideStrategy = "Admission"
	// BootOverrideStrategyTemplate changes the template and restores it.
	BootOverrideStrategyTemplate BootOverrideStrategy = "Template"
)

// ServiceSpec is how a BMC's Service is made.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nodePorts) || (has(self.type) && self.type != 'ClusterIP')",fieldPath=".nodePorts",message="node ports need type NodePort or LoadBalancer"
// +kubebuilder:validation:XValidation:rule="!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')",fieldPath=".externalTrafficPolicy",message="an external traffic policy needs type NodePort or LoadBalancer"
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",fieldPath=".loadBalancerClass",message="a load balancer class needs type LoadBalancer"
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerSourceRanges) || (has(self.type) && self.type == 'LoadBalancer')",fieldPath=".loadBalancerSourceRanges",message="source ranges need type LoadBalancer"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.type) || oldSelf.type != 'LoadBalancer' || !has(self.type) || self.type != 'LoadBalancer' || (has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && (!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass))",fieldPath=".loadBalancerClass",message="Kubernetes can't change a load balancer's class: change the type to ClusterIP first"
type ServiceSpec struct {
	// type of the Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	Type ServiceType `json:"type,omitempty"`
	// labels to add to the Service.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations to add to the Service.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// nodePorts are the ports of each node that the Service is to have. Unset:
	// Kubernetes chooses.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.http) || !has(self.https) || self.http != self.https",message="http and https are both TCP and need different ports"
	NodePorts *ServicePorts `json:"nodePorts,omitempty"`
	// externalTrafficPolicy of the Service. Local keeps the addresses of clients,
	// and answers only on the node of the frontend's pod. Unset: Cluster.
	// +optional
	ExternalTrafficPolicy ExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`
	// loadBalancerClass chooses the load balancer's implementation. Unset: the
	// cluster's default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`
	// loadBalancerSourceRanges are the networks that may reach the load balancer,
	// as CIDR. Unset: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=49
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="not an address range in CIDR notation"
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
}

// ServiceType is the type of a Service.
//
// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
type ServiceType string

const (
	// ServiceTypeClusterIP has an address within the cluster.
	ServiceTypeClusterIP ServiceType = "ClusterIP"
	// ServiceTypeNodePort also has ports on each node.
	ServiceTypeNodePort ServiceType = "NodePort"
	// ServiceTypeLoadBalancer also has an external load balancer.
	ServiceTypeLoadBalancer ServiceType = "LoadBalancer"
)

// ExternalTrafficPolicy is which nodes answer traffic from outside.
//
// +kubebuilder:validation:Enum=Cluster;Local
type ExternalTrafficPolicy string

const (
	// ExternalTrafficPolicyCluster lets each node answer.
	ExternalTrafficPolicyCluster ExternalTrafficPolicy = "Cluster"
	// ExternalTrafficPolicyLocal lets the node of the endpoint answer.
	ExternalTrafficPolicyLocal ExternalTrafficPolicy = "Local"
)

// ServicePorts has a port for each port of a BMC's Service.
type ServicePorts struct {
	// http is for Redfish over plain HTTP, TCP port 80 of the Service.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTP *int32 `json:"http,omitempty"`
	// https is for Redfish over HTTPS, TCP port 443 of the Service.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTPS *int32 `json:"https,omitempty"`
	// ipmi is for IPMI, UDP port 623 of the Service.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	IPMI *int32 `json:"ipmi,omitempty"`
}

// FrontendSpec is what serves a BMC.
//
// +kubebuilder:validation:XValidation:rule="!has(self.dedicated) || !has(self.mode) || self.mode == 'Dedicated'",fieldPath=".dedicated",message="dedicated is for mode Dedicated"
type FrontendSpec struct {
	// mode is Shared (processes that serve many BMCs) or Dedicated (a Deployment
	// for this BMC alone, in its namespace). Unset: Dedicated where networkRef is
	// set, else as the controller is set.
	// +optional
	Mode FrontendMode `json:"mode,omitempty"`
	// dedicated is about the Deployment of mode Dedicated.
	// +optional
	Dedicated *DedicatedFrontendSpec `json:"dedicated,omitempty"`
}

// FrontendMode is what serves a BMC.
//
// +kubebuilder:validation:Enum=Shared;Dedicated
type FrontendMode string

const (
	// FrontendModeShared serves the BMC from processes that serve many.
	FrontendModeShared FrontendMode = "Shared"
	// FrontendModeDedicated serves the BMC from a Deployment of its own.
	FrontendModeDedicated FrontendMode = "Dedicated"
)

// DedicatedFrontendSpec is about the Deployment of a dedicated frontend.
type DedicatedFrontendSpec struct {
	// resources of its container. Unset: as the controller is set.
	// +optional
	Resources *ResourceRequirements `json:"resources,omitempty"`
	// nodeSelector is the labels that its node must have, as one that is on the
	// network of networkRef.
	// +optional
	// +mapType=atomic
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// ResourceRequirements is what a container may use, as in a pod.
type ResourceRequirements struct {
	// limits is the most that it gets, by resource (cpu, memory).
	// +optional
	Limits map[string]resource.Quantity `json:"limits,omitempty"`
	// requests is what it gets at least, by resource (cpu, memory).
	// +optional
	Requests map[string]resource.Quantity `json:"requests,omitempty"`
}

// VirtualMachineBMCStatus is what was last observed of a BMC.
type VirtualMachineBMCStatus struct {
	// observedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions say what works and what does not; Ready and ServiceReady sum up.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// clusterIP is the Service's address within the cluster.
	// +optional
	ClusterIP string `json:"clusterIP,omitempty"`
	// loadBalancerIP is the first address of the Service's load balancer.
	// +optional
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`
	// loadBalancerHostname is the first host name of the Service's load balancer.
	// +optional
	LoadBalancerHostname string `json:"loadBalancerHostname,omitempty"`
	// nodePorts are the ports of each node that the Service has.
	// +optional
	NodePorts *ServicePorts `json:"nodePorts,omitempty"`
	// frontend is what serves the BMC now.
	// +optional
	Frontend *FrontendStatus `json:"frontend,omitempty"`
	// bootOverride is the boot override that is armed; unset when there is none.
	// It is a view: what is written here arms nothing.
	// +optional
	BootOverride *BootOverrideStatus `json:"bootOverride,omitempty"`
}

// FrontendStatus is what serves a BMC now.
type FrontendStatus struct {
	// mode in use.
	// +optional
	Mode FrontendMode `json:"mode,omitempty"`
	// ipmi is the frontend for IPMI.
	// +optional
	IPMI *IPMIFrontendStatus `json:"ipmi,omitempty"`
	// redfish is the frontend for Redfish.
	// +optional
	Redfish *RedfishFrontendStatus `json:"redfish,omitempty"`
}

// IPMIFrontendStatus is the frontend of a BMC for IPMI.
type IPMIFrontendStatus struct {
	// replica is the name of the pod that owns the BMC. Unset: none does.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Replica string `json:"replica,omitempty"`
	// port is the UDP port of that pod. A BMC keeps it for life, whichever pod
	// owns it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// RedfishFrontendStatus is the frontend of a BMC for Redfish.
type RedfishFrontendStatus struct {
	// replica is the name of the pod that owns the BMC. Unset: none does.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Replica string `json:"replica,omitempty"`
	// httpsPort is the TCP port of that pod for HTTPS. A BMC keeps it for life.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTPSPort *int32 `json:"httpsPort,omitempty"`
	// httpPort is the TCP port of that pod for plain HTTP. A BMC keeps it for
	// life.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	HTTPPort *int32 `json:"httpPort,omitempty"`
}

// BootOverrideStatus is a boot override that is armed.
type BootOverrideStatus struct {
	// mode is Oneshot (for the next instance of the machine) or Persistent (until
	// it is changed).
	Mode BootOverrideMode `json:"mode"`
	// vmUID is the UID of the VirtualMachine that it was armed for. One that was
	// made anew under the same name does not get it. Empty: the present one.
	// +optional
	VMUID types.UID `json:"vmUID,omitempty"`
	// vmiUID is the UID of the instance that there was when it was armed; the
	// override is for a later one. Empty: there was none.
	// +optional
	VMIUID types.UID `json:"vmiUID,omitempty"`
	// bootOrders are the orders to restore in the template, by device:
	// disk:<name>, cdrom:<name> or interface:<name>. 0: the device had none.
	// +optional
	BootOrders map[string]int64 `json:"bootOrders,omitempty"`
	// originalFirmware is the firmware to restore in the template.
	// +optional
	OriginalFirmware BootFirmware `json:"originalFirmware,omitempty"`
	// id of the override, a new one each time that one is armed.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id,omitempty"`
	// strategy by which it is carried out.
	// +optional
	Strategy BootOverrideStrategy `json:"strategy,omitempty"`
	// target is the kind of device to boot from.
	// +optional
	Target BootTarget `json:"target,omitempty"`
	// firmware to boot with. Unset: the machine's own.
	// +optional
	Firmware BootFirmware `json:"firmware,omitempty"`
}

// BootOverrideMode is how long a boot override counts.
//
// +kubebuilder:validation:Enum=Oneshot;Persistent
type BootOverrideMode string

const (
	// BootOverrideModeOneshot counts for one start of the machine.
	BootOverrideModeOneshot BootOverrideMode = "Oneshot"
	// BootOverrideModePersistent counts until it is changed.
	BootOverrideModePersistent BootOverrideMode = "Persistent"
)

// BootFirmware is the kind of firmware that starts a guest.
//
// +kubebuilder:validation:Enum=Legacy;UEFI
type BootFirmware string

const (
	// BootFirmwareLegacy is BIOS.
	BootFirmwareLegacy BootFirmware = "Legacy"
	// BootFirmwareUEFI is UEFI.
	BootFirmwareUEFI BootFirmware = "UEFI"
)

// BootTarget is a kind of device to boot from.
//
// +kubebuilder:validation:Enum=PXE;HDD;CD
type BootTarget string

const (
	// BootTargetPXE is the network.
	BootTargetPXE BootTarget = "PXE"
	// BootTargetHDD is the first hard disk.
	BootTargetHDD BootTarget = "HDD"
	// BootTargetCD is the first CD or DVD drive.
	BootTargetCD BootTarget = "CD"
)
