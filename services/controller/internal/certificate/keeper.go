// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/events"

	"kubevirtbmc.dev/pkg/logkey"
)

// Keys of the objects.
const (
	// KeyBundle of the ConfigMap is the CA certificates to trust, in PEM.
	KeyBundle = "ca.crt"
	// keyState of the CA's Secret is its keys and past, in JSON.
	keyState = "authorities.json"
	// keyCA of a service's Secret is its issuer, as cert-manager has it.
	keyCA = "ca.crt"
)

// managedBy marks what the controller has made.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "kubevirtbmc-controller"
)

const (
	// lookInterval is how often the objects are looked at without a reason.
	lookInterval = 24 * time.Hour
	// Time between attempts after a failure.
	firstRetry, lastRetry = time.Second, time.Minute
	// maxConflicts bounds how often other controllers may be first in one look.
	maxConflicts = 20
)

// ErrPending is that there is no CA that may sign yet.
var ErrPending = errors.New("there is no CA yet that may sign")

// Issuer is who makes the certificates.
type Issuer string

// Issuers.
const (
	// Internal is the controller.
	Internal Issuer = "internal"
	// CertManager is cert-manager, as for the services so for the CA of BMCs.
	CertManager Issuer = "cert-manager"
)

// Service is a Secret with a service's certificate.
type Service struct {
	// Secret is its name; its type is kubernetes.io/tls.
	Secret string
	// Names are the DNS names and IP addresses that clients use.
	Names []string
}

// Config of a keeper. All but Events is needed; Own and Services may be empty.
type Config struct {
	Core     typedcorev1.CoreV1Interface
	Metadata metadata.Interface
	// Namespace has all of the objects.
	Namespace string
	Issuer    Issuer
	// CASecret has the CA: the controller's own, or a Certificate of
	// cert-manager's that is one.
	CASecret string
	// Bundle is the ConfigMap with the CA certificates to trust.
	Bundle   string
	Services []Service
	// Own is the Secret, of those of Services, with the controller's own
	// certificate.
	Own       string
	Lifetimes Lifetimes
	Log       *slog.Logger
	Metrics   prometheus.Registerer
	// Events tells people of failures; nil: logs alone do.
	Events events.EventRecorder
}

// Keeper keeps the certificates. Its methods may be called from several
// goroutines.
type Keeper struct {
	config  Config
	store   store
	metrics *metrics
	known   chan struct{} // closed when the objects have been looked at, or can't be
	once    sync.Once

	mu      sync.Mutex
	view    view
	changed []func()
}

// view is what the objects say.
type view struct {
	// authority signs the BMCs' leaves; nil: none does yet.
	authority *Authority
	// bundle is what is published.
	bundle []byte
	// own is the controller's certificate; nil: there is none yet.
	own *tls.Certificate
	// problem is why authority is nil, for people.
	problem string
}

// New makes a keeper.
func New(config Config) (*Keeper, error) {
	if config.Core == nil || config.Metadata == nil || config.Namespace == "" || config.Log == nil || config.Metrics == nil ||
		config.CASecret == "" || config.Bundle == "" {
		return nil, errors.New("keep certificates: cluster, namespace, names, log and metrics are needed")
	}
	return newKeeper(config, &cluster{config.Core, config.Metadata, config.Namespace})
}

func newKeeper(config Config, store store) (*Keeper, error) {
	if config.Issuer != Internal && config.Issuer != CertManager {
		return nil, fmt.Errorf("keep certificates: issuer %q is neither %s nor %s", config.Issuer, Internal, CertManager)
	}
	if err := config.Lifetimes.Validate(); err != nil {
		return nil, err
	}
	if config.Own != "" && !slices.ContainsFunc(config.Services, func(s Service) bool { return s.Secret == config.Own }) {
		return nil, fmt.Errorf("keep certificates: Secret %s, which has the controller's own, is none of the services'", config.Own)
	}
	k := &Keeper{config: config, store: store, known: make(chan struct{}), metrics: newMetrics()}
	if err := k.metrics.register(config.Metrics); err != nil {
		return nil, err
	}
	return k, nil
}

// OnChange makes the keeper call a function when there is another CA, bundle or
// own certificate. It is to be called before Run.
func (k *Keeper) OnChange(changed func()) { k.changed = append(k.changed, changed) }

// Known returns a channel that is closed when the objects have been looked at for
// the first time, or could not be.
func (k *Keeper) Known() <-chan struct{} { return k.known }

// Bundle returns the CA certificates to trust, in PEM; empty: there are none yet.
func (k *Keeper) Bundle() []byte { return k.look().bundle }

// Certificate returns the controller's own certificate.
func (k *Keeper) Certificate() (*tls.Certificate, error) {
	if own := k.look().own; own != nil {
		return own, nil
	}
	return nil, fmt.Errorf("secret %s has no certificate yet", k.config.Own)
}

// Leaf returns the leaf of a BMC, the same for the same UID and names until it is
// to be renewed. The error is ErrPending, with a reason, while no CA may sign.
func (k *Keeper) Leaf(uid string, names []string) (*Leaf, error) {
	v := k.look()
	if v.authority == nil {
		if v.problem == "" {
			return nil, ErrPending
		}
		return nil, fmt.Errorf("%w: %s", ErrPending, v.problem)
	}
	return v.authority.Derive(uid, names, k.config.Lifetimes.Leaf, time.Now())
}

// Issuer returns who makes the certificates.
func (k *Keeper) Issuer() Issuer { return k.config.Issuer }

func (k *Keeper) look() view {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.view
}

// Run keeps the certificates until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	changed := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	if c, ok := k.store.(*cluster); ok {
		secrets := []string{k.config.CASecret}
		for _, service := range k.config.Services {
			secrets = append(secrets, service.Secret)
		}
		if err := c.watch(ctx, "secrets", secrets, changed); err != nil {
			return err
		}
		if err := c.watch(ctx, "configmaps", []string{k.config.Bundle}, changed); err != nil {
			return err
		}
	}
	var said string
	retry := firstRetry
	for {
		next, err := k.keep(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // The end is no failure.
		case err != nil:
			k.metrics.failures.Inc()
			if err.Error() != said {
				said = err.Error()
				k.config.Log.ErrorContext(ctx, "can't keep certificates", logkey.Error, said)
				k.event(corev1.EventTypeWarning, "CertificatesFailed", said)
			}
			next = time.Now().Add(retry)
			retry = min(2*retry, lastRetry)
		default:
			if said != "" {
				k.config.Log.InfoContext(ctx, "certificates are kept again")
				k.event(corev1.EventTypeNormal, "CertificatesKept", "certificates are kept again")
			}
			said, retry = "", firstRetry
		}
		timer := time.NewTimer(min(time.Until(next), lookInterval))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-wake:
			timer.Stop()
		}
	}
}

// event tells people, at the ConfigMap that they trust.
func (k *Keeper) event(kind, reason, message string) {
	if k.config.Events != nil {
		at := &corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: k.config.Namespace, Name: k.config.Bundle},
		}
		k.config.Events.Eventf(at, nil, kind, reason, "KeepCertificates", "%s", message)
	}
}

// keep makes the objects what they are to be now, and returns when they are to be
// looked at again.
func (k *Keeper) keep(ctx context.Context) (time.Time, error) {
	for range maxConflicts {
		next, v, err := k.attempt(ctx)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue // Another controller was first. What it wrote is looked at.
		}
		if v == nil {
			k.fail(ctx, err)
		} else {
			k.show(*v)
		}
		return next, err
	}
	err := errors.New("keep certificates: the objects change all the time")
	k.fail(ctx, err)
	return time.Time{}, err
}

// attempt makes the objects what they are to be now. It returns when they are to
// be looked at again, and what they say; nil: that can't be told.
func (k *Keeper) attempt(ctx context.Context) (time.Time, *view, error) {
	// Read before the CA, so that what is written is not older than what another
	// controller has written meanwhile.
	configMap, err := k.store.configMap(ctx, k.config.Bundle)
	if err != nil {
		return time.Time{}, nil, fmt.Errorf("read ConfigMap %s: %w", k.config.Bundle, err)
	}
	if k.config.Issuer == CertManager {
		return k.follow(ctx, configMap)
	}
	now := time.Now()
	cas, err := k.keepAuthorities(ctx, configMap, now)
	if err != nil {
		return time.Time{}, nil, err
	}
	next := cas.due(k.config.Lifetimes)
	v := view{bundle: bundle(cas.certificates())}
	var errs []error
	switch current := cas.current; {
	case current != nil && now.Before(current.certificate.NotBefore):
		v.problem = fmt.Sprintf("the CA of Secret %s is not valid before %s, which has not come by this controller's clock", k.config.CASecret, current.certificate.NotBefore.UTC().Format(time.RFC3339))
		errs = append(errs, errors.New(v.problem))
	case current != nil:
		v.authority = current.authority
	default:
		v.problem = fmt.Sprintf("the key of the CA is lost; the next one signs from %s on", cas.signsAt(k.config.Lifetimes).UTC().Format(time.RFC3339))
	}
	for _, service := range k.config.Services {
		pair, renew, err := k.keepService(ctx, service, v.authority, now)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return time.Time{}, nil, err
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if pair != nil {
			if service.Secret == k.config.Own {
				v.own = pair
			}
			if renew.Before(next) || next.IsZero() {
				next = renew
			}
		}
	}
	k.metrics.authorities(cas)
	return next, &v, errors.Join(errs...)
}

// fail notes why the objects could not be looked at. What was known before counts
// on; who waits for the first look waits no longer, for it may take long, and most
// of what BMCs need is not a certificate.
func (k *Keeper) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	changed := k.view.authority == nil && k.view.problem != err.Error()
	if changed {
		k.view.problem = err.Error()
	}
	k.mu.Unlock()
	k.once.Do(func() { close(k.known) })
	if changed {
		k.tell()
	}
}

// show makes a view the one that counts.
func (k *Keeper) show(v view) {
	k.mu.Lock()
	before := k.view
	if v.own == nil {
		v.own = before.own // It serves on.
	}
	changed := !bytes.Equal(before.bundle, v.bundle) || !sameAuthority(before.authority, v.authority) || !samePair(before.own, v.own) || before.problem != v.problem
	k.view = v
	k.mu.Unlock()
	k.once.Do(func() { close(k.known) })
	if changed {
		k.tell()
	}
}

func (k *Keeper) tell() {
	for _, tell := range k.changed {
		tell()
	}
}

func sameAuthority(a, b *Authority) bool { return a == nil && b == nil || a.is(b) }

func samePair(a, b *tls.Certificate) bool {
	return a == nil && b == nil || a != nil && b != nil && bytes.Equal(a.Leaf.Raw, b.Leaf.Raw)
}

// keepAuthorities keeps Secret and ConfigMap of the CAs, and returns them as they
// are stored.
func (k *Keeper) keepAuthorities(ctx context.Context, configMap *corev1.ConfigMap, now time.Time) (*state, error) {
	secret, err := k.store.secret(ctx, k.config.CASecret)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", k.config.CASecret, err)
	}
	var before *state
	if secret == nil {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: k.config.CASecret, Namespace: k.config.Namespace}, Type: corev1.SecretTypeOpaque}
	} else {
		before = &state{}
		if err := json.Unmarshal(secret.Data[keyState], before); err != nil {
			return nil, fmt.Errorf("key %s of Secret %s can't be read (delete the Secret to have another CA made): %w", keyState, k.config.CASecret, err)
		}
	}
	published := publishedIn(configMap)
	cas, err := before.advance(now, k.config.Lifetimes, published, newAuthority)
	if err != nil {
		return nil, err
	}
	if cas != before {
		k.announce(ctx, before, cas)
		if secret, err = k.putState(ctx, secret, cas); err != nil {
			return nil, err
		}
	}
	wants := cas.certificates()
	if err := k.publish(ctx, configMap, bundle(wants)); err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(wants), func(c *x509.Certificate) bool { return contains(published, c) })
	if known := cas.publish(now, missing); known != cas {
		if _, err := k.putState(ctx, secret, known); err != nil {
			return nil, err
		}
		cas = known
	}
	return cas, nil
}

// announce says what happens to the CAs.
func (k *Keeper) announce(ctx context.Context, before, after *state) {
	switch {
	case before == nil || before.current == nil && before.next == nil:
		k.config.Log.InfoContext(ctx, "CA made", "secret", k.config.CASecret)
	case after.next != nil && before.next == nil:
		k.config.Log.InfoContext(ctx, "next CA made; it signs when clients know it", "secret", k.config.CASecret, "expires", after.next.certificate.NotAfter)
	case after.current != nil && before.current != after.current && after.current == before.next:
		k.config.Log.InfoContext(ctx, "the next CA signs from now on", "secret", k.config.CASecret, "expires", after.current.certificate.NotAfter)
	case len(after.former) < len(before.former):
		k.config.Log.InfoContext(ctx, "former CA is not trusted any more", "secret", k.config.CASecret)
	}
}

func (k *Keeper) putState(ctx context.Context, secret *corev1.Secret, cas *state) (*corev1.Secret, error) {
	text, err := json.Marshal(cas)
	if err != nil {
		return nil, fmt.Errorf("write Secret %s: %w", k.config.CASecret, err)
	}
	secret = secret.DeepCopy()
	metav1.SetMetaDataLabel(&secret.ObjectMeta, managedByLabel, managedBy)
	secret.Data = map[string][]byte{keyState: text}
	secret, err = k.store.putSecret(ctx, secret)
	if err != nil {
		return nil, fmt.Errorf("write Secret %s: %w", k.config.CASecret, err)
	}
	return secret, nil
}

func publishedIn(configMap *corev1.ConfigMap) []*x509.Certificate {
	if configMap == nil {
		return nil
	}
	return parseBundle([]byte(configMap.Data[KeyBundle]))
}

// publish makes the ConfigMap hold a bundle.
func (k *Keeper) publish(ctx context.Context, configMap *corev1.ConfigMap, text []byte) error {
	switch {
	case configMap == nil:
		configMap = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: k.config.Bundle, Namespace: k.config.Namespace}}
	case configMap.Data[KeyBundle] == string(text):
		return nil
	default:
		configMap = configMap.DeepCopy()
	}
	metav1.SetMetaDataLabel(&configMap.ObjectMeta, managedByLabel, managedBy)
	if configMap.Data == nil {
		configMap.Data = map[string]string{}
	}
	configMap.Data[KeyBundle] = string(text)
	if err := k.store.putConfigMap(ctx, configMap); err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", k.config.Bundle, err)
	}
	return nil
}

// keepService keeps a service's Secret, and returns its certificate and when that
// is to be renewed; nil: there is none.
func (k *Keeper) keepService(ctx context.Context, service Service, authority *Authority, now time.Time) (*tls.Certificate, time.Time, error) {
	secret, err := k.store.secret(ctx, service.Secret)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read Secret %s: %w", service.Secret, err)
	}
	if pair := pairIn(secret); pair != nil {
		renew := renewal(pair.Leaf.NotBefore, pair.Leaf.NotAfter)
		fine := authority == nil || // It serves on.
			sameNames(namesIn(pair.Leaf), service.Names) && now.Before(renew) && pair.Leaf.CheckSignatureFrom(authority.certificate) == nil
		if fine {
			k.metrics.expires(service.Secret, pair.Leaf.NotAfter)
			return pair, renew, nil
		}
	}
	if authority == nil {
		k.metrics.gone(service.Secret)
		return nil, time.Time{}, nil
	}
	leaf, err := authority.issue(service.Names, k.config.Lifetimes.Leaf, now)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("make certificate of Secret %s: %w", service.Secret, err)
	}
	pair, err := tls.X509KeyPair(leaf.ChainPEM, leaf.KeyPEM)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("make certificate of Secret %s: %w", service.Secret, err)
	}
	if secret == nil {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: service.Secret, Namespace: k.config.Namespace}, Type: corev1.SecretTypeTLS}
	} else {
		secret = secret.DeepCopy()
	}
	metav1.SetMetaDataLabel(&secret.ObjectMeta, managedByLabel, managedBy)
	secret.Data = map[string][]byte{corev1.TLSCertKey: leaf.ChainPEM, corev1.TLSPrivateKeyKey: leaf.KeyPEM, keyCA: encode(authority.certificate)}
	if _, err := k.store.putSecret(ctx, secret); err != nil {
		return nil, time.Time{}, fmt.Errorf("write Secret %s: %w", service.Secret, err)
	}
	k.config.Log.InfoContext(ctx, "certificate issued", "secret", service.Secret, "names", service.Names, "expires", leaf.NotAfter)
	k.metrics.issued.Inc()
	k.metrics.expires(service.Secret, leaf.NotAfter)
	return &pair, leaf.Renew, nil
}

// pairIn reads the certificate of a Secret of type kubernetes.io/tls; nil: there
// is none.
func pairIn(secret *corev1.Secret) *tls.Certificate {
	if secret == nil {
		return nil
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil
	}
	return &pair
}
