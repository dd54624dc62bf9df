// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/agent"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// serviceSuffix follows the machine's name in the name of a BMC's Service.
const serviceSuffix = "-virtbmc"

// Defaults are what a VirtualMachineBMC gets that does not say otherwise.
type Defaults struct {
	// IPMI serves IPMI.
	IPMI bool
	// LAN serves sessions of IPMI v1.5, where IPMI is served.
	LAN bool
	// HTTP serves Redfish over plain HTTP.
	HTTP bool
	// Mode is what serves it; empty: Shared.
	Mode v1beta1.FrontendMode
	// BootOverride is how one-time boot overrides are carried out; empty: Template.
	BootOverride v1beta1.BootOverrideStrategy
}

// wanted is how a BMC is to be served.
type wanted struct {
	ref        registry.Ref
	uid        types.UID
	generation int64
	machine    string
	secret     string
	// certificate is the Secret with the user's; empty: the controller issues one.
	certificate string
	// target is the mode that is to be, mode the one in use.
	target, mode v1beta1.FrontendMode
	// networks and dedicated are about a dedicated agent.
	networks  string
	dedicated v1beta1.DedicatedFrontendSpec
	ipmi      bool
	// ipmiAsked tells whether the BMC itself says if it is to be served over IPMI.
	ipmiAsked bool
	// lan tells whether sessions of IPMI v1.5 are served too.
	lan     bool
	https   bool
	http    bool
	suites  []uint32
	service v1beta1.ServiceSpec
	// override is how one-time boot overrides are carried out.
	override v1beta1.BootOverrideStrategy
}

// wantedOf returns how a BMC is to be served.
func wantedOf(bmc *v1beta1.VirtualMachineBMC, defaults Defaults) wanted {
	spec := &bmc.Spec
	w := wanted{
		ref:        registry.Ref{Namespace: bmc.Namespace, Name: bmc.Name},
		uid:        bmc.UID,
		generation: bmc.Generation,
		mode:       v1beta1.FrontendModeShared,
		ipmi:       defaults.IPMI,
		lan:        defaults.LAN,
		https:      true,
		http:       defaults.HTTP,
		override:   cmp.Or(defaults.BootOverride, v1beta1.BootOverrideStrategyTemplate),
	}
	w.machine, w.secret = bmc.MachineName(), bmc.AuthSecretName()
	if spec.IPMI != nil {
		set(&w.ipmi, spec.IPMI.Enabled)
		w.ipmiAsked = spec.IPMI.Enabled != nil
		if spec.IPMI.LAN != nil {
			set(&w.lan, spec.IPMI.LAN.Enabled)
		}
		for _, suite := range spec.IPMI.CipherSuites {
			w.suites = append(w.suites, uint32(suite)) //nolint:gosec // 3 or 17.
		}
	}
	if spec.Redfish != nil {
		if https := spec.Redfish.HTTPS; https != nil {
			set(&w.https, https.Enabled)
			w.certificate = bmc.CertificateSecretName()
		}
		if http := spec.Redfish.HTTP; http != nil {
			set(&w.http, http.Enabled)
		}
	}
	if spec.BootOverride != nil && spec.BootOverride.Strategy != "" {
		w.override = spec.BootOverride.Strategy
	}
	if spec.Service != nil {
		w.service = *spec.Service
	}
	if spec.NetworkRef != nil {
		w.networks = *spec.NetworkRef
	}
	if spec.Frontend != nil && spec.Frontend.Dedicated != nil {
		w.dedicated = *spec.Frontend.Dedicated
	}
	switch {
	case spec.Frontend != nil && spec.Frontend.Mode != "":
		w.mode = spec.Frontend.Mode
	case w.networks != "":
		w.mode = v1beta1.FrontendModeDedicated
	case defaults.Mode != "":
		w.mode = defaults.Mode
	}
	w.target = w.mode
	return w
}

// set sets a value if there is one to set it to.
func set(value, to *bool) {
	if to != nil {
		*value = *to
	}
}

func (w *wanted) serviceName() string { return w.machine + serviceSuffix }

func (w *wanted) redfish() bool { return w.https || w.http }

// protocols are those that frontends are to serve.
func (w *wanted) protocols() []registryv1.Protocol {
	var list []registryv1.Protocol
	if w.ipmi {
		list = append(list, registryv1.Protocol_PROTOCOL_IPMI)
	}
	if w.redfish() {
		list = append(list, registryv1.Protocol_PROTOCOL_REDFISH)
	}
	return list
}

// agent is the identity of the frontends that serve this BMC alone; empty: the
// shared ones serve it.
func (w *wanted) agent() string {
	if w.mode != v1beta1.FrontendModeDedicated {
		return ""
	}
	return agent.Identity(w.ref.Namespace, w.machine)
}

// listener is a port at which a BMC is served.
type listener int

// The listeners of a BMC.
const (
	listenIPMI listener = iota
	listenHTTPS
	listenHTTP
)

// listeners are those that are to be.
func (w *wanted) listeners() []listener {
	var list []listener
	for l, on := range [...]bool{listenIPMI: w.ipmi, listenHTTPS: w.https, listenHTTP: w.http} {
		if on {
			list = append(list, listener(l))
		}
	}
	return list
}

// olderFirst orders BMCs by age, and those of the same second by name.
func olderFirst(a, b *v1beta1.VirtualMachineBMC) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Namespace, b.Namespace))
}

// byAge orders BMCs by age, the oldest first.
func byAge(list []v1beta1.VirtualMachineBMC) []*v1beta1.VirtualMachineBMC {
	ordered := make([]*v1beta1.VirtualMachineBMC, len(list))
	for i := range list {
		ordered[i] = &list[i]
	}
	slices.SortFunc(ordered, olderFirst)
	return ordered
}

// takenBy returns which of the BMCs of a machine has it, if it is not this one.
func takenBy(bmc *v1beta1.VirtualMachineBMC, all []v1beta1.VirtualMachineBMC) string {
	has := bmc
	for i := range all {
		if other := &all[i]; other.UID != bmc.UID && bmcresource.Precedes(other, has) {
			has = other
		}
	}
	if has == bmc {
		return ""
	}
	return has.Name
}
