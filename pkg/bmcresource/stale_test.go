// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/hypervisor"
)

// TestStore_overtaken: whoever is told that another has written the state reads
// what that has written, however late the watch is.
func TestStore_overtaken(t *testing.T) {
	t.Parallel()
	version := func(resourceVersion, state string) *v1beta1.VirtualMachineBMC {
		bmc := bmcOf("bmc", "vm", 1)
		bmc.TypeMeta = metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMC"}
		bmc.UID, bmc.ResourceVersion = "uid", resourceVersion
		bmc.Annotations = map[string]string{v1beta1.AnnotationState: state, machineAnnotation: "one"}
		return bmc
	}
	before, theirs := version("7", "before"), version("8", "theirs")
	refused := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := func(object any) { _ = json.NewEncoder(w).Encode(object) }
		query := r.URL.Query()
		switch {
		case r.Method == http.MethodPatch:
			close(refused)
			w.WriteHeader(http.StatusConflict)
			answer(&metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
			})
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case query.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-refused:
				time.Sleep(300 * time.Millisecond) // Longer than the caller would take to look.
				answer(map[string]any{"type": "MODIFIED", "object": theirs})
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
		case r.URL.Path == "/apis/"+v1beta1.GroupVersion.String()+"/namespaces/lab/"+resource+"/bmc":
			answer(theirs)
		default:
			list := &v1beta1.VirtualMachineBMCList{Items: []v1beta1.VirtualMachineBMC{*before}}
			list.TypeMeta = metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMCList"}
			list.ResourceVersion = "7"
			answer(list)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s, err := New(Config{REST: &rest.Config{Host: server.URL}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(30 * time.Second); !s.Ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not ready: %v", s.checkReady())
		}
	}
	machine := hypervisor.Ref{Namespace: "lab", Name: "vm"}
	if err := s.SetState(t.Context(), machine, "one", []byte("before"), []byte("ours")); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("got error %v, want %v", err, hypervisor.ErrStale)
	}
	if got := State(s.Of(machine), "one"); string(got) != "theirs" {
		t.Errorf("who was overtaken reads %q", got)
	}
}
