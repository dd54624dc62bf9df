// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
)

func TestFields_missing(t *testing.T) {
	t.Parallel()
	const want = `
properties:
  clusterIP: {type: string}
  mode: {type: string, enum: [Oneshot, Persistent]}
  frontend: {type: object, properties: {ipmi: {type: object, properties: {port: {type: integer}}}}}
  conditions: {type: array, items: {type: object, properties: {type: {type: string}, observedGeneration: {type: integer}}}}
`
	for name, tc := range map[string]struct {
		is   string
		want []string
	}{
		"the same":        {want, nil},
		"nothing":         {"{}", []string{"status.clusterIP", "status.conditions", "status.frontend", "status.mode"}},
		"all is kept":     {"{x-kubernetes-preserve-unknown-fields: true}", nil},
		"an inner field":  {"properties: {clusterIP: {}, mode: {}, conditions: {}, frontend: {properties: {ipmi: {properties: {replica: {}}}}}}", []string{"status.frontend.ipmi.port"}},
		"a list's field":  {"properties: {clusterIP: {}, mode: {}, frontend: {x-kubernetes-preserve-unknown-fields: true}, conditions: {items: {properties: {type: {}}}}}", []string{"status.conditions[].observedGeneration"}},
		"a value":         {"properties: {clusterIP: {}, mode: {enum: [Oneshot]}, frontend: {x-kubernetes-preserve-unknown-fields: true}, conditions: {}}", []string{"status.mode=Persistent"}},
		"it knows more":   {"properties: {more: {}, clusterIP: {}, mode: {enum: [Oneshot, Persistent, More]}, frontend: {x-kubernetes-preserve-unknown-fields: true}, conditions: {}}", nil},
		"any value is so": {"properties: {clusterIP: {}, mode: {}, frontend: {x-kubernetes-preserve-unknown-fields: true}, conditions: {}}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mine, is fields
			for text, to := range map[string]*fields{want: &mine, tc.is: &is} {
				if err := yaml.Unmarshal([]byte(text), to); err != nil {
					t.Fatal(err)
				}
			}
			if tc.is == want {
				is = mine
			}
			if diff := cmp.Diff(tc.want, mine.missing(&is, "status")); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFieldsOf(t *testing.T) {
	t.Parallel()
	got, err := fieldsOf(crds.VirtualMachineBMC, "v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Properties[partStatus].Properties["frontend"].Properties["ipmi"].Properties["port"] == nil || got.Properties[partSpec] == nil {
		t.Error("this version's definition has no frontends")
	}
	if _, err := fieldsOf(crds.VirtualMachineBMC, "v1"); err == nil {
		t.Error("it has version v1")
	}
}
