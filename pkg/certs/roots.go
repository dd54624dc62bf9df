// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// Roots are the CA certificates of a PEM file that is read again when it
// changes, so that a rotated CA counts without a restart: for the next handshake,
// while connections that stand go on.
type Roots struct {
	file string

	mu      sync.Mutex
	pool    *x509.CertPool
	read    os.FileInfo
	checked time.Time
}

// LoadRoots reads a file of CA certificates.
func LoadRoots(file string) (*Roots, error) {
	r := &Roots{file: file}
	if err := r.load(); err != nil {
		return nil, err
	}
	r.checked = time.Now()
	return r, nil
}

// Pool returns the certificates as the file has them, looking at it every 5 s at
// most. When it can't be read any more, or has no certificate, it returns those
// that it had. The pool is not to be changed.
func (r *Roots) Pool() *x509.CertPool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.checked) >= checkInterval {
		r.checked = now
		_ = r.load() // What there was goes on to count.
	}
	return r.pool
}

// load reads the file if it has changed.
func (r *Roots) load() error {
	info, err := os.Stat(r.file)
	if err != nil {
		return fmt.Errorf("read CA certificates: %w", err)
	}
	if r.pool != nil && same(info, r.read) {
		return nil
	}
	text, err := os.ReadFile(r.file)
	if err != nil {
		return fmt.Errorf("read CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("read CA certificates: %s holds no PEM certificate", r.file)
	}
	r.pool, r.read = pool, info
	return nil
}
