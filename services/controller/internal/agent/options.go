// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Options are what all agents have in common.
type Options struct {
	// ImageName is the agent's image, without a tag; empty: there are no dedicated
	// agents.
	ImageName string
	// ImageTag is its tag, or its digest (sha256:...); empty: ImageName says all.
	ImageTag string
	// PullPolicy of the image; empty: as Kubernetes does.
	PullPolicy string
	// PullSecrets are names of Secrets in the BMC's namespace.
	PullSecrets []string
	// Networks are the network attachments of other namespaces that BMCs may have, as
	// NetworkProblem takes them.
	Networks []string
	// PriorityClass of the pods; empty: the cluster's default.
	PriorityClass string
	// CPURequest, MemoryRequest, CPULimit and MemoryLimit are Kubernetes quantities
	// for BMCs that do not say otherwise; empty: none.
	CPURequest, MemoryRequest, CPULimit, MemoryLimit string
	// Registry, Power and Media are the gRPC targets of the services, as pods in any
	// namespace reach them.
	Registry, Power, Media string
	// Audience of the agents' tokens.
	Audience string
	// MaxUnavailable is how many agents may be unavailable while others get a new
	// version, as of the image; at least 1.
	MaxUnavailable int
	// LogLevel of the agents.
	LogLevel string
	// CAFile is a PEM file with the CA certificates that the services' certificates
	// come from. Agents get a copy; it is read again when it changes. Empty: Bundle
	// has them.
	CAFile string
	// Bundle returns those certificates where there is no file; empty: there are none
	// yet.
	Bundle func() []byte
}

// Enabled tells whether there are dedicated agents.
func (o *Options) Enabled() bool { return o.ImageName != "" }

// Validate tells what is missing or wrong; without an image nothing is.
func (o *Options) Validate() error {
	if !o.Enabled() {
		return nil
	}
	var errs []error
	for _, needed := range []struct{ flag, value string }{
		{"registry", o.Registry},
		{"power", o.Power},
		{"media", o.Media},
		{"token-audience", o.Audience},
	} {
		if needed.value == "" {
			errs = append(errs, fmt.Errorf("--agent-%s is needed where --agent-image-name is given", needed.flag))
		}
	}
	switch corev1.PullPolicy(o.PullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("--agent-image-pull-policy: %q is none of Always, IfNotPresent, Never", o.PullPolicy))
	}
	if o.MaxUnavailable < 1 {
		errs = append(errs, fmt.Errorf("--agent-max-unavailable: %d is less than 1", o.MaxUnavailable))
	}
	for flag, value := range map[string]string{
		"cpu-request": o.CPURequest, "memory-request": o.MemoryRequest, "cpu-limit": o.CPULimit, "memory-limit": o.MemoryLimit,
	} {
		if value == "" {
			continue
		}
		if _, err := resource.ParseQuantity(value); err != nil {
			errs = append(errs, fmt.Errorf("--agent-%s: %q: %w", flag, value, err))
		}
	}
	return errors.Join(errs...)
}

// image is the reference of the agent's image.
func (o *Options) image() string {
	switch {
	case o.ImageTag == "":
		return o.ImageName
	case strings.HasPrefix(o.ImageTag, "sha256:"):
		return o.ImageName + "@" + o.ImageTag
	default:
		return o.ImageName + ":" + o.ImageTag
	}
}

// resources are those of BMCs that do not say otherwise.
func (o *Options) resources() corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		resources := corev1.ResourceList{}
		for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if quantity, err := resource.ParseQuantity(value); err == nil { // Validate reports others.
				resources[name] = quantity
			}
		}
		return resources
	}
	return corev1.ResourceRequirements{
		Requests: list(o.CPURequest, o.MemoryRequest),
		Limits:   list(o.CPULimit, o.MemoryLimit),
	}
}
