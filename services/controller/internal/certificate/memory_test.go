// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memory is a store with the API server's rules for concurrent writers, which
// remembers what there was and when. It may fail.
type memory struct {
	mu      sync.Mutex
	version int
	secrets map[string][]secretAt
	bundles []bundleAt
	// fail is how many of a thousand requests fail, half of the writes among them
	// after they were carried out.
	fail   int
	random *rand.Rand
	// written is called after each write.
	written func()
}

type secretAt struct {
	at     time.Time
	secret *corev1.Secret // nil: deleted
}

type bundleAt struct {
	at        time.Time
	configMap *corev1.ConfigMap // nil: deleted
}

func newMemory(seed uint64, fail int) *memory {
	return &memory{secrets: map[string][]secretAt{}, fail: fail, random: rand.New(rand.NewPCG(seed, 1)), written: func() {}}
}

var errInjected = errors.New("injected failure")

func (m *memory) fails() bool { return m.random.IntN(1000) < m.fail }

func (m *memory) secretNow(name string) *corev1.Secret { return m.secretBefore(name, time.Now()) }

// secretBefore is the Secret as it was at a time.
func (m *memory) secretBefore(name string, at time.Time) *corev1.Secret {
	var last *corev1.Secret
	for _, s := range m.secrets[name] {
		if !s.at.After(at) {
			last = s.secret
		}
	}
	return last
}

func (m *memory) bundleBefore(at time.Time) *corev1.ConfigMap {
	var last *corev1.ConfigMap
	for _, b := range m.bundles {
		if !b.at.After(at) {
			last = b.configMap
		}
	}
	return last
}

func (m *memory) secret(_ context.Context, name string) (*corev1.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails() {
		return nil, errInjected
	}
	return m.secretNow(name).DeepCopy(), nil
}

func (m *memory) configMap(context.Context, string) (*corev1.ConfigMap, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails() {
		return nil, errInjected
	}
	return m.bundleBefore(time.Now()).DeepCopy(), nil
}

func (m *memory) check(has, is *metav1.ObjectMeta) error {
	resource := corev1.Resource("objects")
	switch {
	case is.ResourceVersion == "" && has != nil:
		return apierrors.NewAlreadyExists(resource, is.Name)
	case is.ResourceVersion != "" && has == nil:
		return apierrors.NewNotFound(resource, is.Name)
	case has != nil && is.ResourceVersion != has.ResourceVersion:
		return apierrors.NewConflict(resource, is.Name, errors.New("it was changed"))
	}
	m.version++
	is.ResourceVersion = strconv.Itoa(m.version)
	return nil
}

func (m *memory) putSecret(_ context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fails := m.fails()
	if fails && m.random.IntN(2) == 0 {
		return nil, errInjected
	}
	var has *metav1.ObjectMeta
	if s := m.secretNow(secret.Name); s != nil {
		has = &s.ObjectMeta
	}
	secret = secret.DeepCopy()
	if err := m.check(has, &secret.ObjectMeta); err != nil {
		return nil, err
	}
	m.secrets[secret.Name] = append(m.secrets[secret.Name], secretAt{time.Now(), secret})
	m.written()
	if fails {
		return nil, errInjected
	}
	return secret.DeepCopy(), nil
}

func (m *memory) putConfigMap(_ context.Context, configMap *corev1.ConfigMap) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fails := m.fails()
	if fails && m.random.IntN(2) == 0 {
		return errInjected
	}
	var has *metav1.ObjectMeta
	if c := m.bundleBefore(time.Now()); c != nil {
		has = &c.ObjectMeta
	}
	configMap = configMap.DeepCopy()
	if err := m.check(has, &configMap.ObjectMeta); err != nil {
		return err
	}
	m.bundles = append(m.bundles, bundleAt{time.Now(), configMap})
	m.written()
	if fails {
		return errInjected
	}
	return nil
}

func (m *memory) deleteSecret(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.secrets[name] = append(m.secrets[name], secretAt{at: time.Now()})
}

func (m *memory) deleteBundle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bundles = append(m.bundles, bundleAt{at: time.Now()})
}

const (
	caSecret  = "virtbmc-ca"
	ownSecret = "virtbmc-controller-tls"
)

func testConfig() Config {
	return Config{
		Namespace: "kubevirtbmc", Issuer: Internal, CASecret: caSecret, Bundle: "virtbmc-ca-bundle", Own: ownSecret,
		Services: []Service{
			{Secret: ownSecret, Names: []string{"virtbmc-controller.kubevirtbmc.svc"}},
			{Secret: "virtbmc-power-tls", Names: []string{"virtbmc-power.kubevirtbmc.svc", "10.0.0.1"}},
		},
		Lifetimes: DefaultLifetimes, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	}
}

func keeperOn(t *testing.T, m *memory, edit ...func(*Config)) *Keeper {
	t.Helper()
	config := testConfig()
	for _, e := range edit {
		e(&config)
	}
	k, err := newKeeper(config, m)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
