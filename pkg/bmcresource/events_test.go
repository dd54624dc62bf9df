// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"testing"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/callctx"
)

func TestReasonOf(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{
		"POWER_ACTION_FORCE_OFF": "PowerActionForceOff",
		"BOOT_OVERRIDE BOOT_OVERRIDE_PERSISTENCE_ONCE BOOT_TARGET_PXE": "BootOverride",
		"TransitionPower": "Transitionpower",
		"_":               "",
		"":                "",
	} {
		if got := reasonOf(action); got != want {
			t.Errorf("reason of %q is %q, want %q", action, got, want)
		}
	}
}

func TestByWhom(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		record audit.Record
		want   string
	}{
		"a BMC's user": {
			audit.Record{Identity: "frontend", Caller: callctx.Caller{User: "admin", Address: "192.0.2.7:50123", Protocol: "ipmi"}},
			" by admin at 192.0.2.7 over ipmi",
		},
		"at an IPv6 address": {
			audit.Record{Identity: "frontend", Caller: callctx.Caller{User: "admin", Address: "[2001:db8::7]:50123", Protocol: "redfish"}},
			" by admin at 2001:db8::7 over redfish",
		},
		"at one without a port": {
			audit.Record{Identity: "frontend", Caller: callctx.Caller{User: "admin", Address: "pipe", Protocol: "redfish"}},
			" by admin at pipe over redfish",
		},
		"automation": {
			audit.Record{Identity: "system:serviceaccount:metal:robot", Caller: callctx.Caller{Address: "192.0.2.7:50123", Protocol: "grpc"}},
			" by system:serviceaccount:metal:robot at 192.0.2.7 over grpc",
		},
	} {
		if got := byWhom(test.record); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
