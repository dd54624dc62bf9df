// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	kvv1 "kubevirt.io/api/core/v1"
)

const resourceVMs = "virtualmachines"

// fakeAPI is an API server with VirtualMachines and VirtualMachineInstances: it
// lists, watches, patches and deletes as a real one does, with the same patch
// library. What KubeVirt does with the objects is up to the test.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server
	config *rest.Config
	// subresource answers PUT requests; nil: 202.
	subresource func(resource, name, verb string, body []byte) (int, *metav1.Status)
	// expand answers GET requests for a machine's expanded spec; nil: 500.
	expand func(vm *kvv1.VirtualMachine) *kvv1.VirtualMachine
	// console answers GET requests for a console; nil: 202.
	console http.HandlerFunc

	mu      sync.Mutex
	version int
	// missing makes the server one without KubeVirt.
	missing bool
	// lag holds watch events back.
	lag      time.Duration
	objects  map[string]map[string]any
	watchers map[chan event]string
	requests []string
}

type event struct {
	Type   string         `json:"type"`
	Object map[string]any `json:"object"`
	at     time.Time
}

func newFakeAPI(t *testing.T) *fakeAPI {
	a := &fakeAPI{t: t, version: 100, objects: map[string]map[string]any{}, watchers: map[chan event]string{}}
	server := httptest.NewServer(a)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	a.server, a.config = server, &rest.Config{Host: server.URL}
	return a
}

// put creates or replaces an object and tells the watchers.
func (a *fakeAPI) put(object any) {
	a.t.Helper()
	resource, kind := resourceVMs, "VirtualMachine"
	if _, ok := object.(*kvv1.VirtualMachineInstance); ok {
		resource, kind = resourceVMIs, "VirtualMachineInstance"
	}
	document, err := json.Marshal(object)
	if err != nil {
		a.t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(document, &fields); err != nil {
		a.t.Fatal(err)
	}
	fields["apiVersion"], fields["kind"] = "kubevirt.io/v1", kind
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(resource, fields)
}

func key(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

func (a *fakeAPI) store(resource string, fields map[string]any) {
	u := unstructured.Unstructured{Object: fields}
	k := key(resource, u.GetNamespace(), u.GetName())
	kind := "MODIFIED"
	if a.objects[k] == nil {
		kind = "ADDED"
	}
	a.version++
	u.SetResourceVersion(strconv.Itoa(a.version))
	a.objects[k] = fields
	a.send(resource, event{Type: kind, Object: u.DeepCopy().Object})
}

// remove deletes an object.
func (a *fakeAPI) remove(resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := key(resource, namespace, name)
	u := unstructured.Unstructured{Object: a.objects[k]}
	delete(a.objects, k)
	a.version++
	u.SetResourceVersion(strconv.Itoa(a.version))
	a.send(resource, event{Type: "DELETED", Object: u.Object})
}

func (a *fakeAPI) send(resource string, e event) {
	e.at = time.Now().Add(a.lag)
	for watcher, of := range a.watchers {
		if of == resource {
			watcher <- e
		}
	}
}

func (a *fakeAPI) setMissing(missing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing = missing
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	missing := a.missing
	a.mu.Unlock()
	if missing {
		refuse(w, http.StatusNotFound, &metav1.Status{Reason: metav1.StatusReasonNotFound, Message: textNoResource})
		return
	}
	// /apis/GROUP/v1/[namespaces/NS/]RESOURCE[/NAME[/VERB]]
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[3:]
	namespace := ""
	if parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	switch {
	case len(parts) == 3:
		a.serveSubresource(w, r, parts)
	case len(parts) == 1 && r.URL.Query().Get("watch") != "":
		a.serveWatch(w, r, parts[0])
	case len(parts) == 1:
		a.serveList(w, parts[0])
	default:
		a.serveObject(w, r, parts[0], namespace, parts[1])
	}
}

func (a *fakeAPI) serveSubresource(w http.ResponseWriter, r *http.Request, parts []string) {
	if r.Method == http.MethodGet && parts[2] == "expand-spec" {
		a.serveExpanded(w, parts[1])
		return
	}
	if parts[2] == "console" && a.console != nil {
		a.console(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	code, status := http.StatusAccepted, (*metav1.Status)(nil)
	if a.subresource != nil {
		code, status = a.subresource(parts[0], parts[1], parts[2], body)
	}
	if status != nil {
		refuse(w, code, status)
		return
	}
	w.WriteHeader(code)
}

func (a *fakeAPI) serveExpanded(w http.ResponseWriter, name string) {
	a.mu.Lock()
	document, err := json.Marshal(a.objects[key(resourceVMs, ref.Namespace, name)])
	expand := a.expand
	a.mu.Unlock()
	var vm kvv1.VirtualMachine
	if err == nil {
		err = json.Unmarshal(document, &vm)
	}
	if err != nil || expand == nil {
		refuse(w, http.StatusInternalServerError, &metav1.Status{Reason: metav1.StatusReasonInternalError, Message: "no such instance type"})
		return
	}
	answer(w, expand(&vm))
}

func (a *fakeAPI) serveList(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []any{}
	for k, object := range a.objects {
		if strings.HasPrefix(k, resource+"/") {
			items = append(items, object)
		}
	}
	kind := map[string]string{resourceVMs: "VirtualMachineList", resourceVMIs: "VirtualMachineInstanceList"}[resource]
	answer(w, map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": kind,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

func (a *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request, resource string) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		refuse(w, http.StatusUnprocessableEntity, &metav1.Status{
			Reason: metav1.StatusReasonInvalid, Message: "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
		})
		return
	}
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	events := make(chan event, 100)
	a.mu.Lock()
	for k, object := range a.objects {
		u := unstructured.Unstructured{Object: object}
		if version, _ := strconv.Atoi(u.GetResourceVersion()); version > since && strings.HasPrefix(k, resource+"/") {
			events <- event{Type: "ADDED", Object: u.DeepCopy().Object}
		}
	}
	a.watchers[events] = resource
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-events:
			time.Sleep(time.Until(e.at))
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (a *fakeAPI) serveObject(w http.ResponseWriter, r *http.Request, resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	object := a.objects[key(resource, namespace, name)]
	if object == nil {
		refuse(w, http.StatusNotFound, &metav1.Status{
			Reason: metav1.StatusReasonNotFound, Details: &metav1.StatusDetails{Kind: resource, Name: name},
			Message: fmt.Sprintf("%s.kubevirt.io %q not found", resource, name),
		})
		return
	}
	switch r.Method {
	case http.MethodPatch:
		body, _ := io.ReadAll(r.Body)
		patched, err := applyPatch(object, body)
		if err != nil {
			// The API server drops the library's text.
			refuse(w, http.StatusUnprocessableEntity, &metav1.Status{Reason: metav1.StatusReasonInvalid, Message: textPatch})
			return
		}
		if !reflect.DeepEqual(object["spec"], patched["spec"]) {
			metadata, _ := patched["metadata"].(map[string]any)
			generation, _ := metadata["generation"].(float64)
			metadata["generation"] = generation + 1
		}
		a.store(resource, patched)
		answer(w, patched)
	case http.MethodDelete:
		var options metav1.DeleteOptions
		_ = json.NewDecoder(r.Body).Decode(&options)
		u := unstructured.Unstructured{Object: object}
		if options.Preconditions != nil && options.Preconditions.UID != nil && *options.Preconditions.UID != u.GetUID() {
			refuse(w, http.StatusConflict, &metav1.Status{Reason: metav1.StatusReasonConflict, Message: "Precondition failed"})
			return
		}
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
		a.store(resource, u.Object)
		answer(w, u.Object)
	default:
		answer(w, object)
	}
}

func applyPatch(object map[string]any, body []byte) (map[string]any, error) {
	p, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	if document, err = p.Apply(document); err != nil {
		return nil, err
	}
	var patched map[string]any
	return patched, json.Unmarshal(document, &patched)
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func refuse(w http.ResponseWriter, code int, status *metav1.Status) {
	status.Kind, status.APIVersion, status.Status, status.Code = "Status", "v1", metav1.StatusFailure, int32(code)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status)
}
