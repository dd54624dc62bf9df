// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// manager owns the fields that are applied.
	manager = "virtbmc-controller"
	// DefaultInterval is how often the configurations are made what they are to be
	// without a reason, so that what somebody has changed or deleted comes back.
	DefaultInterval = 30 * time.Second
	// retryInterval is the time between attempts after a failure.
	retryInterval = 2 * time.Second
	// applyTimeout bounds one attempt.
	applyTimeout = 15 * time.Second
)

// Identity is the server's certificate and who has issued it.
type Identity interface {
	// Certificate returns the certificate as it is now.
	Certificate() (*tls.Certificate, error)
	// Bundle returns the issuers to trust, in PEM; empty: they are not known yet.
	Bundle() []byte
	// OnChange has a function called after the bundle has changed. It is to be
	// called before anything runs.
	OnChange(changed func())
}

// RegistrationConfig is all needed, Owner and Interval aside.
type RegistrationConfig struct {
	// Client reads, applies and deletes webhook configurations, without a cache.
	Client   client.Client
	Target   Target
	Identity Identity
	// Owner is the ClusterRole with which the configurations go; empty: they stay.
	Owner string
	// Interval is how often the configurations are looked after; 0: DefaultInterval.
	Interval time.Duration
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Registration keeps the API server's configurations of the webhooks. One of the
// controllers does that, for all.
type Registration struct {
	config     RegistrationConfig
	changed    chan struct{}
	registered prometheus.Gauge
	// problem is nil until something has been tried.
	problem atomic.Pointer[string]
}

// NewRegistration makes a registration.
func NewRegistration(config RegistrationConfig) (*Registration, error) {
	if err := config.Target.Validate(); err != nil {
		return nil, err
	}
	if config.Interval <= 0 {
		config.Interval = DefaultInterval
	}
	r := &Registration{config: config, changed: make(chan struct{}, 1), registered: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vbmc_controller_webhooks_registered",
		Help: "Whether this controller keeps the API server's configurations of the webhooks, and they are as they are to be.",
	})}
	if err := config.Metrics.Register(r.registered); err != nil {
		return nil, fmt.Errorf("register webhooks: %w", err)
	}
	config.Identity.OnChange(func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	})
	return r, nil
}

// Problem is why the API server does not call the webhooks; empty: it does, as was
// seen when it was tried last. It is not known before this process has tried.
func (r *Registration) Problem() (problem string, known bool) {
	if problem := r.problem.Load(); problem != nil {
		return *problem, true
	}
	return "", false
}

// tell notes why the webhooks are not called, and calls told if that is news.
func (r *Registration) tell(ctx context.Context, problem string, told func()) {
	if before, known := r.Problem(); known && before == problem {
		return
	}
	r.problem.Store(&problem)
	if problem != "" {
		r.config.Log.WarnContext(ctx, "the API server does not call the webhooks", logkey.Error, problem)
	}
	told()
}

// Run keeps the configurations until the context ends, and calls told after each
// change of Problem. They stay after that, for the other controllers serve on.
func (r *Registration) Run(ctx context.Context, told func()) error {
	defer r.registered.Set(0)
	var done bool
	for {
		err := r.apply(ctx)
		next := r.config.Interval
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if !done {
				r.config.Log.InfoContext(ctx, "webhooks are registered", "configuration", r.config.Target.Name)
			}
			done = true
			r.registered.Set(1)
			problem := r.check(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if problem != "" {
				next = retryInterval
			}
			r.tell(ctx, problem, told)
		default:
			done, next = false, retryInterval
			r.registered.Set(0)
			r.tell(ctx, "can't register webhooks: "+err.Error(), told)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-time.After(next):
		}
	}
}

// check returns why instances are not sent to the webhooks that are registered;
// empty: they are.
func (r *Registration) check(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	if err := probe(ctx, r.config.Client, r.config.Target.Namespace); err != nil {
		return "can't reach the webhooks: " + err.Error()
	}
	var is admissionv1.MutatingWebhookConfiguration
	if err := r.config.Client.Get(ctx, client.ObjectKey{Name: r.config.Target.Name}, &is); err != nil {
		return "can't read the configuration of the webhooks: " + err.Error()
	}
	return restricted(&is, r.config.Target.Mutating(nil))
}

// apply makes the configurations what they are to be: our fields of them.
func (r *Registration) apply(ctx context.Context) error {
	bundle := r.config.Identity.Bundle()
	if len(bundle) == 0 {
		return errors.New("it is not known yet who issues the server's certificate")
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	owners, err := r.owners(ctx)
	if err != nil {
		return err
	}
	mutating, validating := r.config.Target.Mutating(bundle), r.config.Target.Validating(bundle)
	for _, object := range []client.Object{mutating, validating} {
		object.SetOwnerReferences(owners)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("apply %T: %w", object, err)
		}
		configuration := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: fields})
		if err := r.config.Client.Apply(ctx, configuration, client.FieldOwner(manager), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

func (r *Registration) owners(ctx context.Context) ([]metav1.OwnerReference, error) {
	if r.config.Owner == "" {
		return nil, nil
	}
	role := &metav1.PartialObjectMetadata{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
	if err := r.config.Client.Get(ctx, client.ObjectKey{Name: r.config.Owner}, role); err != nil {
		return nil, fmt.Errorf("read ClusterRole %s: %w", r.config.Owner, err)
	}
	return []metav1.OwnerReference{{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: role.Name, UID: role.UID}}, nil
}

// Deregister deletes the configurations that the controllers have made for a
// target, so that the API server does not ask where nobody answers.
func Deregister(ctx context.Context, c client.Client, target Target) error {
	for _, object := range []client.Object{&admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}} {
		err := c.Get(ctx, client.ObjectKey{Name: target.Name}, object)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %T %s: %w", object, target.Name, err)
		}
		if !ours(object, target) {
			continue
		}
		uid := object.GetUID()
		err = c.Delete(ctx, object, client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", object, target.Name, err)
		}
	}
	return nil
}

func ours(object client.Object, target Target) bool {
	has := maps.Clone(object.GetLabels())
	maps.DeleteFunc(has, func(key, value string) bool { return target.labels()[key] != value })
	return len(has) == len(target.labels())
}
