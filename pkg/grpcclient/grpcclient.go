// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcclient connects to the project's gRPC services.
package grpcclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"kubevirtbmc.dev/pkg/callctx"
	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
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

// Dial returns a connection to a service. It connects to all replicas that the
// target has, on first use and again whenever a connection is lost.
//
// Each BMC has its replica: the same for all callers, and the next in rank while
// that one is not connected. A replica that ends or dies is left at once where
// its connections end with it; one that falls silent is noticed within 12 s
// (gRPC's clients ask no more often; servers notice a silent client within 4 s).
// A call that only reads is then sent again, to the next replica; one that acts
// is not, since it may have been carried out: it fails with UNAVAILABLE, and may
// be repeated, for the same action joins one that is still under way. Replicas that are
// added are found when the target's name is resolved again, which is when a
// connection is lost, at most every 30 s.
//
// Request id and caller of each call's context (package callctx) go along.
func Dial(target string, cfg Config) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if cfg.TLS != nil {
		transport = credentials.NewTLS(cfg.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithChainUnaryInterceptor(unaryByBMC, unaryCallContext),
		grpc.WithChainStreamInterceptor(streamByBMC, streamCallContext),
		grpc.WithDefaultServiceConfig(serviceConfig()),
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

// serviceConfig chooses replicas by BMC and sends reads again.
func serviceConfig() string {
	type name struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	type methodConfig struct {
		Name        []name         `json:"name"`
		RetryPolicy map[string]any `json:"retryPolicy"`
	}
	reads := methodConfig{RetryPolicy: map[string]any{
		"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "0.5s", "backoffMultiplier": 3,
		"retryableStatusCodes": []string{"UNAVAILABLE"},
	}}
	for _, method := range []string{
		powerv1.PowerService_GetPower_FullMethodName,
		bootv1.BootService_GetBoot_FullMethodName,
		inventoryv1.InventoryService_GetInventory_FullMethodName,
		mediav1.MediaService_ListMedia_FullMethodName,
	} {
		service, method, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		reads.Name = append(reads.Name, name{service, method})
	}
	config, err := json.Marshal(map[string]any{
		"loadBalancingConfig": []any{map[string]any{rendezvous: struct{}{}}},
		"methodConfig":        []methodConfig{reads},
	})
	if err != nil {
		panic(err) // Of constants alone.
	}
	return string(config)
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
