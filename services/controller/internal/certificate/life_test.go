// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const day = 24 * time.Hour

// world is what servers and clients see of the objects, each with a delay of its
// own.
type world struct {
	*testing.T
	*memory
	names map[string]string // a name of each service, by Secret
	// leaves that BMCs had, and when.
	leaves []leafAt

	checks int
}

type leafAt struct {
	at   time.Time
	leaf *Leaf
}

const (
	bmcUID  = "6f2d9c1e-1f0a-4c70-9d9c-0a8f4a3f7a11"
	bmcName = "vm-virtbmc.lab.svc"
)

// verify fails when a client that sees the bundle of clientDelay ago can't verify
// what a server serves that sees its certificate of serverDelay ago.
func (w *world) verify(what, name string, chain []byte, clientDelay time.Duration) {
	w.Helper()
	now := time.Now()
	configMap := w.bundleBefore(now.Add(-clientDelay))
	if configMap == nil || len(chain) == 0 {
		return // It is not there yet.
	}
	block, _ := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		w.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(configMap.Data[KeyBundle]))
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
		w.Errorf("%s: %s, client's bundle of %v ago: %v", now.Format(time.RFC3339), what, clientDelay, err)
	}
	w.checks++
}

// look makes all clients connect to all servers. The caller holds the lock.
func (w *world) look() {
	w.Helper()
	now := time.Now()
	for secret, name := range w.names {
		for _, serverDelay := range []time.Duration{0, Propagation - time.Second} {
			s := w.secretBefore(secret, now.Add(-serverDelay))
			if s == nil {
				continue
			}
			for _, clientDelay := range []time.Duration{0, Propagation - time.Second} {
				w.verify(fmt.Sprintf("%s of %v ago", secret, serverDelay), name, s.Data[corev1.TLSCertKey], clientDelay)
			}
		}
	}
	// Frontends keep what they were told last, while no controller is there; people
	// hand the bundle on by hand.
	for _, serverDelay := range []time.Duration{0, time.Minute, 29 * day} {
		var last *Leaf
		for _, l := range w.leaves {
			if !l.at.After(now.Add(-serverDelay)) {
				last = l.leaf
			}
		}
		if last == nil {
			continue
		}
		for _, clientDelay := range []time.Duration{0, Propagation - time.Second, DefaultLifetimes.Lead - time.Hour} {
			w.verify(fmt.Sprintf("BMC's leaf of %v ago", serverDelay), bmcName, last.ChainPEM, clientDelay)
		}
	}
}

func (w *world) cas() *state {
	w.Helper()
	secret := w.secretNow(caSecret)
	if secret == nil {
		return nil
	}
	var s state
	if err := json.Unmarshal(secret.Data[keyState], &s); err != nil {
		w.Fatal(err)
	}
	return &s
}

// Over years, with controllers that come and go, an API server that fails, and
// clients and servers that see changes late, each client can verify each server
// at each moment.
func TestKeeper_life_clientsVerifyServersAlways(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { live(t, seed) })
		})
	}
}

func live(t *testing.T, seed uint64) {
	w := &world{T: t, memory: newMemory(seed, 50), names: map[string]string{
		ownSecret: "virtbmc-controller.kubevirtbmc.svc", "virtbmc-power-tls": "10.0.0.1",
	}}
	var late sync.WaitGroup
	signers := map[string]bool{}
	w.written = func() {
		w.look()
		for _, delay := range []time.Duration{time.Second, Propagation - 2*time.Second, Propagation + time.Second} {
			late.Go(func() {
				time.Sleep(delay)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.look()
			})
		}
	}
	random := rand.New(rand.NewPCG(seed, 2))
	end := time.Now().Add(4 * 365 * day)
	var keepers sync.WaitGroup
	for range 2 {
		within := func(d time.Duration) time.Duration { return time.Duration(1 + random.Int64N(int64(d))) }
		start, up, down := within(time.Millisecond), within(300*day), within(25*day)
		keepers.Go(func() {
			for time.Sleep(start); time.Now().Before(end); time.Sleep(down) {
				ctx, cancel := context.WithTimeout(t.Context(), min(up, time.Until(end)))
				k := keeperOn(t, w.memory)
				k.OnChange(func() {
					if leaf, err := k.Leaf(bmcUID, []string{bmcName}); err == nil {
						w.mu.Lock()
						w.leaves = append(w.leaves, leafAt{time.Now(), leaf})
						w.mu.Unlock()
					}
				})
				var running sync.WaitGroup
				running.Go(func() {
					if err := k.Run(ctx); err != nil {
						t.Error(err)
					}
				})
				// It is the leader too, and tells frontends of the BMC's leaf.
				running.Go(func() {
					for ctx.Err() == nil {
						leaf, err := k.Leaf(bmcUID, []string{bmcName})
						if err == nil {
							w.mu.Lock()
							w.leaves = append(w.leaves, leafAt{time.Now(), leaf})
							w.mu.Unlock()
						}
						sleep(ctx, day)
					}
				})
				running.Wait()
				cancel()
			}
		})
	}
	for time.Now().Before(end) {
		time.Sleep(2 * day)
		w.mu.Lock()
		w.look()
		if s := w.cas(); s != nil && s.current != nil {
			signers[string(s.current.certificate.Raw)] = true
			if n := len(s.certificates()); n > 3 {
				t.Errorf("%d CAs are trusted", n)
			}
			for _, m := range s.former {
				if m.authority != nil {
					t.Error("a former CA has its key")
				}
			}
		}
		w.mu.Unlock()
	}
	keepers.Wait()
	late.Wait()
	if len(signers) < 3 {
		t.Errorf("%d CAs have signed, want a rotation each 17 months", len(signers))
	}
	if s := w.cas(); len(s.former) > 1 {
		t.Errorf("%d former CAs are still trusted", len(s.former))
	}
	t.Logf("%d connections, %d CAs, %d writes", w.checks, len(signers), w.version)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
