// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/listener"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
	"kubevirtbmc.dev/services/frontend-redfish/internal/session"
)

// endpoint is one BMC as it is served.
type endpoint struct {
	ref      *referencev1.BMCReference
	owner    listener.Owner
	sessions session.Table
	state    atomic.Pointer[state]

	mu      sync.Mutex // guards what follows
	https   port
	http    port
	applied chan struct{} // closed when the registry says something; nil: nobody waits
}

// state is what the registry says of a BMC; replaced as a whole.
type state struct {
	uuid        string
	accounts    *account.Set
	certificate *tls.Certificate // nil: the frontend's own
	expires     time.Time        // when certificate does
	ports       resource.Ports
}

// lasting returns the certificate and when it expires, nil if it has.
func (s *state) lasting(now time.Time) (*tls.Certificate, time.Time) {
	if s.certificate == nil || now.After(s.expires) {
		return nil, time.Time{}
	}
	return s.certificate, s.expires
}

// port is an open port, or none.
type port struct {
	number uint32
	open   *listener.Port
}

func newEndpoint(ref *referencev1.BMCReference) *endpoint {
	e := &endpoint{ref: &referencev1.BMCReference{Namespace: ref.GetNamespace(), Name: ref.GetName()}}
	e.owner.Value = e
	e.state.Store(&state{accounts: account.NewSet(nil)})
	return e
}

// endpointOf returns the BMC of a connection; nil for one of no BMC.
func endpointOf(c net.Conn) *endpoint {
	owner := listener.OwnerOf(c)
	if owner == nil {
		return nil
	}
	e, _ := owner.Value.(*endpoint)
	return e
}

// apply takes over a registry entry and returns how many sessions that ended.
func (e *endpoint) apply(ctx context.Context, s *Server, bmc *registryv1.BMC) (ended int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.state.Load()
	next := &state{uuid: bmc.GetUuid(), ports: portsOf(bmc), accounts: account.NewSet(bmc.GetAccounts())}
	httpsPort := bmc.GetRedfish().GetHttps().GetPort()
	var certificateErr error
	next.certificate, next.expires, certificateErr = certificateOf(bmc.GetRedfish().GetCertificate())
	switch {
	case certificateErr != nil:
		next.certificate, next.expires = last.certificate, last.expires
	case next.certificate == nil && httpsPort != 0:
		// A controller that has just started may have no CA at hand.
		next.certificate, next.expires = last.lasting(time.Now())
	}
	e.replace(next)
	ended = e.sessions.Keep(func(sn session.Session) bool { return next.accounts.Holds(sn.Account) })

	var errs []error
	switch {
	case httpsPort == 0:
	case certificateErr != nil:
		errs = append(errs, certificateErr)
		httpsPort = e.https.number // The certificate before, if any, still serves.
	case next.certificate == nil && s.cfg.Certificate == nil:
		errs = append(errs, errors.New("there is no certificate for HTTPS"))
		httpsPort = 0
	}
	errs = append(errs,
		e.https.change(ctx, s, &e.owner, httpsPort, s.tls),
		e.http.change(ctx, s, &e.owner, bmc.GetRedfish().GetHttp().GetPort(), nil))
	if next.accounts.Len() == 0 {
		errs = append(errs, errors.New("no account may log in over Redfish"))
	}
	return ended, errors.Join(errs...)
}

// replace takes over what the registry says, with e.mu held.
func (e *endpoint) replace(next *state) {
	e.state.Store(next)
	if e.applied != nil {
		close(e.applied)
		e.applied = nil
	}
}

// await waits until the registry says what is wanted of accounts, or the context
// ends. Who changes an account may use it as soon as it is told that it is changed.
func (e *endpoint) await(ctx context.Context, wanted func(*account.Set) bool) {
	for {
		e.mu.Lock()
		if wanted(e.state.Load().accounts) {
			e.mu.Unlock()
			return
		}
		if e.applied == nil {
			e.applied = make(chan struct{})
		}
		applied := e.applied
		e.mu.Unlock()
		select {
		case <-applied:
		case <-ctx.Done():
			return
		}
	}
}

// portsOf returns the ports at which clients reach a BMC.
func portsOf(bmc *registryv1.BMC) resource.Ports {
	port := func(l *registryv1.Listener) uint32 { return cmp.Or(l.GetClientPort(), l.GetPort()) }
	return resource.Ports{
		HTTPS: port(bmc.GetRedfish().GetHttps()), HTTP: port(bmc.GetRedfish().GetHttp()), IPMI: port(bmc.GetIpmi().GetUdp()),
	}
}

// change opens the port of a number in place of the present one; the same
// number leaves it open. The present one goes on where the new one can't be
// had.
func (p *port) change(ctx context.Context, s *Server, owner *listener.Owner, number uint32, tlsConfig *tls.Config) error {
	if p.open != nil && p.number == number {
		return nil
	}
	var next port
	if number != 0 {
		open, err := s.fan.Listen(ctx, net.JoinHostPort(s.cfg.Listen, strconv.FormatUint(uint64(number), 10)), owner, tlsConfig)
		if err != nil {
			return err
		}
		next = port{number, open}
	}
	p.close()
	*p = next
	return nil
}

func (p *port) close() {
	if p.open != nil {
		p.open.Close() //nolint:errcheck // It is closed either way.
	}
	*p = port{}
}

func (e *endpoint) closePorts() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.https.close()
	e.http.close()
}

// close ends all that the endpoint has; requests under way are answered.
func (e *endpoint) close() {
	e.closePorts()
	e.owner.Close()
	e.sessions.Keep(func(session.Session) bool { return false })
}

// certificateOf returns a registry entry's certificate and when it expires; nil
// where it has none.
func certificateOf(c *registryv1.Certificate) (*tls.Certificate, time.Time, error) {
	if c == nil {
		return nil, time.Time{}, nil
	}
	pair, err := tls.X509KeyPair(c.GetChainPem(), c.GetPrivateKeyPem())
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read the BMC's certificate: %w", err)
	}
	expires := pair.Leaf.NotAfter
	pair.Leaf = nil // Parsed, it is most of an idle BMC's memory, and a server has no need of it.
	return &pair, expires, nil
}
