// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipmi has the message that every IPMI payload carries, and the codes
// that go into it.
//
// A request over LAN (IPMI v2.0 section 13.8):
//
//	0       1             2         3       4             5    6..n-2  n-1
//	rsAddr  netFn | rsLUN checksum  rqAddr  rqSeq | rqLUN cmd  data    checksum
//	        6       2     of 0..1           6       2                  of 3..n-2
//
// The response has the addresses and LUNs the other way round, an odd netFn and
// the completion code as the first byte of its data. Each checksum makes the
// 8-bit sum of what it covers and itself zero.
package ipmi

import "errors"

// NetFn is a network function: the even number of the request; the response's
// is one more (IPMI v2.0 section 5.1).
type NetFn byte

// Network functions.
const (
	NetFnChassis        NetFn = 0x00
	NetFnSensor         NetFn = 0x04
	NetFnApp            NetFn = 0x06
	NetFnStorage        NetFn = 0x0A
	NetFnTransport      NetFn = 0x0C
	NetFnGroupExtension NetFn = 0x2C
)

// Addresses of both ends (IPMI v2.0 section 13.8).
const (
	AddressBMC     = 0x20
	AddressConsole = 0x81
)

// Errors of ParseMessage.
var (
	ErrShort    = errors.New("short IPMI message")
	ErrChecksum = errors.New("wrong checksum in IPMI message")
)

const (
	messageOverhead = 7 // Both headers and both checksums.
	lunMask         = 0x03
)

// Message is an IPMI request, or a response whose completion code is the first
// byte of Data.
type Message struct {
	ToAddress   byte
	ToLUN       byte
	NetFn       NetFn
	FromAddress byte
	FromLUN     byte
	Sequence    byte // 6 bits, chosen by the requester.
	Command     byte
	Data        []byte
}

// ParseMessage reads a message; Data aliases b.
func ParseMessage(b []byte) (Message, error) {
	if len(b) < messageOverhead {
		return Message{}, ErrShort
	}
	last := len(b) - 1
	if sum(b[:3]) != 0 || sum(b[3:]) != 0 {
		return Message{}, ErrChecksum
	}
	return Message{
		ToAddress: b[0], NetFn: NetFn(b[1] >> 2), ToLUN: b[1] & lunMask,
		FromAddress: b[3], Sequence: b[4] >> 2, FromLUN: b[4] & lunMask,
		Command: b[5], Data: b[6:last:last],
	}, nil
}

// AppendTo appends the message with its checksums.
func (m Message) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, m.ToAddress, byte(m.NetFn)<<2|m.ToLUN&lunMask)
	b = append(b, -sum(b[start:]))
	start = len(b)
	b = append(b, m.FromAddress, m.Sequence<<2|m.FromLUN&lunMask, m.Command)
	b = append(b, m.Data...)
	return append(b, -sum(b[start:]))
}

// IsRequest tells a request from a response.
func (m Message) IsRequest() bool { return m.NetFn&1 == 0 }

// AppendResponse appends the response to a request.
func (m Message) AppendResponse(b []byte, code CompletionCode, data []byte) []byte {
	start := len(b)
	b = append(b, m.FromAddress, byte(m.NetFn|1)<<2|m.FromLUN&lunMask)
	b = append(b, -sum(b[start:]))
	start = len(b)
	b = append(b, m.ToAddress, m.Sequence<<2|m.ToLUN&lunMask, m.Command, byte(code))
	b = append(b, data...)
	return append(b, -sum(b[start:]))
}

func sum(b []byte) byte {
	var s byte
	for _, v := range b {
		s += v
	}
	return s
}
