// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import "kubevirtbmc.dev/pkg/hypervisor"

// Held returns how many operations the engine remembers as its own.
func (e *Engine) Held(ref hypervisor.Ref) int {
	entry := e.entry(ref)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	return len(entry.held)
}
