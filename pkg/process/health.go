// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health is a process's readiness: ready when there is a component and each is.
type Health struct {
	// telling keeps watchers from hearing of changes in another order than that
	// in which they came.
	telling    sync.Mutex
	mu         sync.Mutex
	components map[string]bool
	// reasons say why components are not ready.
	reasons  map[string]string
	watchers []func(ready bool)
}

// NewHealth returns a health that is not ready.
func NewHealth() *Health { return &Health{components: map[string]bool{}, reasons: map[string]string{}} }

// Set says whether a component is ready.
func (h *Health) Set(component string, ready bool) { h.set(component, ready, "") }

// SetReason says why a component is not ready, for whoever asks /readyz; empty: it
// is.
func (h *Health) SetReason(component, reason string) { h.set(component, reason == "", reason) }

func (h *Health) set(component string, ready bool, reason string) {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	h.components[component], h.reasons[component] = ready, reason
	now, watchers := len(h.notReady()) == 0, slices.Clone(h.watchers)
	h.mu.Unlock()
	for _, watch := range watchers {
		watch(now)
	}
}

// OnChange calls watch after each Set, with the readiness of the whole. It must
// not call Set.
func (h *Health) OnChange(watch func(ready bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers = append(h.watchers, watch)
}

// Ready tells whether all components are ready.
func (h *Health) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.notReady()) == 0
}

// notReady returns the components that are not ready, sorted.
func (h *Health) notReady() []string {
	if len(h.components) == 0 {
		return []string{"process"}
	}
	var names []string
	for name, ready := range h.components {
		if !ready {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Handler serves /healthz, /readyz and /metrics.
func (h *Health) Handler(metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		waiting := h.notReady()
		for i, component := range waiting {
			if reason := h.reasons[component]; reason != "" {
				waiting[i] = component + " (" + reason + ")"
			}
		}
		h.mu.Unlock()
		if len(waiting) > 0 {
			http.Error(w, "not ready: "+strings.Join(waiting, ", "), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

// Serve serves Handler on an address until done is closed. When the context
// ends before that, /readyz says no from then on.
func (h *Health) Serve(ctx context.Context, address string, metrics prometheus.Gatherer, done <-chan struct{}) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for health checks: %w", err)
	}
	stopping := context.AfterFunc(ctx, func() { h.Set("process is stopping", false) })
	defer stopping()
	server := &http.Server{Handler: h.Handler(metrics), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve health checks: %w", err)
	case <-done:
		return server.Close()
	}
}
