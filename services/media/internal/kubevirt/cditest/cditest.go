// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package cditest plays CDI on a real API server: its DataVolumes, generated from
// its own types, and an importer that downloads what they name.
package cditest

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/yaml"
)

// DataVolumes is the resource.
var DataVolumes = cdiv1.SchemeGroupVersion.WithResource("datavolumes")

//go:embed crds/*.yaml
var definitions embed.FS

const (
	// establishTime is how long the API server may take to serve a new resource.
	establishTime = time.Minute
	// restartTime is how long KubeVirt may take to start anew.
	restartTime = 3 * time.Minute
	interval    = 100 * time.Millisecond
)

// Install makes the API server serve CDI's resources. virt-api and virt-controller
// start anew when they see them, and wait for all that they know.
func Install(t testing.TB, client dynamic.Interface) {
	t.Helper()
	files, err := definitions.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	// Both tests and packages may install them: KubeVirt starts anew but once.
	_, err = client.Resource(DataVolumes).List(t.Context(), metav1.ListOptions{})
	known := err == nil
	before := restarts(t, client)
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, file := range files {
		content, err := definitions.ReadFile("crds/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &crd.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := crds.Apply(t.Context(), crd.GetName(), crd, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(establishTime); ; time.Sleep(interval) {
		_, err := client.Resource(DataVolumes).List(t.Context(), metav1.ListOptions{})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the resource is not served: %v", err)
		}
	}
	if !known {
		awaitRestart(t, client, before)
	}
}

// restarts returns how often each container of virt-api and virt-controller was
// started anew, of those that are ready.
func restarts(t testing.TB, client dynamic.Interface) map[string]int32 {
	t.Helper()
	list, err := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(t.Context(), metav1.ListOptions{
		LabelSelector: "kubevirt.io in (virt-api, virt-controller)",
	})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int32{}
	for i := range list.Items {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &pod); err != nil {
			t.Fatal(err)
		}
		for _, container := range pod.Status.ContainerStatuses {
			if container.Ready {
				of[string(pod.UID)+" "+container.Name] = container.RestartCount
			}
		}
	}
	return of
}

// awaitRestart waits until KubeVirt's programs that ran have started anew and a
// machine would be admitted.
func awaitRestart(t testing.TB, client dynamic.Interface, before map[string]int32) {
	t.Helper()
	machine := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"generateName": "admitted-"},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"memory": map[string]any{"guest": "64Mi"}, "devices": map[string]any{}},
		}}},
	}}
	machines := client.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}).Namespace("default")
	for end := time.Now().Add(restartTime); ; time.Sleep(interval) {
		now, waiting := restarts(t, client), ""
		for container, count := range before {
			if is, ok := now[container]; !ok || is == count {
				waiting = container
			}
		}
		var err error
		if waiting == "" {
			if _, err = machines.Create(t.Context(), machine.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("KubeVirt has not started anew: container %q, admission %v", waiting, err)
		}
	}
}

// Importer imports the DataVolumes of a namespace.
type Importer struct {
	t         testing.TB
	volumes   dynamic.ResourceInterface
	core      kubernetes.Interface
	namespace string

	mu sync.Mutex
	// imported has what was downloaded, by DataVolume.
	imported map[string][]byte
}

// Start starts an importer that works until the test ends.
func Start(t testing.TB, config *rest.Config, client dynamic.Interface, namespace string) *Importer {
	t.Helper()
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	i := &Importer{
		t: t, volumes: client.Resource(DataVolumes).Namespace(namespace), core: core, namespace: namespace,
		imported: map[string][]byte{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { i.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return i
}

// Imported returns what a DataVolume was filled with; nil before its import.
func (i *Importer) Imported(name string) []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.imported[name]
}

// run begins the import of each DataVolume once.
func (i *Importer) run(ctx context.Context) {
	begun := map[string]bool{}
	var imports sync.WaitGroup
	defer imports.Wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		list, err := i.volumes.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for n := range list.Items {
			if item := &list.Items[n]; !begun[string(item.GetUID())] {
				begun[string(item.GetUID())] = true
				imports.Go(func() { i.fill(ctx, item) })
			}
		}
	}
}

// fill imports one, again and again until it works or the DataVolume is gone.
func (i *Importer) fill(ctx context.Context, item *unstructured.Unstructured) {
	dv := &cdiv1.DataVolume{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, dv); err != nil {
		i.t.Errorf("importer: %v", err)
		return
	}
	if err := i.claim(ctx, dv); err != nil {
		if ctx.Err() == nil {
			i.t.Errorf("importer: %v", err)
		}
		return
	}
	for attempt := int32(0); ctx.Err() == nil; attempt++ {
		if !i.report(ctx, dv.Name, cdiv1.ImportInProgress, 0, attempt, nil) {
			return
		}
		content, err := i.download(ctx, dv, attempt)
		if err == nil {
			i.mu.Lock()
			i.imported[dv.Name] = content
			i.mu.Unlock()
			i.report(ctx, dv.Name, cdiv1.Succeeded, 100, attempt, nil)
			return
		}
		if !i.report(ctx, dv.Name, cdiv1.ImportInProgress, 0, attempt+1, err) {
			return
		}
		time.Sleep(interval)
	}
}

// claim makes the volume.
func (i *Importer) claim(ctx context.Context, dv *cdiv1.DataVolume) error {
	size := dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	resources := corev1.ResourceList{corev1.ResourceStorage: size}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	path := corev1.HostPathDirectoryOrCreate
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: dv.Name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: resources, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + dv.Name, Type: &path}},
			ClaimRef:               &corev1.ObjectReference{Namespace: dv.Namespace, Name: dv.Name},
		},
	}
	if _, err := i.core.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create volume: %w", err)
	}
	//nolint:contextcheck // It ends after the importer.
	i.t.Cleanup(func() {
		_ = i.core.CoreV1().PersistentVolumes().Delete(context.Background(), dv.Name, metav1.DeleteOptions{})
	})
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: dv.Name, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(dv, cdiv1.SchemeGroupVersion.WithKind("DataVolume")),
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: resources},
			StorageClassName: new(""), VolumeName: dv.Name,
		},
	}
	if _, err := i.core.CoreV1().PersistentVolumeClaims(i.namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim: %w", err)
	}
	return nil
}

// download fetches what a DataVolume names, as CDI does: the length first.
func (i *Importer) download(ctx context.Context, dv *cdiv1.DataVolume, attempt int32) ([]byte, error) {
	if dv.Spec.Source == nil || dv.Spec.Source.HTTP == nil {
		return nil, errors.New("no HTTP source")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, dv.Spec.Source.HTTP.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	head, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	_ = head.Body.Close()
	if head.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("expected status code 200, got %s", head.Status)
	}
	request.Method = http.MethodGet
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("expected status code 200, got %s", response.Status)
	}
	if space := dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; space.Cmp(*resource.NewQuantity(head.ContentLength, resource.BinarySI)) < 0 {
		return nil, fmt.Errorf("virtual image size %d is larger than the reported available storage %s", head.ContentLength, space.String())
	}
	var content []byte
	buffer := make([]byte, 64<<10)
	reported := 0.0
	for {
		n, err := response.Body.Read(buffer)
		content = append(content, buffer[:n]...)
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return nil, err
		}
		if percent := float64(len(content)) * 100 / float64(head.ContentLength); percent-reported >= 5 {
			reported = percent
			i.report(ctx, dv.Name, cdiv1.ImportInProgress, percent, attempt, nil)
		}
	}
}

// report writes a DataVolume's status; false when it is gone.
func (i *Importer) report(ctx context.Context, name string, phase cdiv1.DataVolumePhase, percent float64, restarts int32, failure error) bool {
	running := cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionTrue, Reason: "Pod is running", LastTransitionTime: metav1.Now()}
	if failure != nil {
		running.Status, running.Reason, running.Message = corev1.ConditionFalse, "Error", failure.Error()
	}
	status := cdiv1.DataVolumeStatus{
		ClaimName: name, Phase: phase, Progress: cdiv1.DataVolumeProgress(fmt.Sprintf("%.2f%%", percent)), RestartCount: restarts,
		Conditions: []cdiv1.DataVolumeCondition{running},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		i.t.Errorf("importer: %v", err)
		return false
	}
	for ctx.Err() == nil {
		dv, err := i.volumes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false
		}
		if err != nil {
			continue
		}
		dv.Object["status"] = object
		_, err = i.volumes.UpdateStatus(ctx, dv, metav1.UpdateOptions{})
		switch {
		case err == nil:
			return true
		case apierrors.IsNotFound(err):
			return false
		}
		time.Sleep(interval / 10)
	}
	return false
}
