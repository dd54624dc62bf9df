// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmc

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/credential"
)

// Paths at which the API server finds the webhooks.
const (
	// ValidatePath is the validating webhook's.
	ValidatePath = "/validate-bmc-kubevirt-io-v1beta1-virtualmachinebmc"
	// MutatePath is where earlier lines had a mutating webhook that changed
	// nothing.
	MutatePath = "/mutate-bmc-kubevirt-io-v1beta1-virtualmachinebmc"
)

// serviceSuffix follows the machine's name in the name of a BMC's Service.
const serviceSuffix = "-virtbmc"

var (
	kind           = schema.GroupKind{Group: v1beta1.GroupVersion.Group, Kind: "VirtualMachineBMC"}
	virtualMachine = schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}

	specPath        = field.NewPath("spec")
	machinePath     = specPath.Child("virtualMachineRef", "name")
	secretPath      = specPath.Child("authSecretRef", "name")
	certificatePath = specPath.Child("redfish", "https", "certificateSecretRef", "name")
	servicePath     = specPath.Child("service")
	networkPath     = specPath.Child("networkRef")
)

// Validator validates VirtualMachineBMCs. It implements admission.Validator.
type Validator struct {
	// Live reads Secrets and VirtualMachines by name, and lists VirtualMachineBMCs,
	// from the API server rather than from a cache.
	Live client.Reader
	// IPMI tells whether IPMI is served where an object does not say.
	IPMI bool
	// HTTP tells whether plain HTTP is, likewise, and Mode what serves.
	HTTP bool
	Mode v1beta1.FrontendMode
	// Networks are those of agent.Options.
	Networks []string
}

var _ admission.Validator[*v1beta1.VirtualMachineBMC] = (*Validator)(nil)

// ValidateCreate validates a new BMC.
func (v *Validator) ValidateCreate(ctx context.Context, bmc *v1beta1.VirtualMachineBMC) (admission.Warnings, error) {
	return v.validate(ctx, &v1beta1.VirtualMachineBMC{}, bmc)
}

// ValidateUpdate validates what changes of a BMC.
func (v *Validator) ValidateUpdate(ctx context.Context, before, bmc *v1beta1.VirtualMachineBMC) (admission.Warnings, error) {
	if bmc.DeletionTimestamp != nil {
		return nil, nil
	}
	return v.validate(ctx, before, bmc)
}

// ValidateDelete lets every BMC go.
func (v *Validator) ValidateDelete(context.Context, *v1beta1.VirtualMachineBMC) (admission.Warnings, error) {
	return nil, nil
}

func (v *Validator) validate(ctx context.Context, before, bmc *v1beta1.VirtualMachineBMC) (admission.Warnings, error) {
	c := check{v: v, bmc: bmc}
	if before.Name == "" {
		c.name()
	}
	if machine := bmc.MachineName(); before.Name == "" || machine != before.MachineName() {
		if err := c.machine(ctx, machine); err != nil {
			return nil, err
		}
	}
	name := bmc.AuthSecretName()
	switch {
	case before.Name == "" || name != before.AuthSecretName():
		if err := c.secret(ctx, name, true); err != nil {
			return nil, err
		}
	case v.ipmi(bmc) && !v.ipmi(before):
		if err := c.secret(ctx, name, false); err != nil {
			return nil, err
		}
	}
	if err := c.certificate(ctx, before); err != nil {
		return nil, err
	}
	c.service(before)
	c.networks(before)
	c.ignored(before)
	if len(c.errs) > 0 {
		return c.warnings, apierrors.NewInvalid(kind, bmc.Name, c.errs)
	}
	return c.warnings, nil
}

// ipmi tells whether a BMC is served over IPMI.
func (v *Validator) ipmi(bmc *v1beta1.VirtualMachineBMC) bool {
	if ipmi := bmc.Spec.IPMI; ipmi != nil && ipmi.Enabled != nil {
		return *ipmi.Enabled
	}
	return v.IPMI
}

// check is the validation of one BMC.
type check struct {
	v        *Validator
	bmc      *v1beta1.VirtualMachineBMC
	errs     field.ErrorList
	warnings admission.Warnings
}

func (c *check) refuse(err *field.Error) { c.errs = append(c.errs, err) }

func (c *check) warn(path *field.Path, format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// name checks the BMC's own name, which is a label of what belongs to it.
func (c *check) name() {
	if len(c.bmc.Name) > validation.LabelValueMaxLength {
		c.refuse(field.TooLong(field.NewPath("metadata", "name"), c.bmc.Name, validation.LabelValueMaxLength))
	}
}

// machine checks a machine that the BMC names anew.
func (c *check) machine(ctx context.Context, machine string) error {
	if machine == "" {
		c.refuse(field.Required(machinePath, "names the VirtualMachine that the BMC is for"))
		return nil
	}
	for _, problem := range validation.IsDNS1035Label(machine + serviceSuffix) {
		c.refuse(field.Invalid(machinePath, machine, fmt.Sprintf("the BMC's Service can't be named %s: %s", machine+serviceSuffix, problem)))
	}
	vm := &metav1.PartialObjectMetadata{}
	vm.SetGroupVersionKind(virtualMachine)
	switch err := c.v.Live.Get(ctx, client.ObjectKey{Namespace: c.bmc.Namespace, Name: machine}, vm); {
	case meta.IsNoMatchError(err):
		c.refuse(field.Invalid(machinePath, machine, "KubeVirt is not installed: its API is not served"))
	case apierrors.IsNotFound(err):
		c.refuse(field.NotFound(machinePath, machine))
	case err != nil:
		return fmt.Errorf("read VirtualMachine %s: %w", machine, err)
	}
	var all v1beta1.VirtualMachineBMCList
	if err := c.v.Live.List(ctx, &all, client.InNamespace(c.bmc.Namespace)); err != nil {
		return fmt.Errorf("list BMCs: %w", err)
	}
	for n := range all.Items {
		if other := &all.Items[n]; other.Name != c.bmc.Name && other.DeletionTimestamp == nil && other.MachineName() == machine {
			c.refuse(field.Invalid(machinePath, machine, fmt.Sprintf("the machine has a BMC already: VirtualMachineBMC %s", other.Name)))
			break
		}
	}
	return nil
}

// secret checks the Secret: all of it, or for IPMI alone.
func (c *check) secret(ctx context.Context, name string, all bool) error {
	if name == "" {
		if all {
			c.refuse(field.Required(secretPath, "names the Secret with the BMC's account"))
		}
		return nil
	}
	var secret corev1.Secret
	if err := c.v.Live.Get(ctx, client.ObjectKey{Namespace: c.bmc.Namespace, Name: name}, &secret); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read Secret %s: %w", name, err)
		}
		if all {
			c.refuse(field.NotFound(secretPath, name))
		}
		return nil
	}
	has := credential.Parse(secret.Data)
	if all && has.RedfishProblem != "" {
		c.refuse(field.Invalid(secretPath, name, has.RedfishProblem))
		return nil
	}
	switch {
	case !c.v.ipmi(c.bmc) || has.IPMIProblem == "":
	case c.bmc.Spec.IPMI != nil && c.bmc.Spec.IPMI.Enabled != nil:
		c.refuse(field.Invalid(secretPath, name, has.IPMIProblem))
	default: // Nobody has asked for IPMI here.
		c.warn(secretPath, "nobody can log in over IPMI: %s", has.IPMIProblem)
	}
	return nil
}

// certificate warns of a Secret that is no certificate of Redfish, where it is
// named anew: HTTPS is not served until it is.
func (c *check) certificate(ctx context.Context, before *v1beta1.VirtualMachineBMC) error {
	name := c.bmc.CertificateSecretName()
	if name == "" || name == before.CertificateSecretName() {
		return nil
	}
	var secret corev1.Secret
	switch err := c.v.Live.Get(ctx, client.ObjectKey{Namespace: c.bmc.Namespace, Name: name}, &secret); {
	case apierrors.IsNotFound(err):
		c.warn(certificatePath, "Secret %s does not exist", name)
	case err != nil:
		return fmt.Errorf("read Secret %s: %w", name, err)
	default:
		if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
			c.warn(certificatePath, "Secret %s has no certificate with its key: %s", name, err)
		}
	}
	return nil
}

// networks checks the networks that the BMC's agent is to be attached to, where that
// changes.
func (c *check) networks(before *v1beta1.VirtualMachineBMC) {
	networks := ptr.Deref(c.bmc.Spec.NetworkRef, "")
	if networks == "" || networks == ptr.Deref(before.Spec.NetworkRef, "") {
		return
	}
	if problem := agent.NetworkProblem(networks, c.bmc.Namespace, c.v.Networks); problem != "" {
		c.refuse(field.Invalid(networkPath, networks, problem))
	}
}

// ignored warns of what does not count beside the rest of the spec, where that
// begins.
func (c *check) ignored(before *v1beta1.VirtualMachineBMC) {
	was := c.v.ignored(before)
	for _, one := range c.v.ignored(c.bmc) {
		if !slices.ContainsFunc(was, func(i ignored) bool { return i.path.String() == one.path.String() }) {
			c.warn(one.path, "does not count: %s", one.why)
		}
	}
}

// ignored is a part of a spec that does not count, and why.
type ignored struct {
	path *field.Path
	why  string
}

// ignored returns the parts of a BMC's spec that do not count.
func (v *Validator) ignored(bmc *v1beta1.VirtualMachineBMC) []ignored {
	var list []ignored
	spec := &bmc.Spec
	if spec.Frontend != nil && spec.Frontend.Dedicated != nil && v.mode(bmc) != v1beta1.FrontendModeDedicated {
		list = append(list, ignored{specPath.Child("frontend", "dedicated"), "shared frontends serve the BMC, set spec.frontend.mode to Dedicated"})
	}
	if spec.Service == nil || spec.Service.NodePorts == nil {
		return list
	}
	https, http := true, v.HTTP
	if redfish := spec.Redfish; redfish != nil {
		if redfish.HTTPS != nil {
			https = ptr.Deref(redfish.HTTPS.Enabled, https)
		}
		if redfish.HTTP != nil {
			http = ptr.Deref(redfish.HTTP.Enabled, http)
		}
	}
	ports := spec.Service.NodePorts
	for _, port := range []struct {
		name, what string
		is         *int32
		on         bool
	}{
		{"ipmi", "IPMI", ports.IPMI, v.ipmi(bmc)}, {"https", "HTTPS", ports.HTTPS, https}, {"http", "plain HTTP", ports.HTTP, http},
	} {
		if port.is != nil && !port.on {
			list = append(list, ignored{servicePath.Child("nodePorts", port.name), port.what + " is not served"})
		}
	}
	return list
}

// mode is what serves a BMC.
func (v *Validator) mode(bmc *v1beta1.VirtualMachineBMC) v1beta1.FrontendMode {
	switch {
	case bmc.Spec.Frontend != nil && bmc.Spec.Frontend.Mode != "":
		return bmc.Spec.Frontend.Mode
	case ptr.Deref(bmc.Spec.NetworkRef, "") != "":
		return v1beta1.FrontendModeDedicated
	}
	return v.Mode
}

// reserved are labels of the Service that are the controller's own.
var reserved = []string{v1beta1.LabelVirtualMachineBMCName, v1beta1.LabelVMName}

// service checks what the BMC wants of its Service, where that changes.
func (c *check) service(before *v1beta1.VirtualMachineBMC) {
	service := c.bmc.Spec.Service
	if service == nil {
		return
	}
	former := before.Spec.Service
	if former == nil {
		former = &v1beta1.ServiceSpec{}
	}
	if !maps.Equal(service.Labels, former.Labels) {
		c.errs = append(c.errs, metav1validation.ValidateLabels(service.Labels, servicePath.Child("labels"))...)
		for _, key := range slices.Sorted(slices.Values(reserved)) {
			if _, ok := service.Labels[key]; ok {
				c.warn(servicePath.Child("labels").Key(key), "is set by the controller, the value here does not count")
			}
		}
	}
	if !maps.Equal(service.Annotations, former.Annotations) {
		c.errs = append(c.errs, apivalidation.ValidateAnnotations(service.Annotations, servicePath.Child("annotations"))...)
	}
}
