//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor/backend/backendtest"
	"kubevirtbmc.dev/pkg/testport"
	"kubevirtbmc.dev/services/media/internal/app"
	"kubevirtbmc.dev/services/media/internal/kubevirt/cditest"
)

// TestKubeVirt: the program inserts into a machine of a cluster, goes on with an import
// after a restart, and refuses what its policy closes.
func TestKubeVirt(t *testing.T) {
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		t.Fatal("KUBECONFIG names no cluster (make test-integration, or hack/with-cluster.sh kubevirt)")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := "media-" + strings.ToLower(rand.Text()[:8])
	namespaces := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	object := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}
	if _, err := namespaces.Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Logf("delete namespace: %v", err)
		}
	})
	cditest.Install(t, client)
	vm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kvv1.GroupVersion.String(), "kind": "VirtualMachine", "metadata": map[string]any{"name": "vm"},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"memory": map[string]any{"guest": "64Mi"}, "devices": map[string]any{}},
		}}},
	}}
	if _, err := client.Resource(kvv1.GroupVersion.WithResource("virtualmachines")).Namespace(namespace).Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	iso := bytes.Repeat([]byte("image\n"), 100_000)
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "hush" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(iso))
	}))
	t.Cleanup(images.Close)
	keys := filepath.Join(t.TempDir(), "keys")
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	if err := os.WriteFile(keys, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := fmt.Sprintf("127.0.0.1:%d", testport.Free(t))
	s := backendtest.New(t)
	flags := []string{
		"--hypervisor=kubevirt", "--kubeconfig=" + kubeconfig, "--namespaces=" + namespace, "--bmcs=machines",
		"--relay-listen=" + relay, "--relay-url=http://" + relay, "--relay-key-file=" + keys,
	}
	slots := "/v1/namespaces/" + namespace + "/bmcs/vm/media"
	insert := fmt.Sprintf(`{"image_url":%q,"credentials":{"username":"user","password":"hush"}}`, images.URL+"/one.iso")

	stop := s.Start(t, app.New, flags...)
	code, content := s.Call(t, http.MethodPost, slots+"/CD1:insert", backendtest.Token, insert)
	if code != http.StatusBadRequest || !strings.Contains(content, "denied by the policy") {
		t.Errorf("insert from loopback: got %d %s", code, content)
	}
	stop()

	flags = append(flags, "--image-deny=")
	stop = s.Start(t, app.New, flags...)
	begin := time.Now()
	for {
		// CDI's resources may be known a moment later than the machines.
		code, content = s.Call(t, http.MethodPost, slots+"/CD1:insert", backendtest.Token, insert)
		if code != http.StatusNotImplemented || time.Since(begin) > time.Minute {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if code != http.StatusOK || !strings.Contains(content, `"state":"MEDIA_STATE_IMPORTING"`) || strings.Contains(content, "hush") {
		t.Fatalf("insert: got %d %s", code, content)
	}
	stop()
	// CDI begins now: the URL that it has is served by another process.
	importer := cditest.Start(t, config, client, namespace)
	stop = s.Start(t, app.New, flags...)
	defer func() { stop() }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		code, content = s.Call(t, http.MethodGet, slots, backendtest.Token, "")
		if code == http.StatusOK && strings.Contains(content, `"state":"MEDIA_STATE_INSERTED"`) && strings.Contains(content, images.URL+"/one.iso") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("import did not end: %d %s", code, content)
		}
	}
	list, err := client.Resource(cditest.DataVolumes).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || !bytes.Equal(importer.Imported(list.Items[0].GetName()), iso) {
		t.Errorf("DataVolumes are %v, %v", list, err)
	}
	for range 2 {
		code, content = s.Call(t, http.MethodPost, slots+"/CD1:eject", backendtest.Token, "{}")
		if code != http.StatusOK || !strings.Contains(content, `"state":"MEDIA_STATE_EMPTY"`) {
			t.Errorf("eject: got %d %s", code, content)
		}
	}
}
