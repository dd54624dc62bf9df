// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"time"
)

// ClearLeftovers clears away what is at least that old.
func (h *Hypervisor) ClearLeftovers(ctx context.Context, age time.Duration) { h.clearOnce(ctx, age) }
