// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package rmcp reads and writes the Remote Management Control Protocol header
// and the ASF messages that find a BMC (IPMI v2.0 section 13.1).
//
// Every datagram starts with four bytes:
//
//	0        1        2        3
//	version  reserved sequence class
//	06h      00h      FFh      bit 7: acknowledge, bits 4:0: 6 ASF, 7 IPMI
//
// A presence ping or pong follows the header with
//
//	0..3            4        5     6         7
//	IANA 000011BEh  type     tag   reserved  data length
//	big endian      80h ping                 00h
//	                40h pong                 10h
//
// and a pong has 16 bytes of data:
//
//	0..3            4..7     8          9             10..15
//	IANA 000011BEh  OEM      supported  interactions  reserved
//	                00000000 81h        00h           0
package rmcp

import (
	"encoding/binary"
	"errors"
)

// Class of an RMCP message (IPMI v2.0 table 13-1).
type Class byte

// Classes that a BMC takes.
const (
	ClassASF  Class = 0x06
	ClassIPMI Class = 0x07
)

// HeaderSize is the length of the RMCP header.
const HeaderSize = 4

const (
	version        = 0x06
	sequenceNoAck  = 0xFF
	classMask      = 0x1F
	acknowledgeBit = 0x80
)

// Errors of the parsers.
var (
	ErrShort   = errors.New("short RMCP message")
	ErrVersion = errors.New("not RMCP version 1.0")
	ErrMessage = errors.New("not an ASF presence ping")
)

// Header of a datagram (IPMI v2.0 section 13.1.3).
type Header struct {
	Sequence byte
	Class    Class
	// Acknowledge marks an RMCP acknowledge, which has no data.
	Acknowledge bool
}

// ParseHeader reads a datagram's header; what it belongs to follows from
// HeaderSize on. The reserved byte and bits are ignored.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	if b[0] != version {
		return Header{}, ErrVersion
	}
	return Header{Sequence: b[2], Class: Class(b[3] & classMask), Acknowledge: b[3]&acknowledgeBit != 0}, nil
}

// AppendTo appends the header.
func (h Header) AppendTo(b []byte) []byte {
	class := byte(h.Class)
	if h.Acknowledge {
		class |= acknowledgeBit
	}
	return append(b, version, 0, h.Sequence, class)
}

// AppendHeader appends the header of a message that needs no acknowledge.
func AppendHeader(b []byte, class Class) []byte {
	return Header{Sequence: sequenceNoAck, Class: class}.AppendTo(b)
}

// ASF message types and values (IPMI v2.0 sections 13.2.3 and 13.2.4).
const (
	asfIANA           = 4542
	asfPresencePing   = 0x80
	asfPresencePong   = 0x40
	asfHeaderSize     = 8
	pongDataSize      = 16
	noTag             = 0xFF
	entitiesIPMIASF10 = 0x81
)

// Ping is an ASF presence ping.
type Ping struct {
	// Tag comes back in the pong.
	Tag byte
}

// ParsePing reads what follows the RMCP header of a presence ping. Other ASF
// messages, and a ping that asks for no answer (tag FFh), are ErrMessage.
func ParsePing(b []byte) (Ping, error) {
	if len(b) < asfHeaderSize {
		return Ping{}, ErrShort
	}
	if binary.BigEndian.Uint32(b) != asfIANA || b[4] != asfPresencePing || b[5] == noTag {
		return Ping{}, ErrMessage
	}
	return Ping{Tag: b[5]}, nil
}

// AppendTo appends the ping with its RMCP header.
func (p Ping) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(AppendHeader(b, ClassASF), asfIANA)
	return append(b, asfPresencePing, p.Tag, 0, 0)
}

// Pong answers a ping: IPMI is supported, the RMCP security extensions are not.
type Pong struct {
	Tag byte
}

// AppendTo appends the pong with its RMCP header.
func (p Pong) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(AppendHeader(b, ClassASF), asfIANA)
	b = append(b, asfPresencePong, p.Tag, 0, pongDataSize)
	b = binary.BigEndian.AppendUint32(b, asfIANA)
	return append(b, 0, 0, 0, 0, entitiesIPMIASF10, 0, 0, 0, 0, 0, 0, 0)
}
