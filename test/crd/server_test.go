// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
)

// patience is for what the API server does by itself.
const patience = 60 * time.Second

// fieldManager is who applies definitions here.
const fieldManager = "crd-test"

var (
	bmcs        = schema.GroupVersionResource{Group: "bmc.kubevirt.io", Version: "v1beta1", Resource: "virtualmachinebmcs"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// server is the API server under test, with the definition as it is now.
var server struct {
	dynamic.Interface
	discovery *discovery.DiscoveryClient
}

func TestMain(m *testing.M) {
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (status int, err error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return 0, fmt.Errorf("KUBECONFIG names no cluster: make test-integration brings one up")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return 0, err
	}
	config.QPS = -1 // no limit
	if server.Interface, err = dynamic.NewForConfig(config); err != nil {
		return 0, err
	}
	if server.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	crd, err := definition()
	if err != nil {
		return 0, err
	}
	_, err = server.Resource(definitions).Get(ctx, crd.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // else it stays, with the objects that it has
		defer func() {
			if deleted := server.Resource(definitions).Delete(context.Background(), crd.GetName(), metav1.DeleteOptions{}); deleted != nil && err == nil {
				err = deleted
			}
		}()
	} else if err != nil {
		return 0, err
	}
	if err := apply(ctx, crd); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// definition returns the definition under test.
func definition() (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON(crds.VirtualMachineBMC)
	if err != nil {
		return nil, err
	}
	return crd, crd.UnmarshalJSON(data)
}

// apply applies a definition and waits until its objects are served.
func apply(ctx context.Context, crd *unstructured.Unstructured) error {
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := server.Resource(definitions).Apply(ctx, crd.GetName(), crd, options); err != nil {
		return err
	}
	for {
		got, err := server.Resource(definitions).Get(ctx, crd.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		states := map[any]any{}
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			states[condition["type"]] = condition["status"]
		}
		if states["Established"] == "True" {
			if states["NonStructuralSchema"] == "True" {
				return fmt.Errorf("the schema is not structural: %v", conditions)
			}
			return nil
		}
		if states["NamesAccepted"] == "False" {
			return fmt.Errorf("the names are taken: %v", conditions)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the definition: %w: %v", ctx.Err(), conditions)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newNamespace returns a client for BMCs in a namespace of the test's own.
func newNamespace(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	return newNamespaceFor(t, bmcs)
}

// newNamespaceFor returns a client for objects of a resource in a namespace of
// the test's own.
func newNamespaceFor(t *testing.T, resource schema.GroupVersionResource) dynamic.ResourceInterface {
	t.Helper()
	ns := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generateName": "crd-test-"}}}
	ns.SetAPIVersion("v1")
	ns.SetKind("Namespace")
	created, err := server.Resource(namespaces).Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Where no controller empties namespaces, the objects go with the test.
	objects := server.Resource(resource).Namespace(created.GetName())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if err := server.Resource(namespaces).Delete(ctx, created.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return objects
}

// object reads a manifest.
func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return o
}

// bmc returns a BMC with a spec in YAML.
func bmc(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("apiVersion: %s\nkind: VirtualMachineBMC\nmetadata: {name: %s}\nspec:\n%s",
		bmcs.GroupVersion(), name, indent(spec)))
}

// withStatus returns an object that has a status in YAML besides.
func withStatus(t *testing.T, o *unstructured.Unstructured, status string) *unstructured.Unstructured {
	t.Helper()
	var value map[string]any
	data, err := yaml.YAMLToJSON([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	o = o.DeepCopy()
	if err := unstructured.SetNestedField(o.Object, toInt64(value), "status"); err != nil {
		t.Fatal(err)
	}
	return o
}

// toInt64 turns the numbers of JSON into those of unstructured objects; all are
// integers here.
func toInt64(value any) any {
	switch v := value.(type) {
	case float64:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = toInt64(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = toInt64(v[k])
		}
	}
	return value
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// strict is how objects are created: unknown fields are errors, not dropped.
var strict = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

// create creates an object and its status, and returns what was stored.
func create(t *testing.T, objects dynamic.ResourceInterface, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := objects.Create(t.Context(), o, strict)
	if err != nil {
		t.Fatalf("create %s: %v", o.GetName(), err)
	}
	status, ok := o.Object["status"]
	if !ok {
		return created
	}
	created.Object["status"] = status
	updated, err := objects.UpdateStatus(t.Context(), created, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatalf("update the status of %s: %v", o.GetName(), err)
	}
	return updated
}

// patch merges JSON into an object.
func patch(t *testing.T, objects dynamic.ResourceInterface, name, merge string) (*unstructured.Unstructured, error) {
	t.Helper()
	return objects.Patch(t.Context(), name, types.MergePatchType, []byte(merge), metav1.PatchOptions{})
}
