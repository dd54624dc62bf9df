// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"kubevirtbmc.dev/pkg/testport"
)

// The machines do not go because the controller ends: reconcilers that are still at
// work would have the frontends drop their BMCs.
func TestAPIs_atTheEnd(t *testing.T) {
	t.Parallel()
	a, err := newAPIs(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	nobody := &rest.Config{Host: fmt.Sprintf("http://127.0.0.1:%d", testport.Free(t))}
	if a.discovery, err = discovery.NewDiscoveryClientForConfig(nobody); err != nil {
		t.Fatal(err)
	}
	a.log, a.interval = slog.New(slog.DiscardHandler), time.Hour
	a.setHypervisor(struct{ cache.Cache }{}, func() {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if hypervisor, _ := a.state(); !hypervisor {
		t.Error("the machines are gone with the controller")
	}
}
