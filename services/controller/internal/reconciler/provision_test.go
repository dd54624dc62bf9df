// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"strings"
	"testing"
)

func TestUnprovisionable(t *testing.T) {
	t.Parallel()
	for machine, want := range map[string]bool{
		"vm": false, strings.Repeat("x", 55): false,
		strings.Repeat("x", 56): true, strings.Repeat("x", 63): true, "1st": true, "a.b": true,
	} {
		if got := unprovisionable(machine); (got != "") != want {
			t.Errorf("%s: %q", machine, got)
		}
	}
}
