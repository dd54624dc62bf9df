// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package server serves the Redfish resources of many BMCs in one process: each
// BMC has ports of its own, all share one HTTP server.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/listener"
)

// Limits of connections and requests, against clients that hold them up.
const (
	readHeaderTimeout = 10 * time.Second // also bounds the TLS handshake
	readTimeout       = 30 * time.Second
	writeTimeout      = 60 * time.Second // more than any backend call may take
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	maxBodyBytes      = 64 << 10

	// drainTimeout is how long requests under way may take once the server
	// stops; Kubernetes gives 30 s.
	drainTimeout = 25 * time.Second

	sweepInterval = time.Minute
)

// Config of a server.
type Config struct {
	// Listen is the host address to bind; the ports come from the registry.
	Listen string
	// Backend carries out what clients ask for.
	Backend *backend.Client
	// Certificate is used for BMCs whose registry entry has none; nil: such a
	// BMC has no HTTPS.
	Certificate func() (*tls.Certificate, error)
	// Version is told as the BMC's firmware version; empty: none.
	Version string
	// Log gets the log lines.
	Log *slog.Logger
	// Metrics gets the metrics; nil: none.
	Metrics prometheus.Registerer
}

// Server serves BMCs. It implements registryclient.Handler.
type Server struct {
	cfg     Config
	fan     *listener.Fan
	http    *http.Server
	tls     *tls.Config
	mux     *http.ServeMux
	backoff *account.Backoff
	metrics *metrics

	mu   sync.Mutex
	bmcs map[bmcKey]*endpoint
}

type bmcKey struct{ namespace, name string }

func keyOf(ref *referencev1.BMCReference) bmcKey {
	return bmcKey{ref.GetNamespace(), ref.GetName()}
}

// New returns a server without BMCs.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:     cfg,
		fan:     listener.NewFan(),
		backoff: account.NewBackoff(),
		bmcs:    map[bmcKey]*endpoint{},
	}
	s.tls = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: s.certificate,
	}
	s.mux = s.newMux()
	var protocols http.Protocols
	protocols.SetHTTP1(true) // Redfish clients speak HTTP/1.1.
	s.http = &http.Server{
		Handler:                      http.HandlerFunc(s.serveHTTP),
		ReadHeaderTimeout:            readHeaderTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		Protocols:                    &protocols,
		ConnState:                    listener.ConnState,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug), // What port scanners do is no news.
	}
	var err error
	if s.metrics, err = newMetrics(cfg.Metrics, s); err != nil {
		return nil, err
	}
	return s, nil
}

type connKey struct{}

// Serve serves the BMCs until the context ends, lets requests under way finish,
// and closes all ports.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.fan) }()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("serve Redfish: %w", err)
		case <-sweep.C:
			s.each(func(e *endpoint) { e.sessions.Expire() })
		case <-ctx.Done():
			s.each(func(e *endpoint) { e.closePorts() })
			drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
			defer cancel()
			if err := s.http.Shutdown(drain); err != nil {
				s.cfg.Log.WarnContext(ctx, "requests were cut off at shutdown", logkey.Error, err.Error())
				return errors.Join(s.http.Close())
			}
			return nil
		}
	}
}

func (s *Server) each(do func(*endpoint)) {
	s.mu.Lock()
	list := make([]*endpoint, 0, len(s.bmcs))
	for _, e := range s.bmcs {
		list = append(list, e)
	}
	s.mu.Unlock()
	for _, e := range list {
		do(e)
	}
}

// Apply serves a BMC as the registry says from now on. Credentials count at
// once, even where ports or certificate can't be had.
func (s *Server) Apply(ctx context.Context, bmc *registryv1.BMC) error {
	key := keyOf(bmc.GetBmc())
	if bmc.GetRedfish().GetHttps() == nil && bmc.GetRedfish().GetHttp() == nil {
		s.Remove(bmc.GetBmc())
		return errors.New("the BMC has no port for Redfish")
	}
	s.mu.Lock()
	e, ok := s.bmcs[key]
	if !ok {
		e = newEndpoint(bmc.GetBmc())
		s.bmcs[key] = e
	}
	s.mu.Unlock()
	ended, err := e.apply(ctx, s, bmc)
	s.cfg.Log.InfoContext(ctx, "BMC applied", logkey.Namespace, key.namespace, logkey.BMC, key.name,
		"sessions_ended", ended)
	return err
}

// Remove stops serving a BMC.
func (s *Server) Remove(ref *referencev1.BMCReference) {
	key := keyOf(ref)
	s.mu.Lock()
	e, ok := s.bmcs[key]
	delete(s.bmcs, key)
	s.mu.Unlock()
	if !ok {
		return
	}
	e.close()
	s.backoff.Forget(e)
	s.cfg.Log.Info("BMC removed", logkey.Namespace, key.namespace, logkey.BMC, key.name)
}

// certificate returns the certificate of the BMC that a TLS client connected
// to.
func (s *Server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	e := endpointOf(hello.Conn)
	if e == nil {
		return nil, errors.New("connection of no BMC")
	}
	return s.certificateFor(e.state.Load())
}

// certificateFor returns the certificate of a BMC, or the frontend's own.
func (s *Server) certificateFor(state *state) (*tls.Certificate, error) {
	if c := state.certificate; c != nil {
		return c, nil
	}
	if s.cfg.Certificate == nil {
		return nil, errors.New("the BMC has no certificate")
	}
	return s.cfg.Certificate()
}
