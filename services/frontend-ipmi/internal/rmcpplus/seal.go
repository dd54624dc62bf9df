// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rmcpplus

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
)

// ErrIntegrity says that a packet is not authentic, not encrypted as agreed, or
// does not decrypt to anything.
var ErrIntegrity = errors.New("packet fails its integrity check")

const (
	padByte    = 0xFF
	nextHeader = 0x07
)

// Keys protect the packets of one session.
type Keys struct {
	suite      *Suite
	integrity  []byte   // K1
	encryption [16]byte // The first 128 bits of K2.
}

// Open checks a packet of the session and returns its payload in the clear. It
// decrypts in place. Only the integrity code counts: pad bytes may be anything.
func (k *Keys) Open(p Packet) ([]byte, error) {
	split := len(p.whole) - k.suite.shortSize
	if !p.Authenticated || !p.Encrypted || split < p.trailer+2 {
		return nil, ErrIntegrity
	}
	signed, code := p.whole[:split], p.whole[split:]
	if !Equal(k.suite.mac(k.integrity, signed)[:k.suite.shortSize], code) {
		return nil, ErrIntegrity
	}
	if pad := int(signed[split-2]); signed[split-1] != nextHeader || p.trailer+pad+2 > split {
		return nil, ErrIntegrity
	}
	return k.decrypt(p.Payload)
}

func (k *Keys) decrypt(b []byte) ([]byte, error) {
	if len(b) < 2*aes.BlockSize || len(b)%aes.BlockSize != 0 {
		return nil, ErrIntegrity
	}
	iv, text := b[:aes.BlockSize], b[aes.BlockSize:]
	cipher.NewCBCDecrypter(k.block(), iv).CryptBlocks(text, text)
	pad := int(text[len(text)-1])
	if pad+1 > len(text) {
		return nil, ErrIntegrity
	}
	end := len(text) - 1 - pad
	return text[:end:end], nil
}

// AppendSealed appends an encrypted and authenticated packet to b, which may
// hold an RMCP header that the code does not cover.
func (k *Keys) AppendSealed(b []byte, t PayloadType, sessionID, sequence uint32, payload []byte) []byte {
	start := len(b)
	pad := (aes.BlockSize - (len(payload)+1)%aes.BlockSize) % aes.BlockSize
	length := aes.BlockSize + len(payload) + pad + 1
	b = appendHeader(b, encryptedBit|authenticatedBit|byte(t), sessionID, sequence, length)
	var iv [aes.BlockSize]byte
	_, _ = rand.Read(iv[:]) // Never fails (crypto/rand).
	b = append(b, iv[:]...)
	text := len(b)
	b = append(b, payload...)
	for i := range pad {
		b = append(b, byte(i+1))
	}
	b = append(b, byte(pad))
	cipher.NewCBCEncrypter(k.block(), iv[:]).CryptBlocks(b[text:], b[text:])
	fill := (4 - (len(b)-start+2)%4) % 4
	for range fill {
		b = append(b, padByte)
	}
	b = append(b, byte(fill), nextHeader)
	return append(b, k.suite.mac(k.integrity, b[start:])[:k.suite.shortSize]...)
}

func (k *Keys) block() cipher.Block {
	block, err := aes.NewCipher(k.encryption[:])
	if err != nil {
		panic("rmcpplus: a 16 byte key is always an AES key: " + err.Error())
	}
	return block
}
