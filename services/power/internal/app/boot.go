// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"flag"
	"fmt"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/services/power/internal/kubevirt"
	"kubevirtbmc.dev/services/power/powerservice"
)

// bootOptions say how one-time boot overrides are carried out.
type bootOptions struct{ strategy string }

func addBootFlags(flags *flag.FlagSet) *bootOptions {
	o := &bootOptions{}
	flags.StringVar(&o.strategy, "boot-override-strategy", string(v1beta1.BootOverrideStrategyTemplate), fmt.Sprintf(
		"how one-time boot overrides are carried out for BMCs that do not say: `%s` (the template is changed and restored) or %s (the controller's webhook changes the instance alone)",
		v1beta1.BootOverrideStrategyTemplate, v1beta1.BootOverrideStrategyAdmission))
	return o
}

func (o *bootOptions) validate() error {
	switch v1beta1.BootOverrideStrategy(o.strategy) {
	case v1beta1.BootOverrideStrategyTemplate, v1beta1.BootOverrideStrategyAdmission:
		return nil
	default:
		return fmt.Errorf("--boot-override-strategy %q is neither %s nor %s", o.strategy,
			v1beta1.BootOverrideStrategyTemplate, v1beta1.BootOverrideStrategyAdmission)
	}
}

// admits tells of each machine whether the webhook carries its overrides out. It
// reads VirtualMachineBMCs, so without those none are.
func (o *bootOptions) admits(machines powerservice.Hypervisor) func(hypervisor.Ref) bool {
	withBMCs, ok := machines.(*kubevirt.WithBMCs)
	if !ok {
		return nil
	}
	return func(ref hypervisor.Ref) bool {
		strategy := v1beta1.BootOverrideStrategy(o.strategy)
		if bmc := withBMCs.BMCs.Of(ref); bmc != nil && bmc.Spec.BootOverride != nil && bmc.Spec.BootOverride.Strategy != "" {
			strategy = bmc.Spec.BootOverride.Strategy
		}
		return strategy == v1beta1.BootOverrideStrategyAdmission
	}
}
