//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// protocolsServed are those that replicas of these tests speak.
var protocolsServed = []registryv1.Protocol{ipmi, redfish}

// writes notes what a controller writes in a namespace, in the order of the
// answers.
type writes struct {
	namespace string

	mu   sync.Mutex
	list []string
}

// writer is a transport whose writes are noted.
type writer struct {
	next http.RoundTripper
	*writes
}

// RoundTrip implements http.RoundTripper.
func (w writer) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(request)
	_, path, in := strings.Cut(request.URL.Path, "/namespaces/"+w.namespace+"/")
	if err == nil && in && request.Method != http.MethodGet {
		parts := strings.Split(path, "/")
		what := request.Method + " " + parts[0]
		if len(parts) > 2 {
			what += "/" + parts[2]
		}
		w.mu.Lock()
		w.list = append(w.list, fmt.Sprintf("%s %s %d", what, request.Header.Get("Content-Type"), response.StatusCode))
		w.mu.Unlock()
	}
	return response, err
}

// take returns what was written since it was last asked.
func (w *writes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// TestMove_writes: the hand-over of a dead replica's BMCs costs a write for each
// EndpointSlice and no other before the last of them, then one of each status; the
// BMCs stay Ready. What was written so and what server-side apply repairs do not add
// up.
func TestMove_writes(t *testing.T) {
	t.Parallel()
	const bmcs = 20
	s := newSite(t)
	w := &writes{namespace: s.namespace}
	s.controller(func(config *reconciler.Config) {
		config.REST = rest.CopyConfig(config.REST)
		config.REST.Wrap(func(next http.RoundTripper) http.RoundTripper { return writer{next, w} })
	})
	dead := s.frontend("frontend-0", "10.0.0.10")
	for i := range bmcs {
		s.wantReady(s.complete(fmt.Sprintf("vm-%d", i)))
	}
	alive := s.frontend("frontend-1", "10.0.0.11")
	s.eventually("the newcomer has its share", func() error {
		for _, protocol := range protocolsServed {
			if n := len(alive.has(protocol)); n == 0 || n+len(dead.has(protocol)) != bmcs {
				return fmt.Errorf("%d and %d BMCs", n, len(dead.has(protocol)))
			}
		}
		return nil
	})
	time.Sleep(time.Second) // For the status writes of that.
	w.take()
	left := len(dead.has(ipmi)) + len(dead.has(redfish)) // The same BMCs, for the names are the same.
	stop := s.watchReady()
	dead.stop()
	var list []string
	s.eventually("all is written", func() error {
		list = append(list, w.take()...)
		n := 0
		for _, one := range list {
			if strings.HasPrefix(one, "PATCH virtualmachinebmcs/status") {
				n++
			}
		}
		if n < left/2 {
			return fmt.Errorf("%d of %d status writes", n, left/2)
		}
		return nil
	})
	time.Sleep(time.Second)
	list = append(list, w.take()...)
	if seen := stop(); len(seen) > 0 {
		t.Errorf("while they moved BMCs were not Ready: %v", seen)
	}
	slice := "PATCH endpointslices application/merge-patch+json 200"
	if len(list) < left || slices.ContainsFunc(list[:left], func(one string) bool { return one != slice }) ||
		slices.ContainsFunc(list[left:], func(one string) bool { return !strings.HasPrefix(one, "PATCH virtualmachinebmcs/status") }) ||
		len(list) > 2*left {
		t.Errorf("%d EndpointSlices moved with these writes: %s", left, strings.Join(list, "\n"))
	}

	name := "vm-0-virtbmc-ipmi"
	change(s, s.slice(name), func(is *discoveryv1.EndpointSlice) {
		is.Labels[discoveryv1.LabelManagedBy] = "somebody"
		is.Endpoints[0].Addresses = []string{"10.0.0.99"}
	})
	s.wantRoute(name, alive.address)
	s.eventually("the label is repaired", func() error {
		is := s.slice(name)
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(is), is); err != nil {
			return err
		}
		return equal(is.Labels[discoveryv1.LabelManagedBy], "controller.bmc.kubevirt.io")
	})
	s.wantRoute(name, alive.address)
}
