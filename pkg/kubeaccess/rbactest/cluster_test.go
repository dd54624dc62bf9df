//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// reports are the failures of a test that is to fail.
type reports struct {
	testing.TB
	mu    sync.Mutex
	texts []string
}

func (r *reports) Error(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprint(args...))
}

func (r *reports) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := r.texts
	r.texts = nil
	return texts
}

// TestAccount: what a service is refused fails its test with the rule that lacks,
// whether it asks by itself or as a program with a kubeconfig.
func TestAccount(t *testing.T) {
	t.Parallel()
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		t.Fatal("KUBECONFIG names no cluster (hack/with-cluster.sh api)")
	}
	admin, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	failures := &reports{TB: t}
	everywhere := New(failures, admin, "controller", Where{Own: "default"})
	here := New(failures, admin, "controller", Where{Own: "kube-system", Serves: []string{"default"}})
	binary := everywhere.REST()
	binary.ContentType = runtime.ContentTypeProtobuf
	program, err := clientcmd.BuildConfigFromFlags("", here.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		config *rest.Config
		do     func(*kubernetes.Clientset, metadata.Interface) error
		// want are parts of the only report; none: there is no report.
		want []string
	}{
		"metadata of all Secrets": {everywhere.REST(), func(_ *kubernetes.Clientset, c metadata.Interface) error {
			_, err := c.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).List(t.Context(), metav1.ListOptions{})
			return err
		}, nil},
		"all Secrets": {everywhere.REST(), func(c *kubernetes.Clientset, _ metadata.Interface) error {
			_, err := c.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
			return err
		}, []string{"controller: list of Secrets with what is in them", "metadata alone"}},
		"nodes": {everywhere.REST(), func(c *kubernetes.Clientset, _ metadata.Interface) error {
			_, err := c.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
			return err
		}, []string{
			"controller may not get nodes in the cluster: ", "ClusterRole bmc.kubevirt.io:controller:cluster in deploy/rbac/services/controller.yaml",
			"  - apiGroups: [\"\"]\n    resources:\n      - nodes\n    verbs: [get]\n",
		}},
		"in protobuf": {binary, func(c *kubernetes.Clientset, _ metadata.Interface) error {
			_, err := c.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
			return err
		}, []string{"controller may not get nodes in the cluster: nodes \"two\" is forbidden"}},
		"a verb that lacks": {program, func(c *kubernetes.Clientset, _ metadata.Interface) error {
			return c.CoreV1().Secrets("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "none"})
		}, []string{
			"controller may not deletecollection secrets in namespace default: ",
			"ClusterRole bmc.kubevirt.io:controller in deploy/rbac/services/controller.yaml lacks", "verbs: [deletecollection]",
		}},
		"what is served": {program, func(c *kubernetes.Clientset, _ metadata.Interface) error {
			_, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			return err
		}, nil},
		"all namespaces for one": {program, func(_ *kubernetes.Clientset, c metadata.Interface) error {
			_, err := c.Resource(corev1.SchemeGroupVersion.WithResource("services")).List(t.Context(), metav1.ListOptions{})
			return err
		}, []string{"controller may not list services in the cluster: "}},
		"own namespace": {program, func(c *kubernetes.Clientset, _ metadata.Interface) error {
			_, err := c.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
			return err
		}, nil},
		"more of its own namespace": {program, func(c *kubernetes.Clientset, _ metadata.Interface) error {
			return c.CoreV1().Pods("kube-system").Delete(t.Context(), "one", metav1.DeleteOptions{})
		}, []string{"controller may not delete pods in namespace kube-system: ", "Role bmc.kubevirt.io:controller:own in"}},
	} {
		client, err := kubernetes.NewForConfig(tc.config)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := metadata.NewForConfig(tc.config)
		if err != nil {
			t.Fatal(err)
		}
		refused := tc.want != nil && name != "all Secrets"
		for range 2 { // It is reported once.
			if err := tc.do(client, objects); (err != nil) != refused {
				t.Errorf("%s: %v", name, err)
			}
		}
		got := failures.take()
		if tc.want == nil && len(got) > 0 || tc.want != nil && len(got) != 1 {
			t.Errorf("%s: reports %q", name, got)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(got[0], part) {
				t.Errorf("%s: the report lacks %q:\n%s", name, part, got[0])
			}
		}
	}
	for _, want := range []right{
		{"ClusterRole bmc.kubevirt.io:controller", "", "secrets", "", "list"},
		{"ClusterRole bmc.kubevirt.io:controller", "", "services", "", "get"},
		{"Role bmc.kubevirt.io:controller:own", "", "pods", "", "list"},
	} {
		if !slices.Contains(used.list(), want) {
			t.Errorf("not taken for used: %s", want)
		}
	}
}
