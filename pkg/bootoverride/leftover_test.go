// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootoverride_test

import (
	"testing"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func TestAddLeftover(t *testing.T) {
	t.Parallel()
	leftover := &bootoverride.Leftover{ID: "x", InstanceUID: "i", Orders: map[string]int{"disk:root": 1}, Mode: hypervisor.FirmwareBIOS}
	const added = `"leftover":{"id":"x","instanceUID":"i","orders":{"disk:root":1},"mode":"BIOS"}`
	for name, tc := range map[string]struct {
		state, want string
		fails       bool
	}{
		"no state":              {"", `{` + added + `}`, false},
		"a run strategy":        {`{"power":{"runStrategy":"Always"}}`, `{` + added + `,"power":{"runStrategy":"Always"}}`, false},
		"it is there":           {`{"leftover":{"id":"y"}}`, "", false},
		"another one has come":  {`{"boot":{"id":"y"}}`, "", false},
		"a state of some shape": {`[]`, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := bootoverride.AddLeftover([]byte(tc.state), leftover)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v", err)
			}
			if string(got) != tc.want {
				t.Errorf("AddLeftover(%s) is %s, want %s", tc.state, got, tc.want)
			}
		})
	}
}

func TestDeviceKey(t *testing.T) {
	t.Parallel()
	for want, device := range map[string]hypervisor.BootDevice{
		"disk:root":      {Name: "root", Kind: hypervisor.DeviceDisk},
		"cdrom:iso":      {Name: "iso", Kind: hypervisor.DeviceCDROM},
		"interface:net":  {Name: "net", Kind: hypervisor.DeviceInterface},
		"interface:root": {Name: "interface/root", Kind: hypervisor.DeviceInterface},
	} {
		if got := bootoverride.DeviceKey(device); got != want {
			t.Errorf("DeviceKey(%+v) is %q, want %q", device, got, want)
		}
	}
}
