// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

// Tracked returns how many names are tracked.
func (b *Backoff) Tracked() int { return len(b.failures) }

// WindowAt returns a window whose highest number is n.
func WindowAt(n uint32) Window { return Window{highest: n, seen: 1} }
