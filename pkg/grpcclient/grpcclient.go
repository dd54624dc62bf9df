// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcclient connects to the project's gRPC services.
package grpcclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"kubevirtbmc.dev/pkg/callctx"
)

// Config says how to connect.
type Config struct {
	// Roots returns the CA certificates that servers are verified with, called for
	// each handshake of TLS 1.3 (certs.Roots.Pool follows a file).
	Roots func() *x509.CertPool
	// TLS of the connection where Roots is nil; both are nil only inside one
	// process, where bytes do not leave it.
	TLS *tls.Config
	// Token returns the bearer token to present, called for each RPC, and during
	// streams whose messages can show another; nil: none.
	Token func() (string, error)
	// Renew is how often it is called during a stream; 0: every 20 s.
	Renew time.Duration
	// Options are added to the connection's, as a dialer.
	Options []grpc.DialOption
}

// Dial returns a connection to a service: to the replicas that the target has,
// each on first use and again whenever it is lost.
//
// Each BMC has its replica: the same for all callers from their first call on,
// and the next one while that one can't be connected to. A replica that ends or
// dies is left at once where its connections end with it; one that falls silent
// is noticed within 12 s (gRPC's clients ask no more often; servers notice a
// silent client within 2.5 s), and a new connection is given up after 2 s.
// A call that only reads is then sent again, to the next replica; one that acts
// is not, since it may have been carried out: it fails with UNAVAILABLE, and may
// be repeated, for the same action joins one that is still under way. Replicas
// that are added are found when the target's name is looked up again, which is
// every 5 s, and when a connection is lost.
//
// Request id and caller of each call's context (package callctx) go along.
func Dial(target string, cfg Config) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	switch {
	case cfg.Roots != nil:
		transport = newFollowing(cfg.Roots)
	case cfg.TLS != nil:
		transport = credentials.NewTLS(cfg.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithConnectParams(connecting),
		grpc.WithChainUnaryInterceptor(unaryByBMC, unaryCallContext),
		grpc.WithChainStreamInterceptor(streamByBMC, streamCallContext),
		grpc.WithDefaultServiceConfig(serviceConfig()),
		grpc.WithDisableServiceConfig(), // No name server has a say in it.
		grpc.WithResolvers(newNames()),
	}
	if cfg.Token != nil {
		options = append(options,
			grpc.WithPerRPCCredentials(bearerToken{cfg.Token, cfg.Roots != nil || cfg.TLS != nil}),
			grpc.WithChainStreamInterceptor(streamRenewal(cfg.Token, cmp.Or(cfg.Renew, defaultRenew))))
	}
	conn, err := grpc.NewClient(target, append(options, cfg.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	return conn, nil
}

// DialEach connects to each target once, however often it is named, and returns
// the connections by target and what closes all of them.
func DialEach(cfg Config, targets ...string) (conns map[string]*grpc.ClientConn, closeAll func(), err error) {
	conns = map[string]*grpc.ClientConn{}
	closeAll = func() {
		for _, conn := range conns {
			_ = conn.Close() // Closed already, at worst.
		}
	}
	for _, target := range targets {
		if conns[target] != nil {
			continue
		}
		conn, err := Dial(target, cfg)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns[target] = conn
	}
	return conns, closeAll, nil
}

// TokenFile returns a token function that reads a file for each call, so that a
// rotated token counts at once.
func TokenFile(path string) func() (string, error) {
	return func() (string, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read token: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
}

type bearerToken struct {
	token  func() (string, error)
	secure bool
}

func (b bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.token()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (b bearerToken) RequireTransportSecurity() bool { return b.secure }

func unaryCallContext(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(callctx.Outgoing(ctx), method, req, reply, cc, opts...)
}

func streamCallContext(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(callctx.Outgoing(ctx), desc, cc, method, opts...)
}
