// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package crd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"

	"kubevirtbmc.dev/api/v1beta1"
)

const objectsDir = "testdata/objects"

// everyField is the manifest that has each field.
const everyField = "every-field.yaml"

func manifests(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(objectsDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	objects := map[string]*unstructured.Unstructured{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects[filepath.Base(file)] = object(t, string(data))
	}
	return objects
}

func TestObjects_ofEveryLine_areKeptAsTheyAre(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	for name, want := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create(t, objects, want)
			got, err := objects.Get(t.Context(), want.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"spec", "status"} {
				if diff := cmp.Diff(want.Object[part], got.Object[part]); diff != "" {
					t.Errorf("%s mismatch (-sent +stored):\n%s", part, diff)
				}
			}
			if diff := cmp.Diff(want.GetAnnotations(), got.GetAnnotations()); diff != "" {
				t.Errorf("annotations mismatch (-sent +stored):\n%s", diff)
			}
			if _, err := patch(t, objects, want.GetName(), `{"metadata":{"labels":{"edited":"yes"}}}`); err != nil {
				t.Errorf("it can't be edited: %v", err)
			}

			// The Go types know each field as well, under the same name.
			var typed v1beta1.VirtualMachineBMC
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(got.Object, &typed, true); err != nil {
				t.Fatalf("read it into the Go type: %v", err)
			}
			back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&typed)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"spec", "status"} {
				if diff := cmp.Diff(withoutEmptyStrings(got.Object[part]), withoutEmptyStrings(back[part])); diff != "" {
					t.Errorf("%s of the Go type mismatch (-stored +written):\n%s", part, diff)
				}
			}
		})
	}
}

// withoutEmptyStrings returns a value without members that are empty strings or,
// after that, have no members: the Go types leave out the former.
func withoutEmptyStrings(value any) any {
	m, ok := value.(map[string]any)
	if !ok {
		return value
	}
	rest := map[string]any{}
	for k, v := range m {
		v = withoutEmptyStrings(v)
		if below, ok := v.(map[string]any); v == "" || (ok && len(below) == 0) {
			continue
		}
		rest[k] = v
	}
	return rest
}

// Without this a field that is forgotten in the manifest would not be missed.
func TestObjects_everyFieldOfTheSchemaIsInOne(t *testing.T) {
	t.Parallel()
	crd, err := definition()
	if err != nil {
		t.Fatal(err)
	}
	object := manifests(t)[everyField]
	for _, part := range []string{"spec", "status"} {
		everyProperty(t, part, schemaOf(t, crd)["properties"].(map[string]any)[part], object.Object[part])
	}
}

// everyProperty compares the properties of a schema with the members of a value.
func everyProperty(t *testing.T, path string, schema, value any) {
	t.Helper()
	properties, _ := schema.(map[string]any)["properties"].(map[string]any)
	for name, property := range properties {
		member, ok := value.(map[string]any)[name]
		if !ok {
			t.Errorf("%s has no %s.%s", everyField, path, name)
			continue
		}
		everyProperty(t, path+"."+name, property, member)
	}
}

// schemaOf returns the schema of a definition, to be changed in place.
func schemaOf(t *testing.T, crd *unstructured.Unstructured) map[string]any {
	t.Helper()
	versions, _, err := unstructured.NestedFieldNoCopy(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	version := versions.([]any)[0].(map[string]any)
	return version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
}

func TestRules(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	tests := map[string]struct {
		spec   string
		status string
		// want is what the refusal says, in parts; none: it is accepted.
		want []string
	}{
		"a service type that does not exist": {
			spec: "service: {type: ExternalName}",
			want: []string{"spec.service.type", `supported values: "ClusterIP", "NodePort", "LoadBalancer"`},
		},
		"a volume mode that does not exist": {
			spec: "redfish: {virtualMedia: {storage: {volumeMode: File}}}",
			want: []string{"spec.redfish.virtualMedia.storage.volumeMode", `"Filesystem", "Block"`},
		},
		"a boot override strategy that does not exist": {
			spec: "bootOverride: {strategy: Never}",
			want: []string{"spec.bootOverride.strategy", `"Admission", "Template"`},
		},
		"a frontend mode that does not exist": {
			spec: "frontend: {mode: Own}",
			want: []string{"spec.frontend.mode", `"Shared", "Dedicated"`},
		},
		"IPMI as a word": {
			spec: `ipmi: {enabled: "yes"}`,
			want: []string{"spec.ipmi.enabled", "boolean"},
		},
		"a field that does not exist": {
			spec: "ipmi: {enable: true}",
			want: []string{`unknown field "spec.ipmi.enable"`},
		},
		"cipher suite 0, which needs no password": {
			spec: "ipmi: {cipherSuites: [0]}",
			want: []string{"spec.ipmi.cipherSuites[0]", `"3", "17"`},
		},
		"a cipher suite named twice": {
			spec: "ipmi: {cipherSuites: [17, 17]}",
			want: []string{"spec.ipmi.cipherSuites", "a cipher suite is named twice"},
		},
		"no cipher suites": {
			spec: "ipmi: {cipherSuites: []}",
			want: []string{"spec.ipmi.cipherSuites", "at least 1 items"},
		},
		"cipher suites in any order": {spec: "ipmi: {cipherSuites: [3, 17]}"},
		"a certificate's Secret without a name": {
			spec: "redfish: {https: {certificateSecretRef: {}}}",
			want: []string{"spec.redfish.https.certificateSecretRef.name", "Required value"},
		},
		"a certificate's Secret with an empty name": {
			spec: `redfish: {https: {certificateSecretRef: {name: ""}}}`,
			want: []string{"spec.redfish.https.certificateSecretRef.name", "at least 1 chars long"},
		},
		"node ports of a Service without them": {
			spec: "service: {type: ClusterIP, nodePorts: {ipmi: 30623}}",
			want: []string{"spec.service.nodePorts", "node ports need type NodePort or LoadBalancer"},
		},
		"node ports of a Service whose type is the default": {
			spec: "service: {nodePorts: {ipmi: 30623}}",
			want: []string{"spec.service.nodePorts", "node ports need type NodePort or LoadBalancer"},
		},
		"one node port for HTTP and HTTPS": {
			spec: "service: {type: NodePort, nodePorts: {http: 30443, https: 30443}}",
			want: []string{"spec.service.nodePorts", "http and https are both TCP and need different ports"},
		},
		"one node port for HTTPS and IPMI, which is UDP": {
			spec: "service: {type: NodePort, nodePorts: {https: 30443, ipmi: 30443}}",
		},
		"a node port over 65535": {
			spec: "service: {type: NodePort, nodePorts: {ipmi: 65536}}",
			want: []string{"spec.service.nodePorts.ipmi", "less than or equal to 65535"},
		},
		"an external traffic policy without outside": {
			spec: "service: {externalTrafficPolicy: Local}",
			want: []string{"spec.service.externalTrafficPolicy", "needs type NodePort or LoadBalancer"},
		},
		"an external traffic policy of node ports": {
			spec: "service: {type: NodePort, externalTrafficPolicy: Local}",
		},
		"a load balancer class without a load balancer": {
			spec: "service: {type: NodePort, loadBalancerClass: example.com/metal}",
			want: []string{"spec.service.loadBalancerClass", "needs type LoadBalancer"},
		},
		"source ranges without a load balancer": {
			spec: "service: {type: NodePort, loadBalancerSourceRanges: [192.0.2.0/24]}",
			want: []string{"spec.service.loadBalancerSourceRanges", "source ranges need type LoadBalancer"},
		},
		"a source range that is an address": {
			spec: "service: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.1]}",
			want: []string{"spec.service.loadBalancerSourceRanges[0]", "not an address range in CIDR notation"},
		},
		"a source range named twice": {
			spec: "service: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24, 192.0.2.0/24]}",
			want: []string{"spec.service.loadBalancerSourceRanges[1]", "Duplicate value"},
		},
		"options of a dedicated frontend in a shared one": {
			spec: "frontend: {mode: Shared, dedicated: {resources: {limits: {memory: 64Mi}}}}",
			want: []string{"spec.frontend.dedicated", "dedicated is for mode Dedicated"},
		},
		"options of a dedicated frontend where the chart chooses": {
			spec: "frontend: {dedicated: {resources: {limits: {memory: 64Mi}}}}",
		},
		"memory that is no quantity": {
			spec: "frontend: {dedicated: {resources: {limits: {memory: much}}}}",
			want: []string{"spec.frontend.dedicated.resources.limits.memory", "should match"},
		},
		"a network of a shared frontend": {
			spec: "networkRef: bmc-net\nfrontend: {mode: Shared}",
			want: []string{"spec.networkRef", "only a dedicated frontend has a network of its own"},
		},
		"an empty network of a shared frontend": {spec: "networkRef: ''\nfrontend: {mode: Shared}"},
		"a network of a dedicated frontend":     {spec: "networkRef: bmc-net\nfrontend: {mode: Dedicated}"},
		"a boot override without a mode": {
			status: "bootOverride: {vmiUID: a}",
			want:   []string{"status.bootOverride.mode", "Required value"},
		},
		"a boot override of an unknown mode": {
			status: "bootOverride: {mode: Twice}",
			want:   []string{"status.bootOverride.mode", `"Oneshot", "Persistent"`},
		},
		"a boot override to an unknown target": {
			status: "bootOverride: {mode: Oneshot, target: Floppy}",
			want:   []string{"status.bootOverride.target", `"PXE", "HDD", "CD"`},
		},
		"a boot override of an unknown firmware": {
			status: "bootOverride: {mode: Oneshot, originalFirmware: BIOS}",
			want:   []string{"status.bootOverride.originalFirmware", `"Legacy", "UEFI"`},
		},
		"a boot order that is no number": {
			status: "bootOverride: {mode: Oneshot, bootOrders: {'disk:root': first}}",
			want:   []string{"status.bootOverride.bootOrders.disk:root", "integer"},
		},
		"a frontend's port 0": {
			status: "frontend: {ipmi: {port: 0}}",
			want:   []string{"status.frontend.ipmi.port", "greater than or equal to 1"},
		},
		"two conditions of a type": {
			status: `conditions:
- {type: Ready, status: "True", reason: Serving, message: "", lastTransitionTime: "2026-12-01T08:00:00Z"}
- {type: Ready, status: "False", reason: Serving, message: "", lastTransitionTime: "2026-12-01T08:00:00Z"}`,
			want: []string{"status.conditions[1]", "Duplicate value"},
		},
		"a condition that is maybe true": {
			status: `conditions: [{type: Ready, status: Maybe, reason: Serving, message: "", lastTransitionTime: "2026-12-01T08:00:00Z"}]`,
			want:   []string{"status.conditions[0].status", `"True", "False", "Unknown"`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := bmc(t, "rule-"+rand.String(8), "virtualMachineRef: {name: vm}\nauthSecretRef: {name: secret}\n"+tt.spec)
			stored, err := objects.Create(t.Context(), o, strict)
			if tt.status != "" {
				if err != nil {
					t.Fatal(err)
				}
				_, err = objects.UpdateStatus(t.Context(), withStatus(t, stored, tt.status), metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			}
			if len(tt.want) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the refusal does not say %q: %v", part, err)
				}
			}
		})
	}
}

func TestRules_ofChanges(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	const refusal = "Kubernetes can't change a load balancer's class"
	tests := map[string]struct {
		spec, patch, want string
	}{
		"another class":           {"service: {type: LoadBalancer, loadBalancerClass: example.com/a}", `{"spec":{"service":{"loadBalancerClass":"example.com/b"}}}`, refusal},
		"a class where none was":  {"service: {type: LoadBalancer}", `{"spec":{"service":{"loadBalancerClass":"example.com/b"}}}`, refusal},
		"no class where one was":  {"service: {type: LoadBalancer, loadBalancerClass: example.com/a}", `{"spec":{"service":{"loadBalancerClass":null}}}`, refusal},
		"the class with its type": {"service: {type: LoadBalancer, loadBalancerClass: example.com/a}", `{"spec":{"service":{"type":"ClusterIP","loadBalancerClass":null}}}`, ""},
		"a class with its type":   {"service: {type: NodePort}", `{"spec":{"service":{"type":"LoadBalancer","loadBalancerClass":"example.com/b"}}}`, ""},
		"something else":          {"service: {type: LoadBalancer, loadBalancerClass: example.com/a}", `{"spec":{"service":{"labels":{"a":"b"}}}}`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := create(t, objects, bmc(t, "change-"+rand.String(8), tt.spec))
			_, err := patch(t, objects, o.GetName(), tt.patch)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	got := create(t, objects, bmc(t, "defaults", `
virtualMachineRef: {}
ipmi: {}
redfish: {https: {}, http: {}, virtualMedia: {storage: {}, tls: {}}}
bootOverride: {}
service: {}
frontend: {}`))
	// What the chart decides has to stay unset.
	want := map[string]any{
		"virtualMachineRef": map[string]any{"name": ""},
		"ipmi":              map[string]any{},
		"redfish": map[string]any{
			"https": map[string]any{}, "http": map[string]any{},
			"virtualMedia": map[string]any{"storage": map[string]any{}, "tls": map[string]any{}},
		},
		"bootOverride": map[string]any{},
		"service":      map[string]any{"type": "ClusterIP"},
		"frontend":     map[string]any{},
	}
	if diff := cmp.Diff(want, got.Object["spec"]); diff != "" {
		t.Errorf("spec mismatch (-want +got):\n%s", diff)
	}
}

func TestStatus_isApart(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	o := withStatus(t, bmc(t, "apart", "virtualMachineRef: {name: vm}"), "clusterIP: 10.96.0.9")
	created, err := objects.Create(t.Context(), o, strict)
	if err != nil {
		t.Fatal(err)
	}
	if status, ok := created.Object["status"]; ok {
		t.Errorf("a new object has the status %v", status)
	}
	both := withStatus(t, created, "clusterIP: 10.96.0.10")
	if err := unstructured.SetNestedField(both.Object, "another", "spec", "virtualMachineRef", "name"); err != nil {
		t.Fatal(err)
	}
	updated, err := objects.UpdateStatus(t.Context(), both, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(updated.Object, "spec", "virtualMachineRef", "name")
	ip, _, _ := unstructured.NestedString(updated.Object, "status", "clusterIP")
	if name != "vm" || ip != "10.96.0.10" || updated.GetGeneration() != created.GetGeneration() {
		t.Errorf("after an update of the status: machine %q, address %q, generation %d; want vm, 10.96.0.10, %d",
			name, ip, updated.GetGeneration(), created.GetGeneration())
	}
}

// Several controllers write conditions, each its own.
func TestConditions_ofSeveralManagers_areMerged(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	create(t, objects, bmc(t, "merged", "virtualMachineRef: {name: vm}"))
	write := func(manager string, conditions ...string) {
		t.Helper()
		status := "conditions: []"
		if len(conditions) > 0 {
			status = "conditions:\n"
		}
		for _, c := range conditions {
			status += fmt.Sprintf("- {type: %s, status: \"True\", reason: Test, message: by %s, lastTransitionTime: \"2026-12-01T08:00:00Z\"}\n", c, manager)
		}
		o := withStatus(t, object(t, "apiVersion: "+bmcs.GroupVersion().String()+"\nkind: VirtualMachineBMC\nmetadata: {name: merged}"), status)
		if _, err := objects.ApplyStatus(t.Context(), "merged", o, metav1.ApplyOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
	}
	types := func() []string {
		t.Helper()
		o, err := objects.Get(t.Context(), "merged", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var typed v1beta1.VirtualMachineBMC
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, c := range typed.Status.Conditions {
			list = append(list, c.Type+" "+c.Message)
		}
		slices.Sort(list)
		return list
	}
	write("services", "ServiceReady")
	write("machines", "VirtualMachineAvailable", "HypervisorAvailable")
	want := []string{"HypervisorAvailable by machines", "ServiceReady by services", "VirtualMachineAvailable by machines"}
	if diff := cmp.Diff(want, types()); diff != "" {
		t.Errorf("conditions of two managers mismatch (-want +got):\n%s", diff)
	}
	write("machines", "HypervisorAvailable")
	want = []string{"HypervisorAvailable by machines", "ServiceReady by services"}
	if diff := cmp.Diff(want, types()); diff != "" {
		t.Errorf("conditions after one was withdrawn mismatch (-want +got):\n%s", diff)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	objects := newNamespace(t)
	o := create(t, objects, manifests(t)[everyField])
	var table metav1.Table
	err := server.discovery.RESTClient().Get().
		AbsPath("/apis", bmcs.Group, bmcs.Version, "namespaces", o.GetNamespace(), bmcs.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		Do(t.Context()).Into(&table)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%d rows, want 1", len(table.Rows))
	}
	type cell struct {
		Name  string
		Wide  bool
		Value any
	}
	var got []cell
	for i, column := range table.ColumnDefinitions {
		value := table.Rows[0].Cells[i]
		if column.Name == "Age" {
			value = "some time" // which changes
		}
		got = append(got, cell{strings.ToUpper(column.Name), column.Priority > 0, value}) // as kubectl prints it
	}
	// The first four are where scripts of earlier lines look for them.
	want := []cell{
		{"NAME", false, "every-field"},
		{"VIRTUALMACHINE", false, "web-1"},
		{"SECRET", false, "web-1-bmc"},
		{"CLUSTERIP", false, "10.96.12.11"},
		{"READY", false, "False"},
		{"SERVICEREADY", false, "True"},
		{"AGE", false, "some time"},
		{"REASON", true, "FrontendPending"},
		{"LOADBALANCERIP", true, "192.0.2.11"},
		{"LOADBALANCERHOSTNAME", true, "bmc.example.com"},
		{"HTTPSNODEPORT", true, int64(30443)},
		{"IPMINODEPORT", true, int64(30443)},
		{"MODE", true, "Dedicated"},
		{"REDFISHREPLICA", true, "web-1-virtbmc-6f5c-x2v7p"},
		{"IPMIREPLICA", true, "web-1-virtbmc-6f5c-x2v7p"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table mismatch (-want +got):\n%s", diff)
	}
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	list, err := server.discovery.ServerResourcesForGroupVersion(bmcs.GroupVersion().String())
	if err != nil {
		t.Fatal(err)
	}
	type resource struct {
		Name, Singular, Kind   string
		Namespaced             bool
		ShortNames, Categories []string
	}
	var got []resource
	for _, r := range list.APIResources {
		got = append(got, resource{r.Name, r.SingularName, r.Kind, r.Namespaced, r.ShortNames, r.Categories})
	}
	want := []resource{
		{"virtualmachinebmcs", "virtualmachinebmc", "VirtualMachineBMC", true, []string{"vmbmc", "vmbmcs"}, []string{"all"}},
		{"virtualmachinebmcs/status", "", "VirtualMachineBMC", true, nil, nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources mismatch (-want +got):\n%s", diff)
	}
}

// The definition of line 0.6.0 is replaced by ours while objects are stored,
// some of which ours would not take as new ones. A group of the test's own keeps
// this from others' objects.
func TestUpgrade_ofTheDefinition_keepsObjectsUsable(t *testing.T) {
	t.Parallel()
	ours := definitionIn(t, "crd-test-"+rand.String(8)+".kubevirtbmc.dev")
	group := ours.GetName()[len(bmcs.Resource)+1:]
	earlier := ours.DeepCopy()
	root := schemaOf(t, earlier)["properties"].(map[string]any)
	spec, status := root["spec"].(map[string]any), root["status"].(map[string]any)
	keep(spec, "virtualMachineRef", "authSecretRef", "ipmi")
	delete(spec, "x-kubernetes-validations")
	keep(spec["properties"].(map[string]any)["ipmi"], "enabled")
	keep(status, "clusterIP", "conditions", "bootOverride")
	keep(status["properties"].(map[string]any)["bootOverride"], "mode", "vmiUID", "bootOrders", "originalFirmware")
	conditions := status["properties"].(map[string]any)["conditions"].(map[string]any)
	delete(conditions, "x-kubernetes-list-type")
	delete(conditions, "x-kubernetes-list-map-keys")
	if err := apply(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Resource(definitions).Delete(ctx, ours.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})

	resource := bmcs
	resource.Group = group
	objects := newNamespaceFor(t, resource)
	in := func(name, spec string) *unstructured.Unstructured {
		o := bmc(t, name, spec)
		o.SetAPIVersion(resource.GroupVersion().String())
		return o
	}
	const condition = `{type: Ready, status: "True", reason: ServiceReady, message: "", lastTransitionTime: "2026-08-01T08:00:00Z"}`
	plain := create(t, objects, withStatus(t, in("plain", "virtualMachineRef: {name: vm}"), "clusterIP: 10.96.0.9\nconditions: ["+condition+"]"))
	create(t, objects, withStatus(t, in("twice", "virtualMachineRef: {name: vm}"), "conditions: ["+condition+", "+condition+"]"))

	pruned, err := objects.Create(t.Context(), in("pruned", "frontend: {mode: Shared}"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pruned.Object["spec"].(map[string]any)["frontend"] != nil {
		t.Fatal("the earlier definition knows frontends: the test shows nothing")
	}

	if err := apply(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	served(t, objects, in("new", "frontend: {mode: Shared}"))

	got, err := objects.Get(t.Context(), "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"spec", "status"} {
		if diff := cmp.Diff(plain.Object[part], got.Object[part]); diff != "" {
			t.Errorf("%s of a stored object mismatch (-before +after):\n%s", part, diff)
		}
	}
	if got.GetGeneration() != plain.GetGeneration() {
		t.Errorf("generation %d, was %d", got.GetGeneration(), plain.GetGeneration())
	}
	for _, name := range []string{"plain", "twice"} {
		if _, err := patch(t, objects, name, `{"metadata":{"labels":{"edited":"yes"}},"spec":{"frontend":{"mode":"Shared"}}}`); err != nil {
			t.Errorf("%s can't be edited: %v", name, err)
		}
	}

	// The new controller takes the conditions over from one that updated them.
	mine := withStatus(t, in("plain", "{}"), `conditions: [{type: FrontendReady, status: "True", reason: FrontendServing, message: "", lastTransitionTime: "2026-12-01T08:00:00Z"}]`)
	delete(mine.Object, "spec")
	applied, err := objects.ApplyStatus(t.Context(), "plain", mine, metav1.ApplyOptions{FieldManager: "controller", Force: true})
	if err != nil {
		t.Fatalf("apply a condition to an earlier object: %v", err)
	}
	var typed v1beta1.VirtualMachineBMC
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, &typed); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{v1beta1.ConditionReady, v1beta1.ConditionFrontendReady} {
		if meta.FindStatusCondition(typed.Status.Conditions, want) == nil {
			t.Errorf("condition %s is missing: %+v", want, typed.Status.Conditions)
		}
	}

	// And repairs one that has the same type twice.
	repaired, err := objects.Get(t.Context(), "twice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.UpdateStatus(t.Context(), withStatus(t, repaired, "conditions: ["+condition+"]"), metav1.UpdateOptions{}); err != nil {
		t.Errorf("write the conditions of an object that had one twice: %v", err)
	}
}

// definitionIn returns the definition under test for another group, without the
// names that are the cluster's alone.
func definitionIn(t *testing.T, group string) *unstructured.Unstructured {
	t.Helper()
	crd, err := definition()
	if err != nil {
		t.Fatal(err)
	}
	crd.SetName(bmcs.Resource + "." + group)
	crd.Object["spec"].(map[string]any)["group"] = group
	unstructured.RemoveNestedField(crd.Object, "spec", "names", "shortNames")
	unstructured.RemoveNestedField(crd.Object, "spec", "names", "categories")
	return crd
}

// keep removes all properties of a schema but some.
func keep(schema any, names ...string) {
	properties := schema.(map[string]any)["properties"].(map[string]any)
	for name := range properties {
		if !slices.Contains(names, name) {
			delete(properties, name)
		}
	}
}

// served waits until an object is kept as it is: a changed definition takes the
// API server a moment.
func served(t *testing.T, objects dynamic.ResourceInterface, o *unstructured.Unstructured) {
	t.Helper()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if _, last = objects.Create(t.Context(), o, strict); last == nil {
			return
		}
	}
	t.Fatalf("the changed definition is not served: %v", last)
}
