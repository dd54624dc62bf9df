// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// maxDatagram is more than any IPMI request has: the longest message data of
// IPMI over LAN is 255 bytes, and headers, padding and codes add less than 100.
const maxDatagram = 512

// peer is where a datagram came from and which address it was sent to, so that
// the answer comes from there.
type peer struct {
	address netip.AddrPort
	local   netip.Addr // Zero where the socket is bound to one address.
}

// datagramConn is what an endpoint needs of a socket.
type datagramConn interface {
	// read reads a datagram; control is scratch space of controlSize.
	read(b, control []byte) (int, peer, error)
	// write sends one from the address that the peer asked.
	write(b []byte, to peer) error
	// stopReading makes read fail from now on.
	stopReading()
	close()
	port() uint16
}

// socket is a UDP socket that answers from the address that was asked.
type socket struct {
	conn *net.UDPConn
	// tracksLocal tells that the socket is bound to all addresses and that the
	// one which was asked is known for each datagram.
	tracksLocal bool
}

func listen(ctx context.Context, host string, port uint16) (*socket, error) {
	var config net.ListenConfig
	conn, err := config.ListenPacket(ctx, "udp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("listen for IPMI: %w", err)
	}
	s := &socket{conn: conn.(*net.UDPConn)}
	if bound, ok := conn.LocalAddr().(*net.UDPAddr); ok && bound.IP.IsUnspecified() {
		s.tracksLocal = trackLocal(s.conn) == nil
	}
	return s, nil
}

// port is the one that the socket listens on.
func (s *socket) port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func (s *socket) stopReading() { _ = s.conn.SetReadDeadline(time.Now()) }

func (s *socket) close() { _ = s.conn.Close() }
