// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus

import (
	"crypto/hmac"
	"crypto/sha1" // #nosec G505 -- cipher suite 3 is HMAC-SHA1 by definition.
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Algorithm numbers (sections 13.28, tables 13-17 to 13-19).
const (
	AuthenticationHMACSHA1   = 0x01
	AuthenticationHMACSHA256 = 0x03
	IntegrityHMACSHA1_96     = 0x01
	IntegrityHMACSHA256_128  = 0x04
	ConfidentialityAESCBC128 = 0x01
)

// Suite is a cipher suite (section 22.15.2): algorithms that go together.
type Suite struct {
	ID byte
	Algorithms
	newHash func() hash.Hash
	// codeSize is the length of the codes of RAKP 2 and 3.
	codeSize int
	// shortSize is the length of a RAKP 4 check value and of the integrity code
	// of packets: the hash cut off.
	shortSize int
}

// Algorithms are the three choices of a session.
type Algorithms struct {
	Authentication  byte
	Integrity       byte
	Confidentiality byte
}

// The suites that are served. All others either leave out authentication,
// integrity or encryption, or rest on MD5 or RC4.
var (
	Suite3 = &Suite{
		ID:         3,
		Algorithms: Algorithms{AuthenticationHMACSHA1, IntegrityHMACSHA1_96, ConfidentialityAESCBC128},
		newHash:    sha1.New, codeSize: sha1.Size, shortSize: 12,
	}
	Suite17 = &Suite{
		ID:         17,
		Algorithms: Algorithms{AuthenticationHMACSHA256, IntegrityHMACSHA256_128, ConfidentialityAESCBC128},
		newHash:    sha256.New, codeSize: sha256.Size, shortSize: 16,
	}
)

// SuiteByID returns a suite that is served, nil for others.
func SuiteByID(id uint32) *Suite {
	switch id {
	case uint32(Suite3.ID):
		return Suite3
	case uint32(Suite17.ID):
		return Suite17
	}
	return nil
}

// AppendRecord appends the suite's record of Get Channel Cipher Suites (section
// 22.15.1, table 22-18).
func (s *Suite) AppendRecord(b []byte) []byte {
	const (
		standardSuite     = 0xC0
		integrityTag      = 0x40
		confidentialityID = 0x80
	)
	return append(b, standardSuite, s.ID, s.Authentication, integrityTag|s.Integrity, confidentialityID|s.Confidentiality)
}

// Handshake is what both ends put into the codes of RAKP messages.
type Handshake struct {
	ConsoleID     uint32
	BMCID         uint32
	ConsoleRandom [16]byte
	BMCRandom     [16]byte
	GUID          [16]byte
	// Role is the whole byte of RAKP message 1, its bit 4 and reserved bits
	// included.
	Role     byte
	Username string
}

func (h *Handshake) appendUser(b []byte) []byte {
	b = append(b, h.Role, byte(len(h.Username))) // #nosec G115 -- names have at most 16 bytes.
	return append(b, h.Username...)
}

// RAKP2Code is the key exchange authentication code of RAKP message 2 (section
// 13.31), keyed by the user's password.
func (s *Suite) RAKP2Code(password []byte, h *Handshake) []byte {
	b := make([]byte, 0, 80)
	b = binary.LittleEndian.AppendUint32(b, h.ConsoleID)
	b = binary.LittleEndian.AppendUint32(b, h.BMCID)
	b = append(b, h.ConsoleRandom[:]...)
	b = append(b, h.BMCRandom[:]...)
	b = append(b, h.GUID[:]...)
	return s.mac(password, h.appendUser(b))
}

// RAKP3Code is the key exchange authentication code of RAKP message 3 (section
// 13.31), keyed by the user's password.
func (s *Suite) RAKP3Code(password []byte, h *Handshake) []byte {
	b := make([]byte, 0, 48)
	b = append(b, h.BMCRandom[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.ConsoleID)
	return s.mac(password, h.appendUser(b))
}

// SessionKey is the session integrity key (section 13.31). The key is Kg, or
// the user's password where no Kg is set.
func (s *Suite) SessionKey(key []byte, h *Handshake) []byte {
	b := make([]byte, 0, 56)
	b = append(b, h.ConsoleRandom[:]...)
	b = append(b, h.BMCRandom[:]...)
	return s.mac(key, h.appendUser(b))
}

// RAKP4Check is the integrity check value of RAKP message 4 (sections 13.28.1,
// 13.28.1b and 13.31), keyed by the session integrity key.
func (s *Suite) RAKP4Check(sessionKey []byte, h *Handshake) []byte {
	b := make([]byte, 0, 40)
	b = append(b, h.ConsoleRandom[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.BMCID)
	b = append(b, h.GUID[:]...)
	return s.mac(sessionKey, b)[:s.shortSize]
}

// Keys derives the keys of the session's packets (section 13.32).
func (s *Suite) Keys(sessionKey []byte) Keys {
	k := Keys{suite: s, integrity: s.mac(sessionKey, constant(1))}
	copy(k.encryption[:], s.mac(sessionKey, constant(2)))
	return k
}

// constant returns the 20 equal bytes that section 13.32 derives keys from,
// for SHA-256 as well.
func constant(v byte) []byte {
	b := make([]byte, 20)
	for i := range b {
		b[i] = v
	}
	return b
}

func (s *Suite) mac(key, message []byte) []byte {
	h := hmac.New(s.newHash, key)
	h.Write(message)
	return h.Sum(nil)
}

// Equal compares codes in constant time.
func Equal(a, b []byte) bool { return hmac.Equal(a, b) }
