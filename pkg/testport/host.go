// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package testport

import (
	"cmp"
	"net"
	"net/url"
	"testing"
)

// HostFor returns the address of this machine at which a server reaches it, as an
// API server that is to call a test's webhooks. The server is given by its URL.
func HostFor(tb testing.TB, server string) string {
	tb.Helper()
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	// Nothing is sent: a datagram socket is connected by choosing a route.
	conn, err := net.Dial("udp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		tb.Fatal(err)
	}
	return host
}
