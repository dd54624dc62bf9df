// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/audit"
	"kubevirtbmc.dev/pkg/grpcserver/servertest"
	"kubevirtbmc.dev/pkg/hypervisor"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	"kubevirtbmc.dev/services/power/powerservice"
)

// process is the power service as a process of its own, and a client of it.
type process struct {
	view      *view
	power     powerv1.PowerServiceClient
	boot      bootv1.BootServiceClient
	inventory inventoryv1.InventoryServiceClient
	console   consolev1.ConsoleServiceClient
	// stop ends it, once.
	stop func()
}

// start starts a process that sees the machines of a park.
func start(t *testing.T, h hypervisor.Hypervisor, park *park, holder string, sink audit.Sink) *process {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p := &process{view: &view{Hypervisor: h, park: park, died: make(chan struct{})}}
	service, err := powerservice.New(powerservice.Config{
		Hypervisor: p.view, Log: log, Holder: holder, Audit: sink,
		Resolver: hypervisor.ResolverFunc(func(namespace, name string) (hypervisor.Ref, error) {
			return hypervisor.Ref{Namespace: namespace, Name: name}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	connection, stop := servertest.Start(t, service, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	p.power = powerv1.NewPowerServiceClient(connection)
	p.boot = bootv1.NewBootServiceClient(connection)
	p.inventory = inventoryv1.NewInventoryServiceClient(connection)
	p.console = consolev1.NewConsoleServiceClient(connection)
	p.stop = stop
	return p
}

// kill ends a process as kill -9 does: what it would still do does not happen.
func (p *process) kill() {
	p.view.die()
	p.stop()
}
