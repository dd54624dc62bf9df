// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// follow takes over what cert-manager has made: the CA of BMCs, the controller's
// own certificate, and whom to trust, which it publishes. What is not there yet is
// no error: cert-manager may come later.
func (k *Keeper) follow(ctx context.Context, configMap *corev1.ConfigMap) (time.Time, *view, error) {
	now := time.Now()
	secret, err := k.store.secret(ctx, k.config.CASecret)
	if err != nil {
		return time.Time{}, nil, fmt.Errorf("read Secret %s: %w", k.config.CASecret, err)
	}
	var v view
	next := now.Add(lookInterval)
	var trusted []*x509.Certificate
	trust := func(certificates []*x509.Certificate) {
		for _, c := range certificates {
			if !expiredAt(c, now) && !contains(trusted, c) {
				trusted = append(trusted, c)
			}
		}
	}
	if secret == nil {
		v.problem = fmt.Sprintf("Secret %s with the CA, which cert-manager is to make, does not exist", k.config.CASecret)
		k.metrics.gone("ca")
	} else {
		chain := secret.Data[corev1.TLSCertKey]
		v.authority, err = parseAuthority(chain, secret.Data[corev1.TLSPrivateKeyKey])
		switch {
		case err != nil:
			v.problem = fmt.Sprintf("Secret %s with the CA: %v", k.config.CASecret, err)
			k.metrics.gone("ca")
		case !validAt(v.authority.certificate, now):
			k.metrics.expires("ca", v.authority.certificate.NotAfter)
			if from := v.authority.certificate.NotBefore; from.After(now) && from.Before(next) {
				next = from
			}
			v.problem, v.authority = fmt.Sprintf("the CA of Secret %s is not valid now", k.config.CASecret), nil
		default:
			k.metrics.expires("ca", v.authority.certificate.NotAfter)
		}
		trust(parseBundle(secret.Data[keyCA]))
		for _, c := range parseBundle(chain) {
			if selfSigned(c) {
				trust([]*x509.Certificate{c})
			}
		}
	}
	for _, service := range k.config.Services {
		secret, err := k.store.secret(ctx, service.Secret)
		if err != nil {
			return time.Time{}, nil, fmt.Errorf("read Secret %s: %w", service.Secret, err)
		}
		pair := pairIn(secret)
		if pair == nil {
			k.metrics.gone(service.Secret)
			continue
		}
		k.metrics.expires(service.Secret, pair.Leaf.NotAfter)
		trust(parseBundle(secret.Data[keyCA]))
		if service.Secret == k.config.Own {
			v.own = pair
		}
	}
	// Those that were trusted stay until they expire, for there is no telling
	// which leaf is the last of one.
	trust(publishedIn(configMap))
	if len(trusted) == 0 {
		return next, &v, nil
	}
	v.bundle = bundle(trusted)
	if err := k.publish(ctx, configMap, v.bundle); err != nil {
		return time.Time{}, nil, err
	}
	for _, c := range trusted {
		if c.NotAfter.Before(next) {
			next = c.NotAfter
		}
	}
	if v.authority != nil && v.authority.certificate.NotAfter.Before(next) {
		next = v.authority.certificate.NotAfter
	}
	return next.Add(time.Second), &v, nil
}
