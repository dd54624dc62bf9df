// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	"google.golang.org/grpc/credentials"
)

// following are TLS credentials that verify each server with the CA certificates
// of that moment. A configuration has but one set of them, so each handshake has
// a configuration of its own.
type following struct {
	credentials.TransportCredentials
	roots func() *x509.CertPool
}

func newFollowing(roots func() *x509.CertPool) *following {
	return &following{verifiedBy(roots()), roots}
}

func verifiedBy(pool *x509.CertPool) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13})
}

// ClientHandshake implements credentials.TransportCredentials.
func (f *following) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return verifiedBy(f.roots()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (f *following) Clone() credentials.TransportCredentials {
	return &following{f.TransportCredentials.Clone(), f.roots}
}
