// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/api.md")

const (
	referenceFile = "../../docs/api.md"
	begin         = "<!-- begin: written by api/v1beta1 -->\n"
)

// firstIn says where a field was first: in a chart line, on the main branch
// after line 0.6.0, or here.
var firstIn = map[string]string{
	"spec":                                                    "0.4.1",
	"spec.authSecretRef":                                      "0.4.1",
	"spec.authSecretRef.name":                                 "0.4.1",
	"spec.bootOverride":                                       "here",
	"spec.bootOverride.strategy":                              "here",
	"spec.frontend":                                           "here",
	"spec.frontend.dedicated":                                 "here",
	"spec.frontend.dedicated.nodeSelector":                    "here",
	"spec.frontend.dedicated.resources":                       "here",
	"spec.frontend.dedicated.resources.limits":                "here",
	"spec.frontend.dedicated.resources.requests":              "here",
	"spec.frontend.mode":                                      "here",
	"spec.ipmi":                                               "0.5.1",
	"spec.ipmi.cipherSuites":                                  "here",
	"spec.ipmi.enabled":                                       "0.5.1",
	"spec.ipmi.lan":                                           "here",
	"spec.ipmi.lan.enabled":                                   "here",
	"spec.networkRef":                                         "main",
	"spec.redfish":                                            "main",
	"spec.redfish.http":                                       "here",
	"spec.redfish.http.enabled":                               "here",
	"spec.redfish.https":                                      "here",
	"spec.redfish.https.certificateSecretRef":                 "here",
	"spec.redfish.https.certificateSecretRef.name":            "here",
	"spec.redfish.https.enabled":                              "here",
	"spec.redfish.virtualMedia":                               "main",
	"spec.redfish.virtualMedia.storage":                       "main",
	"spec.redfish.virtualMedia.storage.storageClassName":      "main",
	"spec.redfish.virtualMedia.storage.volumeMode":            "main",
	"spec.redfish.virtualMedia.tls":                           "main",
	"spec.redfish.virtualMedia.tls.caBundleConfigMapRef":      "main",
	"spec.redfish.virtualMedia.tls.caBundleConfigMapRef.name": "main",
	"spec.redfish.virtualMedia.tls.insecureSkipVerify":        "main",
	"spec.service":                                            "main",
	"spec.service.annotations":                                "main",
	"spec.service.externalTrafficPolicy":                      "here",
	"spec.service.labels":                                     "main",
	"spec.service.loadBalancerClass":                          "here",
	"spec.service.loadBalancerSourceRanges":                   "here",
	"spec.service.nodePorts":                                  "here",
	"spec.service.nodePorts.http":                             "here",
	"spec.service.nodePorts.https":                            "here",
	"spec.service.nodePorts.ipmi":                             "here",
	"spec.service.type":                                       "main",
	"spec.storageClassName":                                   "main",
	"spec.virtualMachineRef":                                  "0.4.1",
	"spec.virtualMachineRef.name":                             "0.4.1",
	"status":                                                  "0.4.1",
	"status.bootOverride":                                     "0.6.0",
	"status.bootOverride.bootOrders":                          "0.6.0",
	"status.bootOverride.firmware":                            "here",
	"status.bootOverride.id":                                  "here",
	"status.bootOverride.mode":                                "0.6.0",
	"status.bootOverride.originalFirmware":                    "0.6.0",
	"status.bootOverride.strategy":                            "here",
	"status.bootOverride.target":                              "here",
	"status.bootOverride.vmUID":                               "main",
	"status.bootOverride.vmiUID":                              "0.6.0",
	"status.clusterIP":                                        "0.4.1",
	"status.conditions":                                       "0.4.1",
	"status.frontend":                                         "here",
	"status.frontend.ipmi":                                    "here",
	"status.frontend.ipmi.port":                               "here",
	"status.frontend.ipmi.replica":                            "here",
	"status.frontend.mode":                                    "here",
	"status.frontend.redfish":                                 "here",
	"status.frontend.redfish.httpPort":                        "here",
	"status.frontend.redfish.httpsPort":                       "here",
	"status.frontend.redfish.replica":                         "here",
	"status.loadBalancerHostname":                             "here",
	"status.loadBalancerIP":                                   "main",
	"status.nodePorts":                                        "here",
	"status.nodePorts.http":                                   "here",
	"status.nodePorts.https":                                  "here",
	"status.nodePorts.ipmi":                                   "here",
	"status.observedGeneration":                               "here",
}

// openAPI is what the reference needs of an OpenAPI schema.
type openAPI struct {
	Description          string
	Type                 string
	Default              *string
	Enum                 []any
	Minimum, Maximum     *int64
	MinLength, MaxLength *int64
	MinItems, MaxItems   *int64
	Required             []string
	Properties           map[string]openAPI
	Items                *openAPI
	AdditionalProperties *openAPI
	IntOrString          bool                                  `json:"x-kubernetes-int-or-string"`
	ListType             string                                `json:"x-kubernetes-list-type"`
	Validations          []struct{ FieldPath, Message string } `json:"x-kubernetes-validations"`
}

func TestReference_saysWhatTheSchemaSays(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	intro, got, found := bytes.Cut(doc, []byte(begin))
	if !found {
		t.Fatalf("%s has no line %q", referenceFile, begin)
	}
	want := reference(t)
	if *update {
		if err := os.WriteFile(referenceFile, append(append(intro, begin...), want...), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of step, go test -update rewrites it (-want +got):\n%s", referenceFile, diff)
	}
}

// reference returns the generated part of the document.
func reference(t *testing.T) string {
	t.Helper()
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema openAPI
				}
			}
		}
	}
	if err := yaml.Unmarshal(crds.VirtualMachineBMC, &crd); err != nil {
		t.Fatal(err)
	}
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	var b strings.Builder
	seen := map[string]bool{}
	for _, part := range []string{"spec", "status"} {
		fmt.Fprintf(&b, "\n## %s\n\n| field | type | limits | first in | what |\n|---|---|---|---|---|\n", part)
		var rules []string
		fields(t, part, root.Properties[part], false, seen, &b, &rules)
		if len(rules) > 0 {
			fmt.Fprintf(&b, "\nRules between fields:\n\n%s", strings.Join(rules, ""))
		}
	}
	for path := range firstIn {
		if !seen[path] {
			t.Errorf("firstIn has %s, which the schema does not have", path)
		}
	}
	conditions(t, &b)
	return b.String()
}

// fields writes a row for a field and each one below it.
func fields(t *testing.T, path string, s openAPI, required bool, seen map[string]bool, b *strings.Builder, rules *[]string) {
	t.Helper()
	seen[path] = true
	since, ok := firstIn[path]
	if !ok {
		t.Errorf("firstIn does not say where %s was first", path)
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", path, typeOf(s), limits(s, required), since, what(path, s))
	for _, v := range s.Validations {
		*rules = append(*rules, fmt.Sprintf("- `%s%s`: %s\n", path, v.FieldPath, v.Message))
	}
	if s.Items != nil {
		for _, v := range s.Items.Validations {
			*rules = append(*rules, fmt.Sprintf("- `%s[]`: %s\n", path, v.Message))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		below := path + "." + name
		fields(t, below, s.Properties[name], slices.Contains(s.Required, name), seen, b, rules)
	}
}

// what returns a field's description without its name.
func what(path string, s openAPI) string {
	text := oneLine(s.Description)
	name := path[strings.LastIndexByte(path, '.')+1:]
	for _, verb := range []string{" is ", " are "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			return rest
		}
	}
	return text
}

// typeOf returns a field's type in words.
func typeOf(s openAPI) string {
	switch {
	case s.IntOrString:
		return "quantity"
	case s.ListType == "map": // the only one is that of conditions
		return "list of [conditions](#conditions)"
	case s.Items != nil:
		return "list of " + typeOf(*s.Items)
	case s.AdditionalProperties != nil:
		return "map to " + typeOf(*s.AdditionalProperties)
	default:
		return s.Type
	}
}

// limits returns what a field's value must be, in words.
func limits(s openAPI, required bool) string {
	var list []string
	if required {
		list = append(list, "required")
	}
	if s.Default != nil {
		list = append(list, fmt.Sprintf("default `%q`", *s.Default))
	}
	if len(s.Enum) > 0 {
		list = append(list, oneOf(s.Enum))
	}
	if s.Items != nil && len(s.Items.Enum) > 0 {
		list = append(list, oneOf(s.Items.Enum))
	}
	for _, r := range []struct {
		min, max *int64
		unit     string
	}{{s.Minimum, s.Maximum, ""}, {s.MinLength, s.MaxLength, " characters"}, {s.MinItems, s.MaxItems, " items"}} {
		switch {
		case r.min != nil && r.max != nil:
			list = append(list, fmt.Sprintf("%d to %d%s", *r.min, *r.max, r.unit))
		case r.min != nil:
			list = append(list, fmt.Sprintf("at least %d%s", *r.min, r.unit))
		case r.max != nil:
			list = append(list, fmt.Sprintf("at most %d%s", *r.max, r.unit))
		}
	}
	return strings.Join(list, "; ")
}

func oneOf(values []any) string {
	var list []string
	for _, v := range values {
		list = append(list, fmt.Sprintf("`%v`", v))
	}
	return strings.Join(list, ", ")
}

func oneLine(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "<name>", "NAME")
}

// conditions writes the tables of condition types and their reasons, from the
// comments of conditions.go.
func conditions(t *testing.T, b *strings.Builder) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "conditions.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{} // constants to the values of condition types
	for _, decl := range file.Decls {
		group := decl.(*ast.GenDecl)
		heading := group.Doc.Text()
		if constant, ok := strings.CutPrefix(heading, "Reasons of "); ok {
			constant, rest, _ := strings.Cut(constant, ".")
			constant, when, _ := strings.Cut(constant, " ")
			value, ok := types[constant]
			if !ok || strings.TrimSpace(rest) != "" {
				t.Fatalf("conditions.go: heading %q is not about a condition type", heading)
			}
			fmt.Fprintf(b, "\n### %s\n\n| reason%s | what |\n|---|---|\n", value, strings.TrimRight(" "+when, " "))
		} else {
			fmt.Fprint(b, "\n## Conditions\n\n| type | what |\n|---|---|\n")
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			name := value.Names[0].Name
			text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "Condition") {
				types[name] = text
			}
			if strings.TrimPrefix(strings.TrimPrefix(name, "Condition"), "Reason") != text {
				t.Errorf("conditions.go: %s has the value %q", name, text)
			}
			what, ok := strings.CutPrefix(oneLine(value.Doc.Text()), name+" ")
			if !ok {
				t.Errorf("conditions.go: the comment of %s does not start with its name", name)
			}
			what = strings.TrimPrefix(strings.TrimPrefix(what, "says that "), "is ")
			fmt.Fprintf(b, "| `%s` | %s |\n", text, what)
		}
	}
}
