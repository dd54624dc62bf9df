// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStorage has what the OpenStack Ironic profile wants of a storage: one
// controller for each bus, a protocol and a media type of each disk.
func TestStorage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const storage = systemPath + "/Storage/1"
	controllers := b.get(b.get(storage).at("Controllers", "@odata.id").(string))
	if d := cmp.Diff([]string{storage + "/Controllers/virtio", storage + "/Controllers/sata"}, controllers.memberIDs()); d != "" {
		t.Errorf("controllers (-want +got):\n%s", d)
	}
	for path, want := range map[string]any{"virtio": []any{"OEM"}, "sata": []any{"SATA"}} {
		if d := cmp.Diff(want, b.get(storage+"/Controllers/"+path).at("SupportedDeviceProtocols")); d != "" {
			t.Errorf("protocols of %s (-want +got):\n%s", path, d)
		}
	}
	for path, want := range map[string]string{"root": "OEM", "data": "SATA"} {
		drive := b.get(storage + "/Drives/" + path)
		if _, told := drive.body["MediaType"]; !told || drive.at("Protocol") != want || drive.at("MediaType") != nil {
			t.Errorf("drive %s has protocol %v, media type %v", path, drive.at("Protocol"), drive.at("MediaType"))
		}
	}
	if a := b.get(storage + "/Controllers/scsi"); a.status != 404 {
		t.Errorf("a controller of a bus without disks = %d", a.status)
	}
}
