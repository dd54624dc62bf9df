// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

// schemaDir holds the DMTF's JSON schemas.
const schemaDir = "../../../../../shared/redfish/json-schema"

const schemaBase = "http://redfish.dmtf.org/schemas/v1/"

// dmtfSchemas compiles the DMTF's schemas. Those that are not in schemaDir, as
// older versions and resources that nobody here serves, become plain links.
type dmtfSchemas struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	// defined has the definitions that are referred to, by file.
	defined map[string][]string
}

var schemas = sync.OnceValue(func() *dmtfSchemas {
	files, err := filepath.Glob(filepath.Join(schemaDir, "*.json"))
	if err != nil || len(files) == 0 {
		return nil
	}
	s := &dmtfSchemas{compiler: jsonschema.NewCompiler(), defined: map[string][]string{}}
	reference := regexp.MustCompile(`"\$ref": "http://[^"#]*/([^/"#]+)#/definitions/([^"]+)"`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		for _, m := range reference.FindAllStringSubmatch(string(raw), -1) {
			s.defined[m[1]] = append(s.defined[m[1]], m[2])
		}
	}
	s.compiler.UseLoader(s)
	s.compiler.AssertFormat()
	s.compiler.DefaultDraft(jsonschema.Draft7)
	return s
})

// Load implements jsonschema.URLLoader.
func (s *dmtfSchemas) Load(url string) (any, error) {
	name := path.Base(url)
	raw, err := os.ReadFile(filepath.Join(schemaDir, name))
	if err != nil {
		definitions := map[string]any{}
		for _, d := range s.defined[name] {
			if strings.Contains(name, ".v") {
				definitions[d] = map[string]any{"not": map[string]any{}} // An older version: not what we serve.
				continue
			}
			definitions[d] = map[string]any{
				"type": "object", "required": []any{"@odata.id"}, "additionalProperties": false,
				"properties": map[string]any{"@odata.id": map[string]any{"type": "string"}},
			}
		}
		return map[string]any{"definitions": definitions}, nil
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if m, ok := document.(map[string]any); ok {
		m["$schema"] = "http://json-schema.org/draft-07/schema#" // The DMTF's own adds annotations only.
	}
	return document, err
}

// check validates a body against the schema of its type.
func (s *dmtfSchemas) check(t *testing.T, what string, raw []byte, location string) {
	t.Helper()
	s.mu.Lock()
	schema, err := s.compiler.Compile(schemaBase + location)
	s.mu.Unlock()
	if err != nil {
		t.Errorf("%s: schema %s: %v", what, location, err)
		return
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s does not conform to %s: %v\n%s", what, location, err, raw)
	}
}

// locationOf returns where the schema of an @odata.type is.
func locationOf(odataType string) string {
	parts := strings.Split(strings.TrimPrefix(odataType, "#"), ".")
	last := parts[len(parts)-1]
	return strings.Join(parts[:len(parts)-1], ".") + ".json#/definitions/" + last
}

// links returns all @odata.id and other URIs of a body.
func links(v any) []string {
	var found []string
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if s, ok := value.(string); ok && name == "@odata.id" {
				found = append(found, s)
				continue
			}
			found = append(found, links(value)...)
		}
	case []any:
		for _, e := range v {
			found = append(found, links(e)...)
		}
	}
	return found
}

// checkValues finds what clients stumble over: empty objects and zero dates.
func checkValues(t *testing.T, what string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			t.Errorf("%s is {}", what)
		}
		for name, value := range v {
			checkValues(t, what+"/"+name, value)
		}
	case []any:
		for _, e := range v {
			checkValues(t, what+"[]", e)
		}
	case string:
		if v == "" || strings.HasPrefix(v, "0001-") || strings.HasPrefix(v, "1970-") {
			t.Errorf("%s is %q", what, v)
		}
	}
}

// walk reads every resource that can be reached from the service root and
// returns the bodies by URI.
func walk(t *testing.T, b *bench) map[string]answer {
	t.Helper()
	seen := map[string]answer{}
	queue := []string{"/redfish/v1/"}
	for len(queue) > 0 {
		uri := queue[0]
		queue = queue[1:]
		if _, ok := seen[uri]; ok {
			continue
		}
		a := b.get(uri)
		seen[uri] = a
		if a.status != http.StatusOK {
			t.Errorf("GET %s = %d %s", uri, a.status, a.raw)
			continue
		}
		if got := a.at("@odata.id"); got != uri {
			t.Errorf("GET %s has @odata.id %v", uri, got)
		}
		queue = append(queue, links(a.body)...)
	}
	return seen
}

// machines are states of a machine in which every resource has to be right.
var machines = map[string]func(*powerv1.PowerStatus, *bootv1.BootStatus, *inventoryv1.Inventory){
	"the machine runs": func(*powerv1.PowerStatus, *bootv1.BootStatus, *inventoryv1.Inventory) {},
	"the machine is off and has a one-time boot device": func(p *powerv1.PowerStatus, b *bootv1.BootStatus, i *inventoryv1.Inventory) {
		p.State, p.InstanceId, p.LastResetTime = powerv1.PowerState_POWER_STATE_OFF, "", nil
		b.Override = &bootv1.BootOverride{
			Persistence: bootv1.BootPersistence_BOOT_PERSISTENCE_ONCE, Target: bootv1.BootTarget_BOOT_TARGET_CD,
			Mode: bootv1.FirmwareMode_FIRMWARE_MODE_LEGACY,
		}
		i.GuestOperatingSystem = nil
		i.Interfaces[0].IpAddresses = nil
	},
	"nothing optional is known": func(p *powerv1.PowerStatus, b *bootv1.BootStatus, i *inventoryv1.Inventory) {
		p.State = powerv1.PowerState_POWER_STATE_UNKNOWN
		p.RestorePolicy = powerv1.RestorePolicy_RESTORE_POLICY_UNKNOWN
		p.LastResetTime = nil
		b.Mode, b.AllowedModes, b.AllowedTargets, b.Override = bootv1.FirmwareMode_FIRMWARE_MODE_UNKNOWN, nil, nil, nil
		b.Devices, b.InstanceMode, b.SecureBoot = nil, bootv1.FirmwareMode_FIRMWARE_MODE_UNSPECIFIED, false
		clear := &inventoryv1.Inventory{MachineNamespace: i.MachineNamespace, MachineName: i.MachineName}
		i.FirmwareUuid, i.SerialNumber, i.Manufacturer, i.Product = clear.FirmwareUuid, "", "", ""
		i.Processors, i.MemoryBytes, i.Interfaces, i.Disks, i.GuestOperatingSystem = nil, 0, nil, nil, nil
	},
	"values are odd": func(_ *powerv1.PowerStatus, _ *bootv1.BootStatus, i *inventoryv1.Inventory) {
		i.FirmwareUuid = "not a UUID"
		i.MemoryBytes = 1536 << 20
		i.Processors.Architecture = inventoryv1.Architecture_ARCHITECTURE_S390X
		i.Interfaces[0].MacAddress = ""
		i.Interfaces[0].IpAddresses = []string{"nonsense", "::ffff:10.0.0.1", "fe80::1%eth0"}
		i.Interfaces[1].Name = "odd name?#%41"
		i.Disks[0].CapacityBytes, i.Disks[0].Bus, i.Disks[0].Serial = 0, "", ""
	},
	"the machine is paused": func(p *powerv1.PowerStatus, _ *bootv1.BootStatus, i *inventoryv1.Inventory) {
		p.State = powerv1.PowerState_POWER_STATE_PAUSED
		i.Processors.Architecture = inventoryv1.Architecture_ARCHITECTURE_ARM64
	},
}

func TestTree_isWholeAndConforms(t *testing.T) {
	t.Parallel()
	for name, change := range machines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.backend.Update(change)
			b.do(request{method: "POST", path: "/redfish/v1/SessionService/Sessions", body: `{"UserName":"reader","Password":"reader password"}`})
			tree := walk(t, b)
			metadata := string(b.get("/redfish/v1/$metadata").raw)
			if len(tree) < 20 {
				t.Errorf("the tree has only %d resources", len(tree))
			}
			for uri, a := range tree {
				checkValues(t, uri, any(a.body))
				checkHeaderSet(t, uri, a)
				odataType, _ := a.at("@odata.type").(string)
				if namespace := odataType[1:strings.LastIndex(odataType, ".")]; !strings.Contains(metadata, `Namespace="`+namespace+`"`) {
					t.Errorf("$metadata does not refer to %s, the type of %s", namespace, uri)
				}
				head := b.do(request{method: http.MethodHead, path: uri})
				if head.status != http.StatusOK || len(head.raw) != 0 || head.header.Get("ETag") != a.header.Get("ETag") || head.header.Get("Allow") != a.header.Get("Allow") {
					t.Errorf("HEAD %s = %d %v", uri, head.status, head.header)
				}
				if slash := b.get(strings.TrimSuffix(uri, "/") + "/"); slash.status != http.StatusOK {
					t.Errorf("GET %s with a trailing slash = %d", uri, slash.status)
				}
				if s := schemas(); s != nil {
					s.check(t, uri, a.raw, locationOf(odataType))
				}
			}
			if schemas() == nil {
				t.Skipf("the DMTF's JSON schemas are not at %s: bodies were not validated", schemaDir)
			}
		})
	}
}

func checkHeaderSet(t *testing.T, uri string, a answer) {
	t.Helper()
	for name, want := range map[string]string{
		"OData-Version": "4.0", "Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("GET %s: header %s is %q, want %q", uri, name, got, want)
		}
	}
	etag := a.header.Get("ETag")
	if !regexp.MustCompile(`^"[0-9a-f]{16}"$`).MatchString(etag) || etag != a.at("@odata.etag") {
		t.Errorf("GET %s: ETag is %q, @odata.etag %v", uri, etag, a.at("@odata.etag"))
	}
	if allow := a.header.Get("Allow"); !strings.Contains(allow, "GET, HEAD") {
		t.Errorf("GET %s: Allow is %q", uri, allow)
	}
	if a.header.Get("X-Request-Id") == "" || !strings.Contains(a.header.Get("Link"), "rel=describedby") {
		t.Errorf("GET %s: headers %v", uri, a.header)
	}
}

func TestMetadata_isXMLThatRefersToWhatIsServed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.do(request{path: "/redfish/v1/$metadata", anonymous: true})
	var document struct {
		XMLName   xml.Name `xml:"http://docs.oasis-open.org/odata/ns/edmx Edmx"`
		Version   string   `xml:"Version,attr"`
		Reference []struct {
			URI     string `xml:"Uri,attr"`
			Include []struct {
				Namespace string `xml:",attr"`
			}
		}
		DataServices struct {
			Schema struct {
				EntityContainer struct {
					Extends string `xml:",attr"`
				}
			}
		}
	}
	if err := xml.Unmarshal(a.raw, &document); err != nil {
		t.Fatal(err)
	}
	if document.Version != "4.0" || document.DataServices.Schema.EntityContainer.Extends != "ServiceRoot.v1_20_0.ServiceContainer" {
		t.Errorf("metadata = %+v", document)
	}
	if got := a.header.Get("Content-Type"); got != "application/xml; charset=utf-8" {
		t.Errorf("Content-Type = %q", got)
	}
	var namespaces []string
	for _, r := range document.Reference {
		for _, i := range r.Include {
			namespaces = append(namespaces, i.Namespace)
		}
	}
	for _, want := range []string{"ComputerSystem.v1_27_0", "SessionCollection", "RedfishExtensions.v1_0_0"} {
		if !slices.Contains(namespaces, want) {
			t.Errorf("metadata lacks %s", want)
		}
	}
}

func TestErrors_conformToTheErrorSchema(t *testing.T) {
	t.Parallel()
	s := schemas()
	if s == nil {
		t.Skipf("the DMTF's JSON schemas are not at %s", schemaDir)
	}
	b := newBench(t)
	for _, r := range []request{
		{path: "/redfish/v1/Systems/2"},
		{path: "/redfish/v1/Systems", anonymous: true},
		{path: "/redfish/v1/Systems", method: "POST", body: "{}"},
		{path: "/redfish/v1/Systems/1", method: "PATCH", body: "{"},
		{path: "/redfish/v1/Systems/1", method: "PATCH", body: `{"Boot":{"BootSourceOverrideTarget":"Usb","x":1}}`},
		{path: "/redfish/v1/Systems/1", method: "PATCH", body: `{"Name":"x","Other":1}`},
		{path: "/redfish/v1/SessionService/Sessions", method: "POST", body: "{}", anonymous: true},
	} {
		a := b.do(r)
		if a.status < 400 {
			t.Errorf("%s %s = %d", r.method, r.path, a.status)
		}
		s.check(t, r.method+" "+r.path, a.raw, "redfish-error.v1_0_2.json")
		var body struct {
			Error struct {
				Info []json.RawMessage `json:"@Message.ExtendedInfo"`
			} `json:"error"`
		}
		if err := json.Unmarshal(a.raw, &body); err != nil || len(body.Error.Info) == 0 {
			t.Errorf("%s %s: no extended information in %s", r.method, r.path, a.raw)
		}
		for _, info := range body.Error.Info {
			s.check(t, r.method+" "+r.path, info, "Message.v1_3_0.json#/definitions/Message")
		}
	}
}

// A checker that admits anything would prove nothing.
func TestSchemas_findMistakes(t *testing.T) {
	t.Parallel()
	s := schemas()
	if s == nil {
		t.Skipf("the DMTF's JSON schemas are not at %s", schemaDir)
	}
	const right = `"@odata.id":"/redfish/v1/Systems/1","@odata.type":"#ComputerSystem.v1_27_0.ComputerSystem","Id":"1","Name":"x"`
	for name, tc := range map[string]struct {
		more string
		ok   bool
	}{
		"nothing more":     {``, true},
		"known property":   {`,"PowerState":"On"`, true},
		"unknown property": {`,"Power":"On"`, false},
		"wrong value":      {`,"PowerState":"on"`, false},
		"wrong type":       {`,"MemorySummary":{"TotalSystemMemoryGiB":"4"}`, false},
		"wrong link":       {`,"Processors":"/redfish/v1"`, false},
		"wrong date":       {`,"LastResetTime":"yesterday"`, false},
	} {
		s.mu.Lock()
		schema, err := s.compiler.Compile(schemaBase + locationOf("#ComputerSystem.v1_27_0.ComputerSystem"))
		s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader("{" + right + tc.more + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
