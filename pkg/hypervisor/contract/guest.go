// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// guestPowerOff: what follows depends on the run strategy.
func guestPowerOff(b *bed) {
	if b.Guest.PowerOff == nil {
		b.Skip("this bench can't switch a guest off from within")
	}
	for _, strategy := range strategies {
		if strategy == hypervisor.RunStrategyHalted {
			continue
		}
		b.sub(string(strategy), func(b *bed) {
			b.Parallel()
			ref, m := b.started(Spec{RunStrategy: strategy})
			b.ok("power off", b.Guest.PowerOff(ref))
			ended := func(m *hypervisor.Machine) bool {
				return m.Instance != nil && m.Instance.Phase == hypervisor.PhaseSucceeded && !m.Instance.Deleting
			}
			switch strategy {
			case hypervisor.RunStrategyAlways:
				b.until(ref, "running anew", newInstance(m.Instance.UID))
			case hypervisor.RunStrategyRerunOnFailure:
				b.until(ref, "without instance", absent)
				b.stays(ref, "off", off)
				b.ok("start", b.Hypervisor.Start(b.Context(), ref))
				b.until(ref, "running", running)
			case hypervisor.RunStrategyManual:
				b.until(ref, "ended and still there", ended)
				b.stays(ref, "ended and still there", ended)
				b.ok("start", b.Hypervisor.Start(b.Context(), ref))
				b.until(ref, "running anew", newInstance(m.Instance.UID))
			case hypervisor.RunStrategyOnce:
				b.until(ref, "ended and still there", ended)
				b.stays(ref, "ended and still there", ended)
				b.conflict("start", b.Hypervisor.Start(b.Context(), ref))
				b.ok("delete", b.Hypervisor.DeleteInstance(b.Context(), ref, m.Instance.UID))
				b.until(ref, "running anew", newInstance(m.Instance.UID))
			}
		})
	}
}

func guestCrash(b *bed) {
	if b.Guest.Crash == nil {
		b.Skip("this bench can't crash a guest")
	}
	for _, strategy := range []hypervisor.RunStrategy{hypervisor.RunStrategyAlways, hypervisor.RunStrategyRerunOnFailure, hypervisor.RunStrategyManual} {
		b.sub(string(strategy), func(b *bed) {
			b.Parallel()
			ref, m := b.started(Spec{RunStrategy: strategy})
			b.ok("crash", b.Guest.Crash(ref))
			if strategy == hypervisor.RunStrategyManual {
				failed := func(m *hypervisor.Machine) bool {
					return m.Instance != nil && m.Instance.Phase == hypervisor.PhaseFailed && !m.Instance.Deleting
				}
				b.until(ref, "failed and still there", failed)
				b.stays(ref, "failed and still there", failed)
				b.retry("start", func(ctx context.Context) error { return b.Hypervisor.Start(ctx, ref) })
			}
			b.until(ref, "running anew", newInstance(m.Instance.UID))
		})
	}
}

func guestReboot(b *bed) {
	if b.Guest.Reboot == nil {
		b.Skip("this bench can't reboot a guest from within")
	}
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyAlways})
	b.ok("reboot", b.Guest.Reboot(ref))
	b.stays(ref, "the same instance", func(now *hypervisor.Machine) bool {
		return running(now) && now.Instance.UID == m.Instance.UID
	})
}
