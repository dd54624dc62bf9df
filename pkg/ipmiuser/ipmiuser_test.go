// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmiuser_test

import (
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/ipmiuser"
)

func TestFits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		name, password string
		want           bool
	}{
		"short":                        {"admin", "secret", true},
		"the longest":                  {strings.Repeat("n", 16), strings.Repeat("p", 20), true},
		"name too long":                {strings.Repeat("n", 17), "secret", false},
		"password too long":            {"admin", strings.Repeat("p", 21), false},
		"bytes count, not their runes": {"admin", strings.Repeat("\u00e9", 11), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ipmiuser.Fits(tc.name, tc.password); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
