// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/certs"
	"kubevirtbmc.dev/pkg/logkey"
)

// lookInterval is how often files are looked at.
const lookInterval = 10 * time.Second

// Files is the identity in PEM files that somebody else renews, as cert-manager.
type Files struct {
	certificate *certs.Files
	caFile      string
	log         *slog.Logger
	changed     []func()

	mu     sync.Mutex
	bundle []byte
}

var _ Identity = (*Files)(nil)

// LoadFiles reads the files of a certificate chain, its key and the issuers.
func LoadFiles(certFile, keyFile, caFile string, log *slog.Logger) (*Files, error) {
	certificate, err := certs.LoadFiles(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	f := &Files{certificate: certificate, caFile: caFile, log: log}
	if f.bundle, err = readBundle(caFile); err != nil {
		return nil, err
	}
	return f, nil
}

func readBundle(path string) ([]byte, error) {
	bundle, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read CA certificates: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("read CA certificates: %s has none", path)
	}
	return bundle, nil
}

// Certificate implements Identity.
func (f *Files) Certificate() (*tls.Certificate, error) { return f.certificate.Certificate() }

// Bundle implements Identity.
func (f *Files) Bundle() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bundle
}

// OnChange implements Identity.
func (f *Files) OnChange(changed func()) { f.changed = append(f.changed, changed) }

// Run follows the file of the issuers until the context ends. While it can't be
// read, what was read before counts.
func (f *Files) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	var trouble string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		bundle, err := readBundle(f.caFile)
		if err != nil {
			if err.Error() != trouble {
				trouble = err.Error()
				f.log.WarnContext(ctx, "can't read the webhooks' CA", logkey.Error, trouble)
			}
			continue
		}
		trouble = ""
		f.mu.Lock()
		same := bytes.Equal(bundle, f.bundle)
		f.bundle = bundle
		f.mu.Unlock()
		if same {
			continue
		}
		for _, changed := range f.changed {
			changed()
		}
	}
}
