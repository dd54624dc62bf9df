// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package server serves BMCs over UDP: a socket for each BMC, the handshake and
// packets of its sessions, and the commands in them.
//
// A goroutine for each socket reads datagrams and answers at once what needs no
// other service. Commands that do need one wait in a short queue of their
// session, and a goroutine works on a queue while it is not empty. Slots bound
// those goroutines over all BMCs: when there is none left a command is answered
// as busy. So neither a flood nor a slow service makes work that is not bounded,
// or keeps other sessions waiting.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubevirtbmc.dev/pkg/logkey"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/command"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/session"
)

// Config of a server.
type Config struct {
	// Listen is the host address to bind; empty: all.
	Listen string
	// Mux has the commands.
	Mux *command.Mux
	// Inventory tells the UUIDs of machines; nil: BMCs have their own alone.
	Inventory backend.Inventory
	// Console reaches the serial consoles of machines; nil: there is no SOL.
	Console backend.Console
	// Events has the event logs, which logins go into; nil: there are none.
	Events backend.Events
	// Log gets logins and commands.
	Log *slog.Logger
	// Metrics registers metrics; nil: none.
	Metrics prometheus.Registerer
	// Limits of each BMC; the zero value: session.DefaultLimits.
	Limits session.Limits
	// SessionlessRate is how many datagrams a second outside of sessions are
	// answered for each source; 0: 20,000.
	SessionlessRate int
}

const (
	defaultSessionlessRate = 20_000
	// maxWorkers bounds the sessions whose commands are carried out at once.
	maxWorkers = 1024
	// Inventory look-ups: workers, and how many may wait.
	lookupWorkers = 4
	lookupQueue   = 16_384
)

// Server serves BMCs. Use New.
type Server struct {
	cfg     Config
	metrics *metrics
	limiter *limiter
	// alarms bounds the log lines that strangers can cause.
	alarms bucket
	// secret keys the challenges of users that do not exist.
	secret [32]byte
	// ctx is of calls to other services; it ends with Shutdown.
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	// listen is the address that sockets are bound to; not valid: all.
	listen  netip.Addr
	lookups chan *endpoint
	entries chan entry
	workers sync.WaitGroup // Goroutines that carry out commands.
	readers sync.WaitGroup // All others.

	mu        sync.Mutex
	endpoints map[string]*endpoint
	stopped   bool
}

// New returns a server without BMCs.
func New(cfg Config) (*Server, error) {
	if cfg.Limits == (session.Limits{}) {
		cfg.Limits = session.DefaultLimits()
	}
	if cfg.SessionlessRate == 0 {
		cfg.SessionlessRate = defaultSessionlessRate
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, metrics: m, limiter: newLimiter(cfg.SessionlessRate),
		slots: make(chan struct{}, maxWorkers), lookups: make(chan *endpoint, lookupQueue),
		endpoints: map[string]*endpoint{},
	}
	s.listen, _ = netip.ParseAddr(cfg.Listen) // A host name is told by each datagram.
	_, _ = rand.Read(s.secret[:])             // Never fails (crypto/rand).
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if cfg.Events != nil {
		s.entries = make(chan entry, entryQueue)
		for range entryWorkers {
			s.readers.Go(s.keepEntries)
		}
	}
	if cfg.Inventory != nil {
		for range lookupWorkers {
			s.readers.Go(s.lookUp)
		}
	}
	return s, nil
}

// ErrStopped says that the server was shut down.
var ErrStopped = errors.New("the frontend is stopping")

// Apply serves a BMC as the registry says from now on. New credentials count for
// the next login, and sessions of earlier ones end. Credentials that the registry
// has taken back count no more when there is an error: a BMC whose port can't be
// had is served on its old one until then, an entry that can't be served at all
// ends the BMC.
func (s *Server) Apply(ctx context.Context, in *registryv1.BMC) error {
	if in.GetIpmi() == nil {
		s.Remove(in.GetBmc())
		return nil
	}
	b, err := parseBMC(in)
	if err != nil {
		s.Remove(in.GetBmc())
		return err
	}
	for _, name := range b.skipped {
		s.cfg.Log.WarnContext(ctx, "account can't be used over IPMI: the name must have 1 to 16 bytes, the password 1 to 20",
			logkey.Namespace, b.reference.GetNamespace(), logkey.BMC, b.reference.GetName(), logkey.User, name)
	}
	if in.GetIpmi().GetLan() {
		s.cfg.Log.WarnContext(ctx, "sessions of IPMI v1.5 are wanted, which this frontend does not serve",
			logkey.Namespace, b.reference.GetNamespace(), logkey.BMC, b.reference.GetName())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	key := keyOf(b.reference)
	old := s.endpoints[key]
	if old != nil && old.socket.port() == b.port {
		old.update(b)
		return nil
	}
	sock, err := listen(ctx, s.cfg.Listen, b.port)
	if err != nil {
		if old != nil {
			old.update(b)
		}
		return err
	}
	if old != nil {
		old.close()
	} else {
		s.metrics.bmcs.Inc()
	}
	e := newEndpoint(s, b, sock)
	s.endpoints[key] = e
	s.readers.Go(e.serve)
	e.wantGUID(time.Now())
	return nil
}

// Remove stops serving a BMC.
func (s *Server) Remove(reference *referencev1.BMCReference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(reference)
	if e := s.endpoints[key]; e != nil {
		delete(s.endpoints, key)
		e.close()
		s.metrics.bmcs.Dec()
	}
}

// Shutdown takes no further datagrams, lets commands that are under way end and
// be answered until the context ends, and closes all sockets.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.endpoints {
		e.drain()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.cancel()
	s.mu.Lock()
	for key, e := range s.endpoints {
		delete(s.endpoints, key)
		e.close()
		s.metrics.bmcs.Dec()
	}
	s.mu.Unlock()
	<-done // Calls end with s.cancel.
	s.readers.Wait()
}

// Port returns the port of a BMC that is served; 0 when it is not.
func (s *Server) Port(reference *referencev1.BMCReference) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints[keyOf(reference)]; e != nil {
		return e.socket.port()
	}
	return 0
}

// lookUp asks for the UUIDs of machines, one at a time.
func (s *Server) lookUp() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case e := <-s.lookups:
			e.lookUpGUID(s.ctx)
		}
	}
}

func keyOf(r *referencev1.BMCReference) string { return r.GetNamespace() + "/" + r.GetName() }

// isClosed tells the error of a socket that was closed from one that passes.
func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }

func panicError(v any) error { return fmt.Errorf("panic: %v", v) }
