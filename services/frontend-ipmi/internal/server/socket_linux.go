// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
)

// controlSize holds the control messages of a datagram that tell the address it
// was sent to, of IPv4 and IPv6.
const controlSize = 64

// trackLocal asks for those control messages.
func trackLocal(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var errV4, errV6 error
	err = raw.Control(func(fd uintptr) {
		errV4 = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_PKTINFO, 1)
		errV6 = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO, 1)
	})
	if err != nil {
		return err
	}
	if errV4 != nil && errV6 != nil {
		return errV4
	}
	return nil
}

func (s *socket) read(b, control []byte) (int, peer, error) {
	if !s.tracksLocal {
		n, from, err := s.conn.ReadFromUDPAddrPort(b)
		return n, peer{address: from}, err
	}
	n, controlLength, _, from, err := s.conn.ReadMsgUDPAddrPort(b, control)
	if err != nil {
		return 0, peer{}, err
	}
	return n, peer{address: from, local: localAddress(control[:controlLength])}, nil
}

// localAddress returns the destination address in control messages (ip(7),
// ipv6(7)); the zero address when there is none.
func localAddress(control []byte) netip.Addr {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_PKTINFO && len(m.Data) >= syscall.SizeofInet4Pktinfo:
			// Interface index, local address, destination address.
			return netip.AddrFrom4([4]byte(m.Data[4:8]))
		case m.Header.Level == syscall.IPPROTO_IPV6 && m.Header.Type == syscall.IPV6_PKTINFO && len(m.Data) >= syscall.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		}
	}
	return netip.Addr{}
}

func (s *socket) write(b []byte, to peer) error {
	if !to.local.IsValid() {
		_, err := s.conn.WriteToUDPAddrPort(b, to.address)
		return err
	}
	_, _, err := s.conn.WriteMsgUDPAddrPort(b, sourceControl(to.local), to.address)
	return err
}

// sourceControl is the control message that sets a datagram's source address.
// The interface stays open: routing chooses it.
func sourceControl(local netip.Addr) []byte {
	level, kind, size := syscall.IPPROTO_IPV6, syscall.IPV6_PKTINFO, syscall.SizeofInet6Pktinfo
	if local = local.Unmap(); local.Is4() {
		level, kind, size = syscall.IPPROTO_IP, syscall.IP_PKTINFO, syscall.SizeofInet4Pktinfo
	}
	// The C structure cmsghdr in the machine's byte order: length, level, type.
	word := syscall.SizeofCmsghdr - 8
	b := make([]byte, syscall.CmsgSpace(size))
	length := syscall.CmsgLen(size)
	if word == 8 {
		binary.NativeEndian.PutUint64(b, uint64(length)) // #nosec G115 -- a small constant.
	} else {
		binary.NativeEndian.PutUint32(b, uint32(length)) // #nosec G115 -- a small constant.
	}
	binary.NativeEndian.PutUint32(b[word:], uint32(level))  // #nosec G115 -- a small constant.
	binary.NativeEndian.PutUint32(b[word+4:], uint32(kind)) // #nosec G115 -- a small constant.
	data := b[syscall.CmsgLen(0):]
	if local.Is4() {
		copy(data[4:], local.AsSlice())
	} else {
		copy(data, local.AsSlice())
	}
	return b
}
