// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"strings"
	"testing"
)

func TestNameOf(t *testing.T) {
	t.Parallel()
	if got := nameOf("node-1", stateSuffix); got != "node-1-bmc-state" {
		t.Errorf("name %q", got)
	}
	a, b := nameOf(strings.Repeat("a", 252)+"x", accountsSuffix), nameOf(strings.Repeat("a", 252)+"y", accountsSuffix)
	if len(a) != maxName || len(b) != maxName || a == b {
		t.Errorf("names %q and %q", a, b)
	}
}
