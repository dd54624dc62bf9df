// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bootoverride_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
)

var inAnyOrder = cmpopts.SortSlices(func(a, b hypervisor.BootDevice) bool { return a.Name < b.Name })

func TestViewOf(t *testing.T) {
	t.Parallel()
	bypassed := &bootoverride.Bypassed{ID: "lost", Time: time.Date(2026, 12, 2, 9, 0, 0, 0, time.UTC)}
	for name, test := range map[string]struct {
		state    string
		want     *bootoverride.View
		bypassed *bootoverride.Bypassed
		fails    bool
	}{
		"no state":         {"", nil, nil, false},
		"no override":      {`{"power":{"runStrategy":"Always"}}`, nil, nil, false},
		"none":             {`{"boot":null}`, nil, nil, false},
		"one that is over": {`{"boot":{"id":"x","target":"None","persistence":"Disabled","stage":"Idle"}}`, nil, nil, false},
		"once, by admission": {
			`{"boot":{"id":"x","target":"PXE","persistence":"Once","stage":"Armed","strategy":"Admission","instanceUID":"i"},"armed":{"id":"x"}}`,
			&bootoverride.View{ID: "x", Device: hypervisor.DeviceInterface, ByAdmission: true, InstanceUID: "i"}, nil, false,
		},
		"in the template until it is changed": {
			`{"boot":{"id":"x","target":"HDD","persistence":"Continuous","mode":"UEFI","stage":"Arming","ownMode":"BIOS"}}`,
			&bootoverride.View{ID: "x", Device: hypervisor.DeviceDisk, Continuous: true, Mode: hypervisor.FirmwareUEFI, OwnMode: hypervisor.FirmwareBIOS},
			nil, false,
		},
		"with the template's own orders": {
			`{"boot":{"id":"x","target":"CD","persistence":"Once","stage":"Armed","own":{"root":1,"iso":0},"planned":{"root":2,"iso":1},"kinds":{"root":"disk","iso":"cdrom"}}}`,
			&bootoverride.View{ID: "x", Device: hypervisor.DeviceCDROM, Own: []hypervisor.BootDevice{
				{Name: "iso", Kind: hypervisor.DeviceCDROM}, {Name: "root", Kind: hypervisor.DeviceDisk, Order: 1},
			}}, nil, false,
		},
		"a firmware mode alone": {
			`{"boot":{"id":"x","target":"None","persistence":"Once","mode":"BIOS","stage":"Armed"}}`,
			&bootoverride.View{ID: "x", Mode: hypervisor.FirmwareBIOS}, nil, false,
		},
		"one that is being taken out of the template": {
			`{"boot":{"id":"x","target":"CD","persistence":"Once","stage":"Restoring"}}`, nil, nil, false,
		},
		"the next one": {
			`{"boot":{"id":"x","target":"CD","persistence":"Once","stage":"Restoring","next":{"id":"y","target":"CD","persistence":"Once","stage":"Arming"}}}`,
			&bootoverride.View{ID: "y", Device: hypervisor.DeviceCDROM}, nil, false,
		},
		"none is next": {
			`{"boot":{"id":"x","target":"CD","persistence":"Once","stage":"Restoring","next":{"id":"y","target":"None","persistence":"Disabled","stage":"Idle"}}}`,
			nil, nil, false,
		},
		"the last one came to nothing": {
			`{"boot":{"id":"z","target":"None","persistence":"Disabled","stage":"Idle"},"bypassed":{"id":"lost","time":"2026-12-02T09:00:00Z"}}`,
			nil, bypassed, false,
		},
		"another one since": {
			`{"boot":{"id":"z","target":"CD","persistence":"Once","stage":"Armed","strategy":"Admission"},"bypassed":{"id":"lost","time":"2026-12-02T09:00:00Z"}}`,
			&bootoverride.View{ID: "z", Device: hypervisor.DeviceCDROM, ByAdmission: true}, bypassed, false,
		},
		"of another shape":  {`{"boot":"x"}`, nil, nil, true},
		"a broken document": {`{"boot":`, nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, lost, err := bootoverride.ViewOf([]byte(test.state))
			if (err != nil) != test.fails {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got, inAnyOrder); diff != "" {
				t.Errorf("ViewOf(%s) mismatch (-want +got):\n%s", test.state, diff)
			}
			if diff := cmp.Diff(test.bypassed, lost); diff != "" {
				t.Errorf("ViewOf(%s) mismatch of what came to nothing (-want +got):\n%s", test.state, diff)
			}
		})
	}
}
