// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

const (
	disabled   = bootv1.BootPersistence_BOOT_PERSISTENCE_DISABLED
	once       = bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE
	continuous = bootv1.BootPersistence_BOOT_PERSISTENCE_CONTINUOUS
	none       = bootv1.BootTarget_BOOT_TARGET_NONE
	pxe        = bootv1.BootTarget_BOOT_TARGET_PXE
	hdd        = bootv1.BootTarget_BOOT_TARGET_HDD
	cd         = bootv1.BootTarget_BOOT_TARGET_CD
	legacy     = bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY
	uefi       = bootv1.FirmwareMode_FIRMWARE_MODE_UEFI
)

func armed(p bootv1.BootPersistence, t bootv1.BootTarget) *bootv1.BootOverride {
	return &bootv1.BootOverride{Persistence: p, Target: t}
}

func TestPatchBoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		now   *bootv1.BootOverride
		mode  bootv1.FirmwareMode   // the machine's; UEFI when not set
		modes []bootv1.FirmwareMode // that the machine can have; its own when not set
		body  string

		status int
		want   *bootv1.BootOverride // nil: nothing is set
		ids    []string
		boot   map[string]any // what the answer says, where that is of interest
	}{
		"Ironic sets a device for one boot": {
			body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`, status: 200, want: armed(once, pxe),
			boot: map[string]any{bootTarget: "Pxe", bootEnabled: "Once", bootMode: "UEFI"},
		},
		"Ironic sets a device for good": {
			body: `{"Boot":{"BootSourceOverrideTarget":"Hdd","BootSourceOverrideEnabled":"Continuous"}}`, status: 200, want: armed(continuous, hdd),
		},
		"MAAS sends Enabled first": {
			body: `{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe"}}`, status: 200, want: armed(once, pxe),
		},
		"target alone keeps Continuous": {
			now: armed(continuous, hdd), body: `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`, status: 200, want: armed(continuous, cd),
		},
		"target alone keeps Once": {
			now: armed(once, hdd), body: `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`, status: 200, want: armed(once, cd),
		},
		"target alone arms one boot when nothing is armed": {
			body: `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`, status: 200, want: armed(once, cd),
		},
		"the same again is armed again": {
			now: armed(once, pxe), body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`, status: 200, want: armed(once, pxe),
		},
		"target None disarms": {
			now: armed(continuous, hdd), body: `{"Boot":{"BootSourceOverrideTarget":"None"}}`, status: 200, want: armed(disabled, none),
			boot: map[string]any{bootTarget: "None", bootEnabled: "Disabled", bootMode: "UEFI"},
		},
		"Disabled disarms": {
			now: armed(once, hdd), body: `{"Boot":{"BootSourceOverrideEnabled":"Disabled"}}`, status: 200, want: armed(disabled, none),
		},
		"Disabled with a target disarms": {
			now: armed(once, hdd), body: `{"Boot":{"BootSourceOverrideEnabled":"Disabled","BootSourceOverrideTarget":"Pxe"}}`, status: 200, want: armed(disabled, none),
		},
		"Continuous with None disarms": {
			now: armed(once, hdd), body: `{"Boot":{"BootSourceOverrideEnabled":"Continuous","BootSourceOverrideTarget":"None"}}`, status: 200, want: armed(disabled, none),
		},
		"Enabled alone keeps the target": {
			now: armed(once, cd), body: `{"Boot":{"BootSourceOverrideEnabled":"Continuous"}}`, status: 200, want: armed(continuous, cd),
		},
		"Enabled alone without any target is refused": {
			body: `{"Boot":{"BootSourceOverrideEnabled":"Once"}}`, status: 400, ids: []string{"PropertyValueConflict"},
		},
		"Ironic sets the mode that the machine has": {
			body: `{"Boot":{"BootSourceOverrideMode":"UEFI"}}`, status: 200,
			boot: map[string]any{bootTarget: "None", bootEnabled: "Disabled", bootMode: "UEFI"},
		},
		"the machine's mode keeps the override": {
			now: armed(continuous, hdd), body: `{"Boot":{"BootSourceOverrideMode":"UEFI"}}`, status: 200,
			boot: map[string]any{bootTarget: "Hdd", bootEnabled: "Continuous", bootMode: "UEFI"},
		},
		"all three": {
			body:   `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`,
			status: 200, want: armed(once, pxe),
		},
		"bmclib asks for Legacy on UEFI": {
			body:   `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"Legacy"}}`,
			status: 400, ids: []string{"PropertyValueNotInList"},
		},
		"a BIOS machine takes Legacy": {
			mode: legacy, body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"Legacy"}}`,
			status: 200, want: armed(once, pxe),
			boot: map[string]any{bootTarget: "Pxe", bootEnabled: "Once", bootMode: "Legacy"},
		},
		"a BIOS machine refuses UEFI": {
			mode: legacy, body: `{"Boot":{"BootSourceOverrideMode":"UEFI"}}`, status: 400, ids: []string{"PropertyValueNotInList"},
		},
		"another mode for one boot, where that can be": {
			modes: []bootv1.FirmwareMode{uefi, legacy}, body: `{"Boot":{"BootSourceOverrideTarget":"Hdd","BootSourceOverrideMode":"Legacy"}}`,
			status: 200, want: &bootv1.BootOverride{Persistence: once, Target: hdd, Mode: legacy},
			boot: map[string]any{bootTarget: "Hdd", bootEnabled: "Once", bootMode: "Legacy"},
		},
		"Ironic sets another mode": {
			modes: []bootv1.FirmwareMode{uefi, legacy}, body: `{"Boot":{"BootSourceOverrideMode":"Legacy"}}`, status: 200,
			boot: map[string]any{bootTarget: "None", bootEnabled: "Disabled", bootMode: "Legacy"},
		},
		"Ironic sets another mode beside an override": {
			now:   armed(continuous, cd),
			modes: []bootv1.FirmwareMode{uefi, legacy}, body: `{"Boot":{"BootSourceOverrideMode":"Legacy"}}`, status: 200,
			boot: map[string]any{bootTarget: "Cd", bootEnabled: "Continuous", bootMode: "Legacy"},
		},
		"a mode by itself counts for an override with another one": {
			now:   &bootv1.BootOverride{Persistence: continuous, Target: hdd, Mode: legacy},
			modes: []bootv1.FirmwareMode{uefi, legacy}, body: `{"Boot":{"BootSourceOverrideMode":"UEFI"}}`, status: 200,
			boot: map[string]any{bootTarget: "Hdd", bootEnabled: "Continuous", bootMode: "UEFI"},
		},
		"Disabled with a mode": {
			now: armed(once, hdd), modes: []bootv1.FirmwareMode{uefi, legacy},
			body:   `{"Boot":{"BootSourceOverrideEnabled":"Disabled","BootSourceOverrideMode":"Legacy"}}`,
			status: 200, want: &bootv1.BootOverride{Persistence: disabled, Target: none, Mode: legacy},
			boot: map[string]any{bootTarget: "None", bootEnabled: "Disabled", bootMode: "Legacy"},
		},
		"target alone keeps the override's mode": {
			now:   &bootv1.BootOverride{Persistence: once, Target: hdd, Mode: legacy},
			modes: []bootv1.FirmwareMode{uefi, legacy}, body: `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`,
			status: 200, want: &bootv1.BootOverride{Persistence: once, Target: cd, Mode: legacy},
		},
		"a target that Redfish has and the machine has not": {
			body: `{"Boot":{"BootSourceOverrideTarget":"Usb"}}`, status: 400, ids: []string{"PropertyValueNotInList"},
		},
		"names are case-sensitive": {
			body: `{"Boot":{"BootSourceOverrideTarget":"pxe"}}`, status: 400, ids: []string{"PropertyValueNotInList"},
		},
		"a target that is no string": {
			body: `{"Boot":{"BootSourceOverrideTarget":7}}`, status: 400, ids: []string{"PropertyValueTypeError"},
		},
		"a target that is null": {
			body: `{"Boot":{"BootSourceOverrideTarget":null}}`, status: 400, ids: []string{"PropertyValueTypeError"},
		},
		"Boot that is no object": {
			body: `{"Boot":"Pxe"}`, status: 400, ids: []string{"PropertyValueTypeError"},
		},
		"Boot that is null": {
			body: `{"Boot":null}`, status: 400, ids: []string{"PropertyValueTypeError"},
		},
		"empty Boot": {
			body: `{"Boot":{}}`, status: 400, ids: []string{"NoOperation"},
		},
		"all mistakes are told at a time": {
			body: `{"Boot":{"BootSourceOverrideTarget":"x","BootSourceOverrideEnabled":"y","BootSourceOverrideMode":"z"}}`, status: 400,
			ids: []string{"PropertyValueNotInList", "PropertyValueNotInList", "PropertyValueNotInList"},
		},
		"an unknown property beside a right one is noted": {
			body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","AcmeBoot":true},"AssetTag":"x","Name":"y"}`, status: 200, want: armed(once, pxe),
		},
		"annotations are ignored": {
			body:   `{"@odata.id":"/x","Boot":{"@odata.type":"#x","BootSourceOverrideTarget":"Pxe","BootSourceOverrideTarget@Redfish.AllowableValues":[]}}`,
			status: 200, want: armed(once, pxe),
		},
		"only annotations": {body: `{"@odata.id":"/x"}`, status: 400, ids: []string{"NoOperation"}},
		"a read-only property": {
			body: `{"SerialNumber":"x"}`, status: 400, ids: []string{"PropertyNotWritable"},
		},
		"an unknown property": {
			body: `{"Colour":"x"}`, status: 400, ids: []string{"PropertyUnknown"},
		},
		"an empty object":   {body: `{}`, status: 400, ids: []string{"EmptyJSON"}},
		"an array":          {body: `[]`, status: 400, ids: []string{"MalformedJSON"}},
		"null":              {body: `null`, status: 400, ids: []string{"MalformedJSON"}},
		"cut off":           {body: `{"Boot":{`, status: 400, ids: []string{"MalformedJSON"}},
		"two objects":       {body: `{"Boot":{}}{}`, status: 400, ids: []string{"MalformedJSON"}},
		"nothing but space": {body: "  ", status: 400, ids: []string{"MalformedJSON"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.backend.Update(func(_ *powerv1.PowerStatus, boot *bootv1.BootStatus, _ *inventoryv1.Inventory) {
				if tc.now != nil {
					boot.Override = tc.now
				}
				if tc.mode != 0 {
					boot.Mode, boot.AllowedModes = tc.mode, []bootv1.FirmwareMode{tc.mode}
				}
				if tc.modes != nil {
					boot.AllowedModes = tc.modes
				}
			})
			a := b.do(request{method: "PATCH", path: "/redfish/v1/Systems/1", body: tc.body})
			if a.status != tc.status {
				t.Errorf("status = %d, want %d: %s", a.status, tc.status, a.raw)
			}
			if diff := cmp.Diff(tc.ids, a.messageIDs()); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			var want []*bootv1.BootOverride
			if tc.want != nil {
				want = []*bootv1.BootOverride{tc.want}
			}
			if diff := cmp.Diff(want, b.backend.Overrides(), protocmp.Transform()); diff != "" {
				t.Errorf("overrides set (-want +got):\n%s", diff)
			}
			for property, value := range tc.boot {
				if got := a.at("Boot", property); got != value {
					t.Errorf("%s = %v, want %v", property, got, value)
				}
			}
		})
	}
}

func TestPatchBoot_notesWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.do(request{method: "PATCH", path: "/redfish/v1/Systems/1", body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","AcmeBoot":true},"Name":"y"}`})
	infos, _ := a.at("@Message.ExtendedInfo").([]any)
	if a.status != http.StatusOK || len(infos) != 2 {
		t.Fatalf("PATCH = %d %s", a.status, a.raw)
	}
	if s := schemas(); s != nil {
		s.check(t, "PATCH", a.raw, locationOf("#ComputerSystem.v1_27_0.ComputerSystem"))
	}
	if a.header.Get("ETag") != b.get("/redfish/v1/Systems/1").header.Get("ETag") {
		t.Error("the notes changed the ETag")
	}
}

func TestPatchSystem_ifMatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	patch := func(ifMatch string) int {
		return b.do(request{
			method: "PATCH", path: "/redfish/v1/Systems/1", header: http.Header{"If-Match": {ifMatch}},
			body: `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`,
		}).status
	}
	etag := b.get("/redfish/v1/Systems/1").header.Get("ETag")
	if status := b.do(request{
		method: "POST", path: "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", body: `{"ResetType":"ForceOff"}`,
		header: http.Header{"If-Match": {`"stale"`}},
	}).status; status != http.StatusNoContent {
		t.Errorf("an action with a stale If-Match = %d, want 204: actions ignore it", status)
	}
	b.backend.Update(func(p *powerv1.PowerStatus, _ *bootv1.BootStatus, i *inventoryv1.Inventory) {
		p.RestorePolicy, p.LastResetTime = powerv1.RestorePolicy_RESTORE_POLICY_ALWAYS_OFF, nil
		i.GuestOperatingSystem, i.Interfaces[0].IpAddresses = nil, nil
	})
	if status := patch(`"stale"`); status != http.StatusPreconditionFailed {
		t.Errorf("a stale tag = %d, want 412", status)
	}
	if status := patch(etag); status != http.StatusOK {
		t.Errorf("the tag from before the machine was switched off = %d, want 200", status)
	}
	if status := patch(etag); status != http.StatusPreconditionFailed {
		t.Errorf("the tag from before the boot device changed = %d, want 412", status)
	}
	etag = b.get("/redfish/v1/Systems/1").header.Get("ETag")
	bare := etag[1 : len(etag)-1]
	for _, tag := range []string{"*", "W/" + etag, `"other", ` + etag, `"` + bare + `-gzip"`, `"` + bare + `;gzip"`, etag + "-gzip"} {
		if status := patch(tag); status != http.StatusOK {
			t.Errorf("If-Match: %s = %d, want 200", tag, status)
		}
	}
}
