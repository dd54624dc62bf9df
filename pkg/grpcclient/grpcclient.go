// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcclient connects to the project's gRPC services.
package grpcclient

import (
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
	// TLS of the connection; nil only inside one process, where bytes do not
	// leave it.
	TLS *tls.Config
	// Token returns the bearer token to present, called for each RPC; nil: none.
	Token func() (string, error)
	// Options are added to the connection's, as a dialer.
	Options []grpc.DialOption
}

// Dial returns a connection to a service. It connects on first use and again
// whenever the connection is lost. A dead peer is noticed within 12 s (gRPC's
// clients ask no more often); servers notice one within 4 s.
// Request id and caller of each call's context (package callctx) go along.
func Dial(target string, cfg Config) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if cfg.TLS != nil {
		transport = credentials.NewTLS(cfg.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithChainUnaryInterceptor(unaryCallContext),
		grpc.WithChainStreamInterceptor(streamCallContext),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
	}
	if cfg.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearerToken{cfg.Token, cfg.TLS != nil}))
	}
	conn, err := grpc.NewClient(target, append(options, cfg.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	return conn, nil
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

// TLSFromCA returns a TLS configuration that trusts the certificates of a PEM
// file and no others.
func TLSFromCA(path string) (*tls.Config, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA certificates: %s holds no PEM certificate", path)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, nil
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
