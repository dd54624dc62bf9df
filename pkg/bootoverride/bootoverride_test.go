// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootoverride_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func TestFromState(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state string
		want  *bootoverride.Armed
		fails bool
	}{
		"no state":            {"", nil, false},
		"nothing armed":       {`{"power":{"runStrategy":"Always"}}`, nil, false},
		"none":                {`{"armed":null}`, nil, false},
		"a device":            {`{"armed":{"id":"x","device":"interface"},"boot":{}}`, &bootoverride.Armed{ID: "x", Device: hypervisor.DeviceInterface}, false},
		"a mode":              {`{"armed":{"id":"x","mode":"UEFI"}}`, &bootoverride.Armed{ID: "x", Mode: hypervisor.FirmwareUEFI}, false},
		"no ID":               {`{"armed":{"device":"disk"}}`, nil, true},
		"of another shape":    {`{"armed":"x"}`, nil, true},
		"a broken document":   {`{"armed":`, nil, true},
		"a list":              {`[]`, nil, true},
		"something to ignore": {`{"armed":{"id":"x","later":true}}`, &bootoverride.Armed{ID: "x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := bootoverride.FromState([]byte(test.state))
			if (err != nil) != test.fails {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("FromState(%s) mismatch (-want +got):\n%s", test.state, diff)
			}
		})
	}
}
