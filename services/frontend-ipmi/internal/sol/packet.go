// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol

import "errors"

const (
	headerSize   = 4
	sequenceMask = 0x0F
	// maxCharacters is what the count of accepted characters can tell of.
	maxCharacters = 255
)

// PayloadSize is the size of payloads in either direction that is told to
// consoles, header included. FreeIPMI takes 5 to 259.
const PayloadSize = 255

// Flags are the operation byte of a console's packet or the status byte of a
// BMC's (table 15-2).
type Flags byte

// NACK says in either direction that not all characters were accepted.
const NACK Flags = 0x40

// Operations that a console asks for. There are no modem lines behind a virtual
// serial port: what a console does with them is without effect.
const (
	RingWOR       Flags = 0x20
	GenerateBreak Flags = 0x10
	CTSPause      Flags = 0x08
	DropDCDDSR    Flags = 0x04
	FlushInbound  Flags = 0x02 // What the console sent and the guest did not get yet.
	FlushOutbound Flags = 0x01 // What the guest said and the console did not get yet.
)

// Status of the BMC.
const (
	Unavailable     Flags = 0x20 // The machine is off.
	Deactivating    Flags = 0x10
	TransmitOverrun Flags = 0x08 // Output of the guest was lost.
)

// ErrShort says that a payload has no whole header.
var ErrShort = errors.New("short SOL payload")

// Packet is a SOL payload.
type Packet struct {
	Sequence   byte // 1 to 15; 0: nothing to acknowledge.
	Ack        byte // Sequence that is acknowledged; 0: none.
	Accepted   byte // Characters of it that were accepted.
	Flags      Flags
	Characters []byte
}

// ParsePacket reads a payload; Characters alias b. Reserved bits are ignored.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < headerSize {
		return Packet{}, ErrShort
	}
	return Packet{
		Sequence: b[0] & sequenceMask, Ack: b[1] & sequenceMask, Accepted: b[2], Flags: Flags(b[3] &^ 0x80),
		Characters: b[headerSize:len(b):len(b)],
	}, nil
}

// AppendTo appends the payload.
func (p Packet) AppendTo(b []byte) []byte {
	b = append(b, p.Sequence&sequenceMask, p.Ack&sequenceMask, p.Accepted, byte(p.Flags))
	return append(b, p.Characters...)
}
