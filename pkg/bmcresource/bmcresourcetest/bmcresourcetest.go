// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bmcresourcetest makes VirtualMachineBMCs on a real API server for
// tests.
package bmcresourcetest

import (
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
	"kubevirtbmc.dev/api/v1beta1"
)

// establishTime is how long the API server may take to serve a new resource.
const establishTime = time.Minute

// Cluster returns how to reach the cluster that KUBECONFIG names.
func Cluster(tb testing.TB) *rest.Config {
	tb.Helper()
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		tb.Fatal("KUBECONFIG names no cluster (make test-integration, or hack/with-cluster.sh api)")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	return config
}

// Install brings the custom resource definition up to date and returns a client
// of the resource, once it is served.
func Install(tb testing.TB, config *rest.Config) dynamic.NamespaceableResourceInterface {
	tb.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.VirtualMachineBMC, &crd.Object); err != nil {
		tb.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Apply(tb.Context(), crd.GetName(), crd, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
		tb.Fatal(err)
	}
	bmcs := client.Resource(v1beta1.GroupVersion.WithResource("virtualmachinebmcs"))
	for end := time.Now().Add(establishTime); ; time.Sleep(50 * time.Millisecond) {
		_, err := bmcs.List(tb.Context(), metav1.ListOptions{})
		if err == nil {
			return bmcs
		}
		if time.Now().After(end) {
			tb.Fatalf("the resource is not served: %v", err)
		}
	}
}

// New returns a BMC of a machine.
func New(name, machine string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1beta1.GroupVersion.String(), "kind": "VirtualMachineBMC",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"virtualMachineRef": map[string]any{"name": machine}, "authSecretRef": map[string]any{"name": "secret"},
		},
	}}
}
