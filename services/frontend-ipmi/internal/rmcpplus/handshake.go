// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus

import "encoding/binary"

// Status of an Open Session Response and of RAKP messages (table 13-15).
type Status byte

// Status codes.
const (
	StatusOK                    Status = 0x00
	StatusInsufficientResources Status = 0x01
	StatusInvalidSessionID      Status = 0x02
	StatusUnauthorizedRole      Status = 0x09
	StatusInvalidRole           Status = 0x0A
	StatusInvalidNameLength     Status = 0x0C
	StatusInvalidCheckValue     Status = 0x0F
	StatusNoCipherSuiteMatch    Status = 0x11
	StatusIllegalParameter      Status = 0x12
)

const (
	openSessionRequestSize = 32
	rakp1Size              = 28
	rakp3Size              = 8
	maxNameLength          = 16
	privilegeMask          = 0x0F
)

// Algorithm is one choice in an Open Session Request.
type Algorithm struct {
	// Any leaves the choice to the BMC.
	Any    bool
	Number byte
}

func (a Algorithm) matches(number byte) bool { return a.Any || a.Number == number }

// OpenSessionRequest asks for a session (section 13.17, table 13-9):
//
//	0    1          2..3      4..7        8..15           16..23     24..31
//	tag  privilege  reserved  console id  authentication  integrity  confidentiality
//
// each of the last three being type (0, 1, 2), 2 reserved bytes, length (8, or
// 0 for any), algorithm, 3 reserved bytes.
type OpenSessionRequest struct {
	Tag byte
	// Privilege is the highest level that the session may get; 0: as high as the
	// algorithms allow.
	Privilege       byte
	ConsoleID       uint32
	Authentication  Algorithm
	Integrity       Algorithm
	Confidentiality Algorithm
}

// ParseOpenSessionRequest reads a request. With an error other than ErrShort,
// Tag and ConsoleID are set for the refusal.
func ParseOpenSessionRequest(b []byte) (OpenSessionRequest, error) {
	if len(b) < 8 {
		return OpenSessionRequest{}, ErrShort
	}
	r := OpenSessionRequest{Tag: b[0], Privilege: b[1] & privilegeMask, ConsoleID: binary.LittleEndian.Uint32(b[4:])}
	if len(b) < openSessionRequestSize {
		return r, ErrPayload
	}
	for i, into := range []*Algorithm{&r.Authentication, &r.Integrity, &r.Confidentiality} {
		payload := b[8+8*i : 16+8*i]
		if int(payload[0]) != i || (payload[3] != 8 && payload[3] != 0) {
			return r, ErrPayload
		}
		*into = Algorithm{Any: payload[3] == 0, Number: payload[4] & payloadTypeMask}
	}
	return r, nil
}

// AppendTo appends the request.
func (r OpenSessionRequest) AppendTo(b []byte) []byte {
	b = append(b, r.Tag, r.Privilege, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, r.ConsoleID)
	for i, a := range []Algorithm{r.Authentication, r.Integrity, r.Confidentiality} {
		length := byte(8)
		if a.Any {
			length = 0
		}
		b = append(b, byte(i), 0, 0, length, a.Number, 0, 0, 0)
	}
	return b
}

// Choose returns the first suite that the request allows, nil when none does.
func (r OpenSessionRequest) Choose(suites []*Suite) *Suite {
	for _, s := range suites {
		if r.Authentication.matches(s.Authentication) && r.Integrity.matches(s.Integrity) && r.Confidentiality.matches(s.Confidentiality) {
			return s
		}
	}
	return nil
}

// OpenSessionResponse grants a session (section 13.18, table 13-10):
//
//	0    1       2          3         4..7        8..11   12..35
//	tag  status  privilege  reserved  console id  BMC id  algorithms as requested
//
// With a status that is not OK it ends after the console's id.
type OpenSessionResponse struct {
	Tag       byte
	Status    Status
	Privilege byte
	ConsoleID uint32
	BMCID     uint32
	Algorithms
}

// AppendTo appends the response.
func (r OpenSessionResponse) AppendTo(b []byte) []byte {
	b = append(b, r.Tag, byte(r.Status), r.Privilege, 0)
	b = binary.LittleEndian.AppendUint32(b, r.ConsoleID)
	if r.Status != StatusOK {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, r.BMCID)
	for i, number := range []byte{r.Authentication, r.Integrity, r.Confidentiality} {
		b = append(b, byte(i), 0, 0, 8, number, 0, 0, 0)
	}
	return b
}

// RAKP1 names the user (section 13.20, table 13-11):
//
//	0    1..3      4..7    8..23           24    25..26    27           28..
//	tag  reserved  BMC id  console random  role  reserved  name length  name
type RAKP1 struct {
	Tag           byte
	BMCID         uint32
	ConsoleRandom [16]byte
	// Role is the whole byte: bits 3:0 the privilege level asked for, bit 4 set
	// to look up by name alone.
	Role     byte
	Username string
}

// ParseRAKP1 reads a message. With ErrNameLength the fields before the name are
// set for the refusal.
func ParseRAKP1(b []byte) (RAKP1, error) {
	if len(b) < rakp1Size {
		return RAKP1{}, ErrShort
	}
	m := RAKP1{Tag: b[0], BMCID: binary.LittleEndian.Uint32(b[4:]), ConsoleRandom: [16]byte(b[8:24]), Role: b[24]}
	length := int(b[27])
	if length > maxNameLength || len(b) < rakp1Size+length {
		return m, ErrNameLength
	}
	m.Username = string(b[rakp1Size : rakp1Size+length])
	return m, nil
}

// AppendTo appends the message.
func (m RAKP1) AppendTo(b []byte) []byte {
	b = append(b, m.Tag, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.BMCID)
	b = append(b, m.ConsoleRandom[:]...)
	b = append(b, m.Role, 0, 0, byte(len(m.Username))) // #nosec G115 -- names have at most 16 bytes.
	return append(b, m.Username...)
}

// RequestedPrivilege is the privilege level in the role byte.
func (m RAKP1) RequestedPrivilege() byte { return m.Role & privilegeMask }

// RAKP2 answers RAKP1 (section 13.21, table 13-12):
//
//	0    1       2..3      4..7        8..23       24..39  40..
//	tag  status  reserved  console id  BMC random  GUID    code
//
// With a status that is not OK it ends after the console's id.
type RAKP2 struct {
	Tag       byte
	Status    Status
	ConsoleID uint32
	BMCRandom [16]byte
	GUID      [16]byte
	Code      []byte
}

// AppendTo appends the message.
func (m RAKP2) AppendTo(b []byte) []byte {
	b = append(b, m.Tag, byte(m.Status), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.ConsoleID)
	if m.Status != StatusOK {
		return b
	}
	b = append(b, m.BMCRandom[:]...)
	b = append(b, m.GUID[:]...)
	return append(b, m.Code...)
}

// RAKP3 proves that the console knows the password (section 13.22, table
// 13-13):
//
//	0    1       2..3      4..7    8..
//	tag  status  reserved  BMC id  code
type RAKP3 struct {
	Tag byte
	// Status other than OK says that the console gives up.
	Status Status
	BMCID  uint32
	// Code aliases what was parsed.
	Code []byte
}

// ParseRAKP3 reads a message.
func ParseRAKP3(b []byte) (RAKP3, error) {
	if len(b) < rakp3Size {
		return RAKP3{}, ErrShort
	}
	return RAKP3{Tag: b[0], Status: Status(b[1]), BMCID: binary.LittleEndian.Uint32(b[4:]), Code: b[rakp3Size:]}, nil
}

// AppendTo appends the message.
func (m RAKP3) AppendTo(b []byte) []byte {
	b = append(b, m.Tag, byte(m.Status), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.BMCID)
	return append(b, m.Code...)
}

// RAKP4 opens the session (section 13.23, table 13-14):
//
//	0    1       2..3      4..7        8..
//	tag  status  reserved  console id  check value
type RAKP4 struct {
	Tag       byte
	Status    Status
	ConsoleID uint32
	Check     []byte
}

// AppendTo appends the message.
func (m RAKP4) AppendTo(b []byte) []byte {
	b = append(b, m.Tag, byte(m.Status), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.ConsoleID)
	if m.Status != StatusOK {
		return b
	}
	return append(b, m.Check...)
}
