// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/controller/internal/certificate"
)

// Certificates issues the certificates of BMCs.
type Certificates interface {
	// Leaf returns a BMC's, the same for the same UID and names until it is to be
	// renewed; certificate.ErrPending while there is no CA.
	Leaf(uid string, names []string) (*certificate.Leaf, error)
	// Issuer tells whose CA it is.
	Issuer() certificate.Issuer
	// Known returns a channel that is closed when it is known whether there is a CA,
	// or that this can't be told for now.
	Known() <-chan struct{}
	// OnChange makes it call a function when there is another CA.
	OnChange(changed func())
}

// served is a certificate that frontends are told to serve.
type served struct {
	certificate         *registryv1.Certificate
	notBefore, notAfter time.Time
}

func (s *served) validAt(now time.Time) bool {
	return s != nil && !now.Before(s.notBefore) && !now.After(s.notAfter)
}

// pair returns what frontends are told; nil: nothing.
func (s *served) pair() *registryv1.Certificate {
	if s == nil {
		return nil
	}
	return s.certificate
}

// provided is the certificate of a user's Secret as it was read last.
type provided struct {
	secret  string
	uid     types.UID
	version string
	// has is the Secret's, if it can be served at all; trouble is why it can't.
	has     *served
	trouble *trouble
	// good is the last one that was valid, of this Secret or one before.
	good *served
}

// choose returns what is served in place of a certificate of the controller's:
// the Secret's own if it is valid, else the last good one, else what there is.
func (p *provided) choose(now time.Time) *served {
	switch {
	case p.has.validAt(now):
		return p.has
	case p.good.validAt(now):
		return p.good
	default:
		return p.has
	}
}

// problem is what is wrong with the Secret's certificate; nil: nothing is.
func (p *provided) problem(now time.Time) *trouble {
	expired := func(format string, at time.Time) *trouble {
		return &trouble{v1beta1.ReasonCertificateExpired, fmt.Sprintf("the certificate of Secret %s "+format, p.secret, at.UTC().Format(time.RFC3339))}
	}
	switch {
	case p.trouble != nil:
		return p.trouble
	case now.After(p.has.notAfter):
		return expired("was valid until %s", p.has.notAfter)
	case now.Before(p.has.notBefore):
		return expired("is not valid before %s", p.has.notBefore)
	}
	return nil
}

// due is when a certificate becomes valid or ceases to be.
func (s *served) due(now time.Time) time.Time {
	switch {
	case s == nil:
	case now.Before(s.notBefore):
		return s.notBefore
	case !now.After(s.notAfter):
		return s.notAfter.Add(time.Second)
	}
	return time.Time{}
}

// providedIn reads a Secret as of type kubernetes.io/tls. What it says is wrong
// holds nothing of the key.
func providedIn(name string, data map[string][]byte) (*served, *trouble) {
	invalid := func(why string) (*served, *trouble) {
		return nil, &trouble{v1beta1.ReasonCertificateInvalid, fmt.Sprintf("Secret %s: %s", name, why)}
	}
	chain, key := data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
	for _, one := range []struct {
		name  string
		value []byte
	}{{corev1.TLSCertKey, chain}, {corev1.TLSPrivateKeyKey, key}} {
		if len(one.value) == 0 {
			return invalid(fmt.Sprintf("key %s is missing or empty", one.name))
		}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return invalid(fmt.Sprintf("keys %s and %s: %v", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err))
	}
	if usages := pair.Leaf.ExtKeyUsage; len(usages) > 0 && !slices.Contains(usages, x509.ExtKeyUsageServerAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		return invalid("the certificate is not for servers (extended key usage)")
	}
	return &served{&registryv1.Certificate{ChainPem: chain, PrivateKeyPem: key}, pair.Leaf.NotBefore, pair.Leaf.NotAfter}, nil
}

// names are what clients may call a BMC: its Service's DNS names and addresses,
// of which no other BMC can have one. Whoever may write the Service chooses its
// externalIPs, and with some load balancers, by annotation, the host name in its
// status; a name without the namespace is that of a Service in each of them.
func (w *wanted) names(domain string, is *corev1.Service) []string {
	name := w.serviceName() + "." + w.ref.Namespace
	names := []string{name + ".svc", name + ".svc." + domain, name}
	if is == nil {
		return names
	}
	var addresses []string
	for _, ip := range append([]string{is.Spec.ClusterIP}, is.Spec.ClusterIPs...) {
		if ip != corev1.ClusterIPNone {
			addresses = append(addresses, ip)
		}
	}
	if is.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range is.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.IP)
		}
	}
	// In one order, whatever that of the load balancer, and each once.
	slices.Sort(addresses)
	for _, address := range slices.Compact(addresses) {
		if address != "" {
			names = append(names, address)
		}
	}
	return names
}

// certify finds the certificate that a BMC is to be served with, its condition,
// and when to look again; zero: when something changes.
func (r *bmcs) certify(ctx context.Context, o *observation) (*registryv1.Certificate, time.Time, error) {
	w := o.want
	if r.certificates == nil || !w.https || !o.served() {
		r.uncertify(w)
		return nil, time.Time{}, nil
	}
	now := time.Now()
	if w.certificate == "" {
		r.mu.Lock()
		delete(r.provided, w.ref)
		r.mu.Unlock()
		own, later, condition := r.issue(o, now)
		o.certificate = &condition
		r.expiries.set(w.ref, madeHere, own)
		return own.pair(), later, nil
	}
	p, err := r.readProvided(ctx, w, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	chosen, by := p.choose(now), madeByUser
	later := earlier(p.has.due(now), chosen.due(now))
	condition := yes(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificateProvided,
		fmt.Sprintf("the certificate of Secret %s is served", w.certificate))
	if t := p.problem(now); t != nil {
		meanwhile := "one that it had before is served"
		switch chosen {
		case nil:
			var renew time.Time
			chosen, renew, _ = r.issue(o, now)
			by = madeHere
			later = earlier(later, renew)
			meanwhile = "one of the controller's is served"
			if chosen == nil {
				meanwhile = "there is none to serve"
			}
		case p.has:
			meanwhile = "it is served nevertheless"
		}
		condition = no(v1beta1.ConditionCertificateReady, t.reason, t.message+"; "+meanwhile)
	}
	o.certificate = &condition
	r.expiries.set(w.ref, by, chosen)
	return chosen.pair(), later, nil
}

// uncertify forgets the certificates of a BMC that has none.
func (r *bmcs) uncertify(w wanted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.provided, w.ref)
	delete(r.issued, w.ref)
	r.expiries.set(w.ref, madeHere, nil)
}

// issue returns a certificate of the controller's CA, when it is to be renewed,
// and what the condition says of it. While no CA signs, the last one serves on.
func (r *bmcs) issue(o *observation, now time.Time) (*served, time.Time, metav1.Condition) {
	w := o.want
	r.mu.Lock()
	last := r.issued[w.ref]
	r.mu.Unlock()
	var later time.Time
	leaf, err := r.certificates.Leaf(string(w.uid), w.names(r.domain, o.service))
	switch {
	case err == nil:
		later = leaf.Renew
		if last == nil || !bytes.Equal(last.certificate.GetChainPem(), leaf.ChainPEM) {
			last = &served{&registryv1.Certificate{ChainPem: leaf.ChainPEM, PrivateKeyPem: leaf.KeyPEM}, leaf.NotBefore, leaf.NotAfter}
			r.mu.Lock()
			r.issued[w.ref] = last
			r.mu.Unlock()
		}
	case !errors.Is(err, certificate.ErrPending):
		later = now.Add(retryTime)
	}
	if last.validAt(now) {
		return last, later, yes(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificateIssued,
			"the certificate is valid until "+last.notAfter.UTC().Format(time.RFC3339))
	}
	message := "the certificate has not been issued yet"
	if err != nil {
		message = err.Error()
	}
	if r.certificates.Issuer() == certificate.CertManager && !r.apis.hasCertManager() {
		message = "cert-manager's API (cert-manager.io/v1) is not served; certificates come when it is (" + message + ")"
	}
	return last, later, no(v1beta1.ConditionCertificateReady, v1beta1.ReasonCertificatePending, message)
}

// readProvided reads the user's Secret, anew only when it has changed.
func (r *bmcs) readProvided(ctx context.Context, w wanted, now time.Time) (*provided, error) {
	r.mu.Lock()
	before := r.provided[w.ref]
	r.mu.Unlock()
	p := &provided{secret: w.certificate}
	if before != nil {
		p.good = before.good
	}
	key := client.ObjectKey{Namespace: w.ref.Namespace, Name: w.certificate}
	known := metadataOf(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.client.Get(ctx, key, known)
	switch {
	case err != nil:
	case before != nil && before.secret == w.certificate && before.uid == known.UID && before.version == known.ResourceVersion:
		same := *before
		p = &same
	default:
		var secret corev1.Secret
		if err = r.live.Get(ctx, key, &secret); err == nil {
			p.uid, p.version = secret.UID, secret.ResourceVersion
			p.has, p.trouble = providedIn(secret.Name, secret.Data)
		}
	}
	if apierrors.IsNotFound(err) {
		p.trouble = &trouble{v1beta1.ReasonCertificateSecretNotFound, fmt.Sprintf("Secret %s does not exist", w.certificate)}
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", w.certificate, err)
	}
	if p.has.validAt(now) {
		p.good = p.has
	}
	r.mu.Lock()
	r.provided[w.ref] = p
	r.mu.Unlock()
	return p, nil
}

// earlier returns the earlier of two moments, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// sooner returns the time until the earlier of two moments, of which zero is
// never.
func sooner(after time.Duration, at, now time.Time) time.Duration {
	if at.IsZero() {
		return after
	}
	until := max(at.Sub(now), time.Second/10)
	if after == 0 || until < after {
		return until
	}
	return after
}
