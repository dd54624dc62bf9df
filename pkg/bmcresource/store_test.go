// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/hypervisor"
)

func bmcOf(name, machine string, created int64) *v1beta1.VirtualMachineBMC {
	bmc := &v1beta1.VirtualMachineBMC{}
	bmc.Namespace, bmc.Name = "lab", name
	bmc.CreationTimestamp = metav1.Unix(created, 0)
	if machine != "" {
		bmc.Spec.VirtualMachineRef = &v1beta1.LocalObjectReference{Name: machine}
	}
	return bmc
}

// TestStore_owner: the oldest BMC that names a machine and is not being deleted has
// it, in whatever order they come and go.
func TestStore_owner(t *testing.T) {
	t.Parallel()
	s := &Store{machines: map[hypervisor.Ref][]*v1beta1.VirtualMachineBMC{}}
	machine := hypervisor.Ref{Namespace: "lab", Name: "vm"}
	first, second, same := bmcOf("z", "vm", 1), bmcOf("b", "vm", 2), bmcOf("a", "vm", 2)
	going := first.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(3, 0)}
	for _, step := range []struct {
		name          string
		before, after *v1beta1.VirtualMachineBMC
		want          string
	}{
		{"one comes", nil, second, "b"},
		{"one of the same second and a lower name comes", nil, same, "a"},
		{"an older one comes", nil, first, "z"},
		{"one that names none comes", nil, bmcOf("none", "", 0), "z"},
		{"the oldest names another machine", first, bmcOf("z", "other", 1), "a"},
		{"it comes back", bmcOf("z", "other", 1), first, "z"},
		{"one that has not the machine goes", same, nil, "z"},
		{"the oldest is being deleted", first, going, "b"},
		{"its successor goes first", second, nil, "z"},
		{"another successor comes", nil, second, "b"},
		{"the one that was being deleted goes", going, nil, "b"},
		{"the last one goes", second, nil, ""},
	} {
		var before, after any
		if step.before != nil {
			before = step.before
		}
		if step.after != nil {
			after = step.after
		}
		s.changed(before, after)
		got := ""
		if owner := s.Of(machine); owner != nil {
			got = owner.Name
		}
		if got != step.want {
			t.Errorf("%s: %q has the machine, want %q", step.name, got, step.want)
		}
	}
	if len(s.machines) != 0 {
		t.Errorf("left are %v", s.machines)
	}
}

func TestState_ofAnotherMachine(t *testing.T) {
	t.Parallel()
	bmc := bmcOf("bmc", "vm", 1)
	if got := State(bmc, ""); got != nil {
		t.Errorf("a BMC without annotations has state %q", got)
	}
	bmc.Annotations = map[string]string{v1beta1.AnnotationState: "{}", machineAnnotation: "one"}
	if got := State(bmc, "one"); string(got) != "{}" {
		t.Errorf("got %q", got)
	}
	if got := State(bmc, "two"); got != nil {
		t.Errorf("a machine that was made anew has %q of the one before", got)
	}
}

func TestTrim_keepsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	bmc := bmcOf("bmc", "vm", 1)
	bmc.UID, bmc.ResourceVersion = "uid", "7"
	bmc.Annotations = map[string]string{v1beta1.AnnotationState: "{}", machineAnnotation: "one", "note": "mine"}
	bmc.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	bmc.Status.ClusterIP = "10.0.0.1"
	got, err := trim(bmc)
	if err != nil {
		t.Fatal(err)
	}
	want := bmcOf("bmc", "vm", 1)
	want.UID, want.ResourceVersion = "uid", "7"
	want.Annotations = map[string]string{v1beta1.AnnotationState: "{}", machineAnnotation: "one"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trim mismatch (-want +got):\n%s", diff)
	}
}

// TestStore_withoutTheResource says why it can't tell, and does not give up.
func TestStore_withoutTheResource(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	s, err := New(Config{REST: &rest.Config{Host: server.URL}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := s.Resolve("lab", "bmc")
		if !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Fatalf("got %v, want %v", err, hypervisor.ErrUnavailable)
		}
		if strings.Contains(err.Error(), "could not find the requested resource") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %v, which does not say why", err)
		}
	}
	if err := s.SetState(t.Context(), hypervisor.Ref{Namespace: "lab", Name: "vm"}, "uid", nil, []byte("{}")); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, hypervisor.ErrUnavailable)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
