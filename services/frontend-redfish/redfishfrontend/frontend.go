// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package redfishfrontend is the Redfish frontend as one component, for its own
// process and for programs that run several services.
package redfishfrontend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/registryclient"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/server"
)

// Config of a frontend. Certificate and Metrics may be nil.
type Config struct {
	// Listen is the host address to bind, empty for all; the ports come from the
	// registry.
	Listen string
	// Registry, State, Power, Boot, Media and Inventory are connections to the
	// services. Nothing is asked of Media yet: virtual media comes with its resources.
	Registry, State, Power, Boot, Media, Inventory grpc.ClientConnInterface
	// BMC is the only one to serve; nil: those that the registry names.
	BMC *referencev1.BMCReference
	// Replica is the unique name of this frontend.
	Replica string
	// Certificate returns the certificate of BMCs for which the registry names
	// none; nil: such a BMC has no HTTPS.
	Certificate func() (*tls.Certificate, error)
	// Version is told as the BMC's firmware version; empty: that of the program's
	// module.
	Version string
	// Log gets the log lines.
	Log *slog.Logger
	// Metrics gets the metrics.
	Metrics prometheus.Registerer
	// OnReady is called when the frontend becomes ready, and when it no longer
	// is; nil: nobody is told.
	OnReady func(ready bool)
	// DrainTime is how long the frontend goes on, when it is to end, until the
	// registry has given its BMCs to other replicas; 0: it does not.
	DrainTime time.Duration
}

// Frontend serves BMCs over Redfish.
type Frontend struct {
	cfg    Config
	server *server.Server
	ready  atomic.Bool
}

// New returns a frontend that does not serve yet.
func New(cfg Config) (*Frontend, error) {
	for name, missing := range map[string]bool{
		"registry": cfg.Registry == nil, "power": cfg.Power == nil, "boot": cfg.Boot == nil, "inventory": cfg.Inventory == nil,
		"state":   cfg.State == nil,
		"replica": cfg.Replica == "", "log": cfg.Log == nil,
	} {
		if missing {
			return nil, errors.New("configure Redfish frontend: no " + name)
		}
	}
	s, err := server.New(server.Config{
		Listen:      cfg.Listen,
		Backend:     backend.New(cfg.Power, cfg.Boot, cfg.Inventory, cfg.State),
		Certificate: cfg.Certificate,
		Version:     cmp.Or(cfg.Version, version()),
		Log:         cfg.Log,
		Metrics:     cfg.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("configure Redfish frontend: %w", err)
	}
	return &Frontend{cfg: cfg, server: s}, nil
}

// Run serves the BMCs that the registry names until the context ends, goes on for
// as long as others do not, at most DrainTime, and then finishes the requests under
// way.
func (f *Frontend) Run(ctx context.Context) error {
	defer f.setReady(false)
	work, stop := registryclient.Drain(ctx, f.cfg.DrainTime)
	defer stop()
	group, groupCtx := errgroup.WithContext(work)
	defer context.AfterFunc(ctx, func() { f.setReady(false) })()
	group.Go(func() error { return f.server.Serve(groupCtx) })
	group.Go(func() error {
		defer stop() // All have been handed over.
		return registryclient.Run(groupCtx, registryclient.Config{
			Conn:     f.cfg.Registry,
			Protocol: registryv1.Protocol_PROTOCOL_REDFISH,
			Replica:  f.cfg.Replica,
			Only:     f.cfg.BMC,
			Log:      f.cfg.Log,
			Leaving:  ctx.Done(),
			OnSynced: func() { f.setReady(ctx.Err() == nil) },
		}, f.server)
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Ready tells whether the frontend has all its BMCs and is not about to stop. A
// frontend that loses the registry stays ready: it serves what it knows.
func (f *Frontend) Ready() bool { return f.ready.Load() }

func (f *Frontend) setReady(ready bool) {
	if f.ready.Swap(ready) != ready && f.cfg.OnReady != nil {
		f.cfg.OnReady(ready)
	}
}

// version returns the version of the program; empty when it has none, as in a
// build from a work tree.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "(devel)" {
		return ""
	}
	return info.Main.Version
}
