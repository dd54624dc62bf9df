// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// checkInterval is how often a Files looks for new files at the most.
const checkInterval = 5 * time.Second

// Files is a certificate in two PEM files that are read again when they change,
// so that a rotated certificate counts without a restart.
type Files struct {
	certFile, keyFile string

	mu          sync.Mutex
	certificate *tls.Certificate
	read        [2]os.FileInfo // of certFile and keyFile
	checked     time.Time
}

// LoadFiles reads a certificate chain and its key.
func LoadFiles(certFile, keyFile string) (*Files, error) {
	f := &Files{certFile: certFile, keyFile: keyFile}
	if _, err := f.Certificate(); err != nil {
		return nil, err
	}
	return f, nil
}

// Certificate returns the certificate as the files have it. When they can't be
// read any more, as in the middle of a rotation, it returns the earlier one.
func (f *Files) Certificate() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.certificate != nil && now.Sub(f.checked) < checkInterval {
		return f.certificate, nil
	}
	f.checked = now
	var is [2]os.FileInfo
	var err error
	for i, file := range []string{f.certFile, f.keyFile} {
		if err == nil {
			is[i], err = os.Stat(file)
		}
	}
	if err == nil && f.certificate != nil && same(is[0], f.read[0]) && same(is[1], f.read[1]) {
		return f.certificate, nil
	}
	var certificate tls.Certificate
	if err == nil {
		certificate, err = tls.LoadX509KeyPair(f.certFile, f.keyFile)
	}
	if err != nil {
		if f.certificate != nil {
			return f.certificate, nil
		}
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	f.certificate, f.read = &certificate, is
	return f.certificate, nil
}

// ServerTLS returns a TLS 1.2 or newer server configuration with the
// certificate that get returns at each handshake.
func ServerTLS(get func() (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return get() },
	}
}

// same tells whether a file is as it was when it was read: neither written nor
// replaced, as kubelet does.
func same(is, was os.FileInfo) bool {
	return os.SameFile(is, was) && is.ModTime().Equal(was.ModTime()) && is.Size() == was.Size()
}
