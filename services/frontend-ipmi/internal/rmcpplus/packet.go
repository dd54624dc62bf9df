// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus

import (
	"encoding/binary"
	"errors"
)

// Format of a session header: the authentication type of IPMI v1.5, or the one
// value that says RMCP+ (table 13-8).
type Format byte

// Formats that are known.
const (
	FormatV15None  Format = 0x00
	FormatRMCPPlus Format = 0x06
)

// PayloadType of a packet (table 13-16).
type PayloadType byte

// Payload types.
const (
	PayloadIPMI                PayloadType = 0x00
	PayloadSOL                 PayloadType = 0x01
	PayloadOEM                 PayloadType = 0x02
	PayloadOpenSessionRequest  PayloadType = 0x10
	PayloadOpenSessionResponse PayloadType = 0x11
	PayloadRAKP1               PayloadType = 0x12
	PayloadRAKP2               PayloadType = 0x13
	PayloadRAKP3               PayloadType = 0x14
	PayloadRAKP4               PayloadType = 0x15
)

const (
	encryptedBit     = 0x80
	authenticatedBit = 0x40
	payloadTypeMask  = 0x3F
	v15HeaderSize    = 10
	v20HeaderSize    = 12
)

// Errors of the parsers.
var (
	ErrShort      = errors.New("short message")
	ErrFormat     = errors.New("unknown authentication type")
	ErrNameLength = errors.New("user name longer than 16 bytes")
	ErrPayload    = errors.New("unexpected algorithm payload")
)

// Packet is a session header with its payload.
type Packet struct {
	Format        Format
	Type          PayloadType
	Encrypted     bool
	Authenticated bool
	SessionID     uint32
	Sequence      uint32
	// Payload is as it came: encrypted if Encrypted.
	Payload []byte

	whole   []byte // From the format byte to the datagram's end.
	trailer int    // Where in whole the payload ends.
}

// ParsePacket reads what follows the RMCP header. The payload aliases b. Of
// IPMI v1.5 it takes the authentication type NONE alone.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < 1 {
		return Packet{}, ErrShort
	}
	switch Format(b[0]) {
	case FormatV15None:
		return parseV15(b)
	case FormatRMCPPlus:
		return parseV20(b)
	}
	return Packet{}, ErrFormat
}

func parseV15(b []byte) (Packet, error) {
	if len(b) < v15HeaderSize {
		return Packet{}, ErrShort
	}
	p := Packet{
		Format:    FormatV15None,
		Type:      PayloadIPMI,
		Sequence:  binary.LittleEndian.Uint32(b[1:]),
		SessionID: binary.LittleEndian.Uint32(b[5:]),
	}
	end := v15HeaderSize + int(b[9])
	if len(b) < end {
		return Packet{}, ErrShort
	}
	p.Payload = b[v15HeaderSize:end:end]
	return p, nil
}

func parseV20(b []byte) (Packet, error) {
	if len(b) < v20HeaderSize {
		return Packet{}, ErrShort
	}
	p := Packet{
		Format:        FormatRMCPPlus,
		Type:          PayloadType(b[1] & payloadTypeMask),
		Encrypted:     b[1]&encryptedBit != 0,
		Authenticated: b[1]&authenticatedBit != 0,
	}
	if p.Type == PayloadOEM {
		// Six bytes of OEM identification would follow; none is served.
		return Packet{}, ErrPayload
	}
	p.SessionID = binary.LittleEndian.Uint32(b[2:])
	p.Sequence = binary.LittleEndian.Uint32(b[6:])
	end := v20HeaderSize + int(binary.LittleEndian.Uint16(b[10:]))
	if len(b) < end {
		return Packet{}, ErrShort
	}
	p.Payload = b[v20HeaderSize:end:end]
	p.whole, p.trailer = b, end
	return p, nil
}

// AppendPlain appends a packet that is neither authenticated nor encrypted, as
// all are outside of a session.
func AppendPlain(b []byte, format Format, t PayloadType, payload []byte) []byte {
	if format == FormatV15None {
		b = append(b, byte(FormatV15None), 0, 0, 0, 0, 0, 0, 0, 0, byte(len(payload))) // #nosec G115 -- answers outside of a session have at most 80 bytes.
		return append(b, payload...)
	}
	return append(appendHeader(b, byte(t), 0, 0, len(payload)), payload...)
}

func appendHeader(b []byte, typeByte byte, sessionID, sequence uint32, length int) []byte {
	b = append(b, byte(FormatRMCPPlus), typeByte)
	b = binary.LittleEndian.AppendUint32(b, sessionID)
	b = binary.LittleEndian.AppendUint32(b, sequence)
	return binary.LittleEndian.AppendUint16(b, uint16(length)) // #nosec G115 -- payloads have at most 300 bytes.
}
