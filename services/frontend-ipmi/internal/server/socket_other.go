// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import (
	"errors"
	"net"
)

const controlSize = 0

// trackLocal is for Linux, where the frontend runs in clusters; elsewhere the
// system chooses the source address.
func trackLocal(*net.UDPConn) error { return errors.ErrUnsupported }

func (s *socket) read(b, _ []byte) (int, peer, error) {
	n, from, err := s.conn.ReadFromUDPAddrPort(b)
	return n, peer{address: from}, err
}

func (s *socket) write(b []byte, to peer) error {
	_, err := s.conn.WriteToUDPAddrPort(b, to.address)
	return err
}
