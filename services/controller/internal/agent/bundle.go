// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"time"
)

// lookInterval is how often the CA certificates are looked at.
const lookInterval = 10 * time.Second

// ca returns the CA certificates that agents trust, in PEM.
func (o *Options) ca() ([]byte, error) {
	if o.CAFile != "" {
		return os.ReadFile(o.CAFile)
	}
	if o.Bundle != nil {
		if bundle := o.Bundle(); len(bundle) > 0 {
			return bundle, nil
		}
	}
	return nil, errors.New("there are none yet")
}

// WatchCA calls changed when the CA certificates are others than before, until the
// context ends. While they can't be read nothing has changed.
func (o *Options) WatchCA(ctx context.Context, changed func()) {
	o.watchCA(ctx, lookInterval, changed)
}

func (o *Options) watchCA(ctx context.Context, interval time.Duration, changed func()) {
	last, _ := o.ca() // Who needs them says what is wrong.
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if now, err := o.ca(); err == nil && !bytes.Equal(now, last) {
			last = now
			changed()
		}
	}
}
