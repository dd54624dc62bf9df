// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// keep looks at the objects once, and returns when they are to be looked at
// again.
func (w *world) keep(k *Keeper) time.Time {
	w.Helper()
	next, err := k.keep(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return next
}

// stage is where the life of CAs is: which signs, which is to sign, by the letters
// of the order in which they appeared, and how many are former.
type stage struct {
	current, next string
	former        int
}

// step is a time after the start, what happens then, if anything, and the stage
// afterwards.
type step struct {
	at     time.Duration
	happen func(*world)
	want   stage
}

// stages names CAs by the order in which they appear.
type stages struct{ seen []string }

func (s *stages) name(m *member) string {
	if m == nil {
		return ""
	}
	raw := string(m.certificate.Raw)
	for i, one := range s.seen {
		if one == raw {
			return string(rune('A' + i))
		}
	}
	s.seen = append(s.seen, raw)
	return string(rune('A' + len(s.seen) - 1))
}

func (s *stages) of(cas *state) stage {
	return stage{s.name(cas.current), s.name(cas.next), len(cas.former)}
}

func TestKeeper_stages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string][]step{
		"a life": {
			{0, nil, stage{"A", "", 0}},
			{486 * day, nil, stage{"A", "", 0}},
			{487 * day, nil, stage{"A", "B", 0}},
			{516 * day, nil, stage{"A", "B", 0}},
			{517 * day, nil, stage{"B", "", 1}},
			{606 * day, nil, stage{"B", "", 1}},
			{608 * day, nil, stage{"B", "", 0}},
		},
		"no controller for long": {
			{0, nil, stage{"A", "", 0}},
			{720 * day, nil, stage{"A", "B", 0}},
			{720*day + 4*time.Minute, nil, stage{"A", "B", 0}},
			{720*day + 6*time.Minute, nil, stage{"B", "", 1}},
			{731 * day, nil, stage{"B", "", 0}},
		},
		"no controller for too long": {
			{0, nil, stage{"A", "", 0}},
			{800 * day, nil, stage{"B", "", 0}},
		},
		"the CA's Secret is deleted": {
			{0, nil, stage{"A", "", 0}},
			{day, func(w *world) { w.deleteSecret(caSecret) }, stage{"", "B", 1}},
			{day + 4*time.Minute, nil, stage{"", "B", 1}},
			{day + 6*time.Minute, nil, stage{"B", "", 1}},
			{92 * day, nil, stage{"B", "", 0}},
		},
		"all is deleted": {
			{0, nil, stage{"A", "", 0}},
			{day, func(w *world) { w.deleteSecret(caSecret); w.deleteBundle() }, stage{"B", "", 0}},
		},
		"the ConfigMap is deleted before the next CA signs": {
			{0, nil, stage{"A", "", 0}},
			{487 * day, nil, stage{"A", "B", 0}},
			{516 * day, func(w *world) { w.deleteBundle() }, stage{"A", "B", 0}},
			{517 * day, nil, stage{"A", "B", 0}},
			{547 * day, nil, stage{"B", "", 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{T: t, memory: newMemory(1, 0)}
				k := keeperOn(t, w.memory)
				var names stages
				begin := time.Now()
				for _, step := range test {
					time.Sleep(time.Until(begin.Add(step.at)))
					if step.happen != nil {
						step.happen(w)
					}
					next := w.keep(k)
					if got := names.of(w.cas()); got != step.want {
						t.Errorf("%v: %+v, want %+v", step.at, got, step.want)
					}
					if !next.After(time.Now()) {
						t.Errorf("%v: next look at %v, which is not later", step.at, next)
					}
					if got, want := string(k.Bundle()), w.bundleBefore(time.Now()).Data[KeyBundle]; got != want {
						t.Errorf("%v: the bundle is not what is published", step.at)
					}
				}
			})
		})
	}
}

// A service's certificate is made, kept, and made anew when its names, its issuer
// or its time call for it.
func TestKeeper_services(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, memory: newMemory(1, 0)}
		k := keeperOn(t, w.memory)
		if _, err := k.Certificate(); err == nil {
			t.Error("there is a certificate before there is a CA")
		}
		w.keep(k)
		first := w.secretNow("virtbmc-power-tls")
		if first.Type != corev1.SecretTypeTLS || len(first.Data) != 3 {
			t.Errorf("Secret of type %s with %d keys", first.Type, len(first.Data))
		}
		same := func(when string, want bool) {
			t.Helper()
			w.keep(k)
			if got := bytes.Equal(w.secretNow("virtbmc-power-tls").Data[corev1.TLSCertKey], first.Data[corev1.TLSCertKey]); got != want {
				t.Errorf("%s: the same certificate: %v, want %v", when, got, want)
			}
			first = w.secretNow("virtbmc-power-tls")
		}
		same("at once", true)
		time.Sleep(59 * day)
		same("before two thirds of its life", true)
		time.Sleep(2 * day)
		same("after two thirds of its life", false)
		k = keeperOn(t, w.memory)
		same("with another controller", true)
		k.config.Services[1].Names = append(k.config.Services[1].Names, "virtbmc-power-headless.kubevirtbmc.svc")
		same("with another name", false)
		broken := first.DeepCopy()
		broken.Data[corev1.TLSPrivateKeyKey] = []byte("no key")
		if _, err := w.putSecret(t.Context(), broken); err != nil {
			t.Fatal(err)
		}
		same("with a broken key", false)
		w.deleteSecret("virtbmc-power-tls")
		same("deleted", false)
		w.deleteSecret(caSecret)
		same("while the CA's key is lost", true)
		time.Sleep(Propagation + time.Minute)
		same("with the next CA", false)

		own, err := k.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(k.Bundle())
		if _, err := own.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "virtbmc-controller.kubevirtbmc.svc"}); err != nil {
			t.Errorf("the controller's own certificate: %v", err)
		}
	})
}

func TestKeeper_brokenSecret_isLeftAlone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := &world{T: t, memory: newMemory(1, 0)}
	k := keeperOn(t, w.memory, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	w.keep(k)
	leaf, err := k.Leaf(bmcUID, []string{bmcName})
	if err != nil {
		t.Fatal(err)
	}
	broken := w.secretNow(caSecret).DeepCopy()
	broken.Data[keyState] = bytes.ReplaceAll(broken.Data[keyState], []byte("MIG"), []byte("MIX"))
	if broken, err = w.putSecret(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	_, err = k.keep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "delete the Secret") {
		t.Errorf("a broken Secret: %v", err)
	}
	if err != nil && (strings.Contains(err.Error(), "MIX") || strings.Contains(err.Error(), "BEGIN")) {
		t.Errorf("the error has what the Secret has: %v", err)
	}
	if got := w.secretNow(caSecret); got.ResourceVersion != broken.ResourceVersion {
		t.Error("the Secret was overwritten")
	}
	again, err := k.Leaf(bmcUID, []string{bmcName})
	if err != nil || !bytes.Equal(again.ChainPEM, leaf.ChainPEM) {
		t.Errorf("what was known does not count any more: %v", err)
	}
	for _, secret := range []string{string(leaf.KeyPEM), "PRIVATE KEY", string(broken.Data[keyState])} {
		if strings.Contains(log.String(), secret) {
			t.Error("the log has a key")
		}
	}
}

// Who waits for the first look does not wait for somebody to mend a Secret.
func TestKeeper_Known_withBrokenSecret(t *testing.T) {
	t.Parallel()
	w := &world{T: t, memory: newMemory(1, 0)}
	broken := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: caSecret}, Data: map[string][]byte{keyState: []byte("{")}}
	if _, err := w.putSecret(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	k := keeperOn(t, w.memory)
	changes := 0
	k.OnChange(func() { changes++ })
	for range 2 {
		if _, err := k.keep(t.Context()); err == nil {
			t.Error("a broken Secret is no error")
		}
	}
	select {
	case <-k.Known():
	default:
		t.Error("it is not known that the Secret can't be read")
	}
	if _, err := k.Leaf(bmcUID, []string{bmcName}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "delete the Secret") {
		t.Errorf("leaf without a CA that can be read: %v", err)
	}
	if changes != 1 {
		t.Errorf("%d changes were told of, want 1", changes)
	}
	w.deleteSecret(caSecret)
	w.keep(k)
	if _, err := k.Leaf(bmcUID, []string{bmcName}); err != nil {
		t.Errorf("leaf after the Secret was deleted: %v", err)
	}
}

// A controller whose clock is behind leaves a CA alone that is not valid yet, says
// so, and signs when the time has come.
func TestKeeper_clockBehind(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]time.Duration{"a little": time.Minute, "hours": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{T: t, memory: newMemory(1, 0)}
				var none *state
				ahead := time.Now().Add(behind)
				made, err := none.advance(ahead, DefaultLifetimes, nil, newAuthority)
				if err != nil {
					t.Fatal(err)
				}
				made = made.publish(ahead, nil)
				text, err := made.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.putSecret(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: caSecret}, Data: map[string][]byte{keyState: text}}); err != nil {
					t.Fatal(err)
				}
				ours := encode(made.current.certificate)
				if err := w.putConfigMap(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "virtbmc-ca-bundle"}, Data: map[string]string{KeyBundle: string(ours)}}); err != nil {
					t.Fatal(err)
				}
				k := keeperOn(t, w.memory)
				early := behind > maxBackdating
				_, err = k.keep(t.Context())
				if got := err != nil && strings.Contains(err.Error(), "clock"); got != early || err != nil && !got {
					t.Errorf("a clock that is %v behind: %v", behind, err)
				}
				if _, err := k.Leaf(bmcUID, []string{bmcName}); errors.Is(err, ErrPending) != early || err != nil && !early {
					t.Errorf("leaf by a clock that is %v behind: %v", behind, err)
				}
				time.Sleep(behind)
				w.keep(k)
				if _, err := k.Leaf(bmcUID, []string{bmcName}); err != nil {
					t.Errorf("leaf when the CA is valid: %v", err)
				}
				if !bytes.Equal(k.Bundle(), ours) || !bytes.Equal(w.secretNow(caSecret).Data[keyState], text) {
					t.Error("the CA is another")
				}
			})
		})
	}
}

func TestKeeper_OnChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, memory: newMemory(1, 0)}
		k := keeperOn(t, w.memory)
		changes := 0
		k.OnChange(func() { changes++ })
		want := func(when string, n int) {
			t.Helper()
			w.keep(k)
			if changes != n {
				t.Errorf("%s: %d changes, want %d", when, changes, n)
			}
			changes = 0
		}
		select {
		case <-k.Known():
			t.Error("known before the first look")
		default:
		}
		want("at first", 1)
		<-k.Known()
		want("without a change", 0)
		time.Sleep(61 * day)
		want("with a renewed certificate", 1)
		time.Sleep(487*day - 61*day)
		want("with the next CA", 1)
		time.Sleep(30 * day)
		want("when it signs", 1)
	})
}

func TestKeeper_certManager(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, memory: newMemory(1, 0)}
		k := keeperOn(t, w.memory, func(c *Config) { c.Issuer = CertManager })
		w.keep(k)
		<-k.Known()
		if _, err := k.Leaf(bmcUID, []string{bmcName}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("leaf without a CA: %v", err)
		}
		if len(w.secrets)+len(w.bundles) != 0 {
			t.Error("the controller has made objects that are cert-manager's")
		}
		root := func() *Authority {
			a, err := newAuthority(time.Now(), 365*day)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		put := func(name string, chain, key, ca []byte) {
			t.Helper()
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
				corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key, keyCA: ca,
			}}
			if has := w.secretNow(name); has != nil {
				secret.ResourceVersion = has.ResourceVersion
			}
			if _, err := w.putSecret(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
		ca := root()
		leaf, err := ca.issue([]string{"virtbmc-controller.kubevirtbmc.svc"}, 90*day, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		put(ownSecret, leaf.ChainPEM, leaf.KeyPEM, encode(ca.certificate))
		put(caSecret, leaf.ChainPEM, leaf.KeyPEM, encode(ca.certificate))
		w.keep(k)
		if _, err := k.Leaf(bmcUID, []string{bmcName}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "not that of a CA") {
			t.Errorf("leaf of a Certificate without isCA: %v", err)
		}
		put(caSecret, encode(ca.certificate), ca.keyPEM(), encode(ca.certificate))
		w.keep(k)
		verify := func(when string) {
			t.Helper()
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM([]byte(w.bundleBefore(time.Now()).Data[KeyBundle]))
			own, err := k.Certificate()
			if err != nil {
				t.Fatal(err)
			}
			bmc, err := k.Leaf(bmcUID, []string{bmcName})
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(bmc.ChainPEM, bmc.KeyPEM)
			if err != nil {
				t.Fatal(err)
			}
			for name, leaf := range map[string]*x509.Certificate{"virtbmc-controller.kubevirtbmc.svc": own.Leaf, bmcName: pair.Leaf} {
				if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
					t.Errorf("%s: %s: %v", when, name, err)
				}
			}
		}
		verify("with cert-manager's CA")
		old := ca
		ca = root()
		put(caSecret, encode(ca.certificate), ca.keyPEM(), encode(ca.certificate))
		w.keep(k)
		verify("with a new CA, and an old leaf of the controller's")
		if got := parseBundle(k.Bundle()); len(got) != 2 || !contains(got, old.certificate) {
			t.Errorf("%d CAs are trusted, want both", len(got))
		}
		time.Sleep(366 * day)
		w.keep(k)
		if _, err := k.Leaf(bmcUID, []string{bmcName}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "not valid now") {
			t.Errorf("leaf of a CA that has expired: %v", err)
		}
	})
}

// expiries are the values of the metric, by certificate.
func expiries(t *testing.T, metrics prometheus.Gatherer) map[string]int64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]int64{}
	for _, family := range families {
		if family.GetName() != "vbmc_controller_certificate_expiry_timestamp_seconds" {
			continue
		}
		for _, one := range family.GetMetric() {
			values[one.GetLabel()[0].GetValue()] = int64(one.GetGauge().GetValue())
		}
	}
	return values
}

// TestKeeper_expiry: the metric follows certificates that go, and come again.
func TestKeeper_expiry(t *testing.T) {
	t.Parallel()
	for name, issuer := range map[string]Issuer{"internal": Internal, "cert-manager": CertManager} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &world{T: t, memory: newMemory(1, 0)}
				metrics := prometheus.NewRegistry()
				k := keeperOn(t, w.memory, func(c *Config) { c.Issuer, c.Metrics = issuer, metrics })
				want := func(when string, want map[string]int64) {
					t.Helper()
					w.keep(k)
					if diff := cmp.Diff(want, expiries(t, metrics)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", when, diff)
					}
				}
				ca, err := newAuthority(time.Now(), DefaultLifetimes.CA)
				if err != nil {
					t.Fatal(err)
				}
				leaf, err := ca.issue([]string{"virtbmc-controller.kubevirtbmc.svc"}, 90*day, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				put := func(name string, chain, key []byte) {
					t.Helper()
					secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
						corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key,
					}}
					if has := w.secretNow(name); has != nil {
						secret.ResourceVersion = has.ResourceVersion
					}
					if _, err := w.putSecret(t.Context(), secret); err != nil {
						t.Fatal(err)
					}
				}
				caExpiry, leafExpiry := time.Now().Add(DefaultLifetimes.CA).Unix(), leaf.NotAfter.Unix()
				if issuer == Internal {
					want("all are made", map[string]int64{"ca": caExpiry, ownSecret: leafExpiry, "virtbmc-power-tls": leafExpiry})
					// The key is lost, and clients have the CA: no leaf can be made for now.
					w.deleteSecret(caSecret)
					w.deleteSecret("virtbmc-power-tls")
					want("CA and leaf are gone", map[string]int64{"ca-next": caExpiry, ownSecret: leafExpiry})
					return
				}
				want("there is nothing yet", map[string]int64{})
				put(caSecret, encode(ca.certificate), ca.keyPEM())
				put(ownSecret, leaf.ChainPEM, leaf.KeyPEM)
				want("there are both", map[string]int64{"ca": ca.certificate.NotAfter.Unix(), ownSecret: leafExpiry})
				w.deleteSecret(ownSecret)
				want("the leaf is gone", map[string]int64{"ca": ca.certificate.NotAfter.Unix()})
				put(ownSecret, leaf.ChainPEM, leaf.KeyPEM)
				put(caSecret, leaf.ChainPEM, leaf.KeyPEM)
				want("the CA is none", map[string]int64{ownSecret: leafExpiry})
				put(caSecret, encode(ca.certificate), ca.keyPEM())
				want("the CA is one again", map[string]int64{"ca": ca.certificate.NotAfter.Unix(), ownSecret: leafExpiry})
				time.Sleep(DefaultLifetimes.CA + day)
				want("what has expired has still done so", map[string]int64{"ca": ca.certificate.NotAfter.Unix(), ownSecret: leafExpiry})
				w.deleteSecret(caSecret)
				w.deleteSecret(ownSecret)
				want("both are gone", map[string]int64{})
			})
		})
	}
}

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Config){
		"another issuer":          func(c *Config) { c.Issuer = "somebody" },
		"short leaves":            func(c *Config) { c.Lifetimes.Leaf = time.Second },
		"no lead":                 func(c *Config) { c.Lifetimes.Lead = 0 },
		"a short CA":              func(c *Config) { c.Lifetimes.CA = 300 * day },
		"no Secret of its own":    func(c *Config) { c.Own = "other" },
		"metrics that are there":  func(c *Config) { _ = newMetrics().register(c.Metrics) },
		"a lead that is negative": func(c *Config) { c.Lifetimes.Lead = -time.Second },
	} {
		config := testConfig()
		edit(&config)
		if _, err := newKeeper(config, newMemory(1, 0)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := New(testConfig()); err == nil {
		t.Error("no cluster is accepted")
	}
}
