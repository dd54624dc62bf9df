// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// keyBytes is the length of a key: AES-256.
const keyBytes = 32

// purpose is authenticated along, so that what the key has sealed for something
// else is no token.
var purpose = []byte("kubevirtbmc media relay 1")

// errToken says that a token was not made with one of the keys.
var errToken = errors.New("token is not valid")

// Sealer turns what the relay needs to know of an image into the path of a URL and
// back. Only those who have the key can read it, so image server, credentials and
// size need to be kept nowhere, and any replica at any time can serve the URL.
type Sealer struct {
	// The first one seals, each opens.
	keys []cipher.AEAD
}

// sealed is what a token holds.
type sealed struct {
	URL      string `json:"u"`
	Username string `json:"n,omitempty"`
	Password string `json:"p,omitempty"`
	// Insecure, Namespace and ConfigMap are a kubevirt.Trust.
	Insecure  bool   `json:"i,omitempty"`
	Namespace string `json:"s,omitempty"`
	ConfigMap string `json:"c,omitempty"`
	// Length that the image had, and whether its server serves parts.
	Length int64 `json:"l"`
	Ranges bool  `json:"r,omitempty"`
}

// NewSealer makes a sealer with keys of 32 bytes, the one to seal with first.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("relay has no key")
	}
	s := &Sealer{}
	for _, key := range keys {
		if len(key) != keyBytes {
			return nil, fmt.Errorf("key of the relay has %d bytes, want %d", len(key), keyBytes)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("key of the relay: %w", err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("key of the relay: %w", err)
		}
		s.keys = append(s.keys, aead)
	}
	return s, nil
}

// LoadSealer reads keys from a file: base64, one a line, the one to seal with
// first.
func LoadSealer(file string) (*Sealer, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read keys of the relay: %w", err)
	}
	var keys [][]byte
	for line := range bytes.FieldsSeq(content) {
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if err != nil {
			// The decoder's error tells where, not what.
			return nil, fmt.Errorf("keys of the relay in %s: %w", file, err)
		}
		keys = append(keys, key)
	}
	return NewSealer(keys...)
}

// NewKey makes a key for one process.
func NewKey() []byte {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // It never fails.
	return key
}

// seal makes a token.
func (s *Sealer) seal(image sealed) (string, error) {
	plain, err := json.Marshal(image) //nolint:gosec // Encrypted at once.
	if err != nil {
		return "", fmt.Errorf("seal image: %w", err)
	}
	//nolint:gosec // The nonce is random, and the cipher's own affair.
	return base64.RawURLEncoding.EncodeToString(s.keys[0].Seal(nil, nil, plain, purpose)), nil
}

// open reads a token.
func (s *Sealer) open(token string) (sealed, error) {
	box, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return sealed{}, errToken
	}
	for _, key := range s.keys {
		plain, err := key.Open(nil, nil, box, purpose)
		if err != nil {
			continue
		}
		var image sealed
		if err := json.Unmarshal(plain, &image); err != nil {
			return sealed{}, errToken
		}
		return image, nil
	}
	return sealed{}, errToken
}
