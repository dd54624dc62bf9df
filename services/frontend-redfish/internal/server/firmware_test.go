// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/grpcstatus"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

const biosPath = systemPath + "/Bios"

func TestBootOptions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	system := b.get(systemPath)
	if d := cmp.Diff([]any{"root", "default"}, system.at("Boot", "BootOrder")); d != "" {
		t.Errorf("boot order (-want +got):\n%s", d)
	}
	uri, _ := system.at("Boot", "BootOptions", "@odata.id").(string)
	if d := cmp.Diff([]string{uri + "/root", uri + "/default", uri + "/cdrom"}, b.get(uri).memberIDs()); d != "" {
		t.Errorf("boot options (-want +got):\n%s", d)
	}
	link := func(uri string) any { return []any{map[string]any{"@odata.id": systemPath + uri}} }
	for id, want := range map[string]map[string]any{
		"root":    {"BootOptionReference": "root", "Alias": "Hdd", "BootOptionEnabled": true, "RelatedItem": link("/Storage/1/Drives/root")},
		"default": {"BootOptionReference": "default", "Alias": "Pxe", "BootOptionEnabled": true, "RelatedItem": link("/EthernetInterfaces/default")},
		"cdrom":   {"BootOptionReference": "cdrom", "Alias": "Cd", "BootOptionEnabled": false, "RelatedItem": nil},
	} {
		a := b.get(uri + "/" + id)
		for name, value := range want {
			if d := cmp.Diff(value, a.at(name)); d != "" {
				t.Errorf("%s of %s (-want +got):\n%s", name, id, d)
			}
		}
	}
	if a := b.get(uri + "/floppy"); a.status != http.StatusNotFound {
		t.Errorf("a device that is not there = %d", a.status)
	}
}

func TestPatchBootOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body   string
		status int
		ids    []string
		order  []any
	}{
		"another order":        {`{"Boot":{"BootOrder":["cdrom","root"]}}`, 200, nil, []any{"cdrom", "root"}},
		"no device":            {`{"Boot":{"BootOrder":[]}}`, 200, nil, []any{}},
		"with an override":     {`{"Boot":{"BootOrder":["default"],"BootSourceOverrideTarget":"Cd"}}`, 200, nil, []any{"default"}},
		"a device twice":       {`{"Boot":{"BootOrder":["root","root"]}}`, 400, []string{"PropertyValueNotInList"}, []any{"root", "default"}},
		"an unknown device":    {`{"Boot":{"BootOrder":["root","floppy"]}}`, 400, []string{"PropertyValueNotInList"}, []any{"root", "default"}},
		"no array":             {`{"Boot":{"BootOrder":"root"}}`, 400, []string{"PropertyValueTypeError"}, []any{"root", "default"}},
		"null":                 {`{"Boot":{"BootOrder":null}}`, 400, []string{"PropertyValueTypeError"}, []any{"root", "default"}},
		"null in it":           {`{"Boot":{"BootOrder":["root",null]}}`, 400, []string{"PropertyValueTypeError"}, []any{"root", "default"}},
		"with a wrong target":  {`{"Boot":{"BootOrder":["default"],"BootSourceOverrideTarget":"Floppy"}}`, 400, []string{"PropertyValueNotInList"}, []any{"root", "default"}},
		"what can't be set":    {`{"Boot":{"BootOptions":{}}}`, 400, []string{"PropertyNotWritable"}, []any{"root", "default"}},
		"along with an order":  {`{"Boot":{"BootOptions":{},"BootOrder":["default"]}}`, 200, nil, []any{"default"}},
		"an unknown property":  {`{"Boot":{"Order":[]}}`, 400, []string{"PropertyUnknown"}, []any{"root", "default"}},
		"for one start, alone": {`{"Boot":{"BootOrder":["default"],"BootSourceOverrideEnabled":"Once"}}`, 400, []string{"PropertyValueConflict"}, []any{"root", "default"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			a := b.do(request{method: "PATCH", path: systemPath, body: tc.body})
			if d := cmp.Diff(tc.ids, a.messageIDs()); d != "" || a.status != tc.status {
				t.Errorf("PATCH = %d, want %d (-want +got):\n%s", a.status, tc.status, d)
			}
			if d := cmp.Diff(tc.order, b.get(systemPath).at("Boot", "BootOrder")); d != "" {
				t.Errorf("order (-want +got):\n%s", d)
			}
		})
	}
}

// A request whose second part fails leaves nothing of its first.
func TestPatchBootOrder_asAWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.backend.FailOverrides(grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "away"))
	a := b.do(request{method: "PATCH", path: systemPath, body: `{"Boot":{"BootOrder":["cdrom"],"BootSourceOverrideTarget":"Cd"}}`})
	if a.status != http.StatusServiceUnavailable {
		t.Errorf("PATCH = %d", a.status)
	}
	if d := cmp.Diff([]any{"root", "default"}, b.get(systemPath).at("Boot", "BootOrder")); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func TestBios(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.backend.Update(func(_ *powerv1.PowerStatus, boot *bootv1.BootStatus, _ *inventoryv1.Inventory) {
		boot.AllowedModes = []bootv1.FirmwareMode{bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY, bootv1.FirmwareMode_FIRMWARE_MODE_UEFI}
	})
	bios := b.get(biosPath)
	if bios.at("Attributes", "BootMode") != "UEFI" || bios.at("Attributes", "SecureBoot") != "Enabled" {
		t.Errorf("attributes %v", bios.at("Attributes"))
	}
	settings, _ := bios.at("@Redfish.Settings", "SettingsObject", "@odata.id").(string)
	tag := b.get(settings).header.Get("ETag")
	for name, tc := range map[string]struct {
		body   string
		status int
		ids    []string
	}{
		"an unknown mode":            {`{"Attributes":{"BootMode":"EFI"}}`, 400, []string{"PropertyValueNotInList"}},
		"no text":                    {`{"Attributes":{"BootMode":1}}`, 400, []string{"PropertyValueTypeError"}},
		"what can't be set":          {`{"Attributes":{"SecureBoot":"Disabled"}}`, 400, []string{"PropertyNotWritable"}},
		"an unknown attribute":       {`{"Attributes":{"Turbo":"On"}}`, 400, []string{"PropertyUnknown"}},
		"no object":                  {`{"Attributes":1}`, 400, []string{"PropertyValueTypeError"}},
		"an empty object":            {`{"Attributes":{}}`, 400, []string{"NoOperation"}},
		"at once":                    {`{"Attributes":{"BootMode":"Legacy"},"@Redfish.SettingsApplyTime":{"ApplyTime":"Immediate"}}`, 400, []string{"PropertyValueNotInList"}},
		"a property of the resource": {`{"AttributeRegistry":"x"}`, 400, []string{"PropertyNotWritable"}},
	} {
		a := b.do(request{method: "PATCH", path: settings, body: tc.body})
		if d := cmp.Diff(tc.ids, a.messageIDs()); d != "" || a.status != tc.status {
			t.Errorf("%s = %d, want %d (-want +got):\n%s", name, a.status, tc.status, d)
		}
	}
	a := b.do(request{
		method: "PATCH", path: settings, header: http.Header{"If-Match": {tag}},
		body: `{"Attributes":{"BootMode":"Legacy","SecureBoot":"Disabled"},"@Redfish.SettingsApplyTime":{"@odata.type":"#Settings.v1_4_0.PreferredApplyTime","ApplyTime":"OnReset"}}`,
	})
	if a.status != http.StatusOK || a.at("Attributes", "BootMode") != "Legacy" || !strings.Contains(string(a.raw), "PropertyNotWritable") {
		t.Errorf("PATCH = %d %s", a.status, a.raw)
	}
	if a := b.do(request{method: "PATCH", path: settings, body: `{"Attributes":{"BootMode":"UEFI"}}`, header: http.Header{"If-Match": {tag}}}); a.status != http.StatusPreconditionFailed {
		t.Errorf("PATCH with an old ETag = %d", a.status)
	}
	// The machine runs with what it was started with.
	if got := b.get(biosPath).at("Attributes", "BootMode"); got != "UEFI" {
		t.Errorf("before the next start: BootMode %v", got)
	}
	b.do(request{method: "POST", path: resetPath, body: `{"ResetType":"ForceOff"}`})
	b.do(request{method: "POST", path: resetPath, body: `{"ResetType":"On"}`})
	if got := b.get(biosPath).at("Attributes", "BootMode"); got != "Legacy" {
		t.Errorf("after the next start: BootMode %v", got)
	}
	if a := b.do(request{method: "PATCH", path: biosPath, body: `{"Attributes":{"BootMode":"UEFI"}}`}); a.status != http.StatusMethodNotAllowed {
		t.Errorf("PATCH of the present settings = %d", a.status)
	}
}

// A mode that the owner of the machine has settled is refused.
func TestBios_settledMode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.do(request{method: "PATCH", path: biosPath + "/Settings", body: `{"Attributes":{"BootMode":"Legacy"}}`})
	if d := cmp.Diff([]string{"PropertyValueNotInList"}, a.messageIDs()); d != "" || a.status != http.StatusBadRequest {
		t.Errorf("PATCH = %d (-want +got):\n%s", a.status, d)
	}
}

// The registry has each attribute and each of its values.
func TestBios_registry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bios := b.get(biosPath)
	id, _ := bios.at("AttributeRegistry").(string)
	file := b.get("/redfish/v1/Registries/" + id)
	location, _ := file.at("Location").([]any)
	if len(location) != 1 {
		t.Fatalf("registry file %s", file.raw)
	}
	uri, _ := location[0].(map[string]any)["Uri"].(string)
	a := b.get(uri)
	if a.at("Id") != id || file.at("Registry") != id {
		t.Errorf("registries %v and %v, want %s", a.at("Id"), file.at("Registry"), id)
	}
	if s := schemas(); s != nil {
		s.check(t, uri, a.raw, locationOf("#AttributeRegistry.v1_4_0.AttributeRegistry"))
	}
	var registry struct {
		RegistryEntries struct {
			Attributes []struct {
				AttributeName string
				Value         []struct{ ValueName string }
			}
		}
	}
	if err := json.Unmarshal(a.raw, &registry); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, attribute := range registry.RegistryEntries.Attributes {
		for _, v := range attribute.Value {
			known[attribute.AttributeName+"="+v.ValueName] = true
		}
	}
	attributes, _ := bios.at("Attributes").(map[string]any)
	for name, value := range attributes {
		if text, _ := value.(string); !known[name+"="+text] {
			t.Errorf("the registry has no %s=%v", name, value)
		}
	}
}

func TestSecureBoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const path = systemPath + "/SecureBoot"
	if got := b.get(path).at("SecureBootEnable"); got != true {
		t.Errorf("SecureBootEnable = %v", got)
	}
	if a := b.do(request{method: "PATCH", path: path, body: `{"SecureBootEnable":false}`}); a.status != http.StatusMethodNotAllowed {
		t.Errorf("PATCH = %d", a.status)
	}
}
