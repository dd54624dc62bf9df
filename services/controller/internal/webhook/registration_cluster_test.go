//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/services/controller/internal/webhook"
)

func (s *site) mutating() (*admissionv1.MutatingWebhookConfiguration, error) {
	is := &admissionv1.MutatingWebhookConfiguration{}
	return is, s.Get(s.Context(), client.ObjectKey{Name: s.target.Name}, is)
}

func quick(config *webhook.RegistrationConfig) { config.Interval = 200 * time.Millisecond }

// TestRegistration_repairs: what somebody changes or deletes of ours comes back,
// and what is theirs stays.
func TestRegistration_repairs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.target.URL = "https://127.0.0.1:1"
	metrics := prometheus.NewRegistry()
	stop := s.register(quick, func(config *webhook.RegistrationConfig) { config.Metrics = metrics })
	var is *admissionv1.MutatingWebhookConfiguration
	s.eventually("registered", func() (err error) {
		is, err = s.mutating()
		return err
	})
	if len(is.OwnerReferences) != 0 {
		t.Errorf("without an owner it has %v", is.OwnerReferences)
	}
	theirs := *is.Webhooks[0].DeepCopy()
	theirs.Name = "theirs.example.com"
	never := admissionv1.NeverReinvocationPolicy
	s.eventually("changed", func() error {
		var err error
		if is, err = s.mutating(); err != nil {
			return err
		}
		is.Labels["theirs"] = "stays"
		is.Webhooks[0].ReinvocationPolicy = &never
		is.Webhooks = append(is.Webhooks, theirs)
		return s.Update(t.Context(), is)
	})
	s.eventually("repaired", func() error {
		is, err := s.mutating()
		switch {
		case err != nil:
			return err
		case is.Labels["theirs"] != "stays" || len(is.Webhooks) != 3:
			t.Fatalf("labels %v, %d webhooks", is.Labels, len(is.Webhooks))
		case *is.Webhooks[0].ReinvocationPolicy == never:
			return errors.New("not repaired")
		}
		return nil
	})
	uid := is.UID
	if err := s.Delete(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	s.eventually("made anew", func() error {
		is, err := s.mutating()
		if err == nil && is.UID == uid {
			err = errors.New("not deleted yet")
		}
		return err
	})
	s.eventually("said in a metric", func() error { return registered(metrics, 1) })
	stop()
	if err := registered(metrics, 0); err != nil {
		t.Error(err)
	}
	time.Sleep(500 * time.Millisecond) // A registration that did not end would show by then.
	if _, err := s.mutating(); err != nil {
		t.Errorf("after the end of the one that leads: %v", err)
	}
}

// registered is an error unless the metric has a value.
func registered(metrics *prometheus.Registry, want float64) error {
	families, err := metrics.Gather()
	if err != nil || len(families) != 1 {
		return fmt.Errorf("%d metrics, %w", len(families), err)
	}
	if got := families[0].GetMetric()[0].GetGauge().GetValue(); families[0].GetName() != "vbmc_controller_webhooks_registered" || got != want {
		return fmt.Errorf("%s is %v, want %v", families[0].GetName(), got, want)
	}
	return nil
}

// TestRegistration_renews: a server whose certificate has another issuer is called
// on.
func TestRegistration_renews(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	before := s.identity.Bundle()
	s.identity.renew(t, s.host)
	s.eventually("the new issuer is registered", func() error {
		is, err := s.mutating()
		if err == nil && !bytes.Equal(is.Webhooks[0].ClientConfig.CABundle, s.identity.Bundle()) {
			err = errors.New("not yet")
		}
		return err
	})
	if bytes.Equal(before, s.identity.Bundle()) {
		t.Error("it is the same issuer")
	}
	s.eventually("the API server asks", s.asked)
}

// TestRegistration_owner: configurations go with a ClusterRole.
func TestRegistration_owner(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.target.URL = "https://127.0.0.1:1"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.target.Name}}
	metrics := prometheus.NewRegistry()
	s.register(quick, func(config *webhook.RegistrationConfig) { config.Owner, config.Metrics = role.Name, metrics })
	time.Sleep(500 * time.Millisecond) // It would be there by then.
	if _, err := s.mutating(); !apierrors.IsNotFound(err) {
		t.Errorf("without its owner: %v", err)
	}
	if err := registered(metrics, 0); err != nil {
		t.Error(err)
	}
	s.create(role)
	t.Cleanup(func() { _ = s.Delete(context.Background(), role) })
	s.eventually("owned", func() error {
		is, err := s.mutating()
		if err == nil && (len(is.OwnerReferences) != 1 || is.OwnerReferences[0].UID != role.UID) {
			err = fmt.Errorf("owners %v", is.OwnerReferences)
		}
		return err
	})
}

// TestDeregister deletes what controllers of this namespace have made.
func TestDeregister(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.target.URL = "https://127.0.0.1:1"
	stop := s.register(quick)
	s.eventually("registered", func() error {
		_, err := s.mutating()
		if err == nil {
			err = s.Get(t.Context(), client.ObjectKey{Name: s.target.Name}, &admissionv1.ValidatingWebhookConfiguration{})
		}
		return err
	})
	stop()
	other := s.target
	other.Namespace = "another"
	if err := webhook.Deregister(t.Context(), s.controller, other); err != nil {
		t.Fatal(err)
	}
	if _, err := s.mutating(); err != nil {
		t.Errorf("controllers of another namespace have deleted it: %v", err)
	}
	for range 2 { // The second time there is nothing.
		if err := webhook.Deregister(t.Context(), s.controller, s.target); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.mutating(); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
	if err := s.Get(t.Context(), client.ObjectKey{Name: s.target.Name}, &admissionv1.ValidatingWebhookConfiguration{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}

// TestRegistration_reached: that the webhooks are registered does not say that they
// are called.
func TestRegistration_reached(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stop := s.serve()
	registration, err := webhook.NewRegistration(webhook.RegistrationConfig{
		Client: s.controller, Target: s.target, Identity: s.identity, Log: s.log(), Metrics: prometheus.NewRegistry(), Interval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if problem, known := registration.Problem(); known {
		t.Errorf("before it was tried it is said that %q", problem)
	}
	told := make(chan struct{}, 100)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- registration.Run(ctx, func() { told <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	want := func(what, part string) {
		t.Helper()
		s.eventually(what, func() error {
			problem, known := registration.Problem()
			if !known || (part == "") != (problem == "") || !strings.Contains(problem, part) {
				return fmt.Errorf("known %t: %q", known, problem)
			}
			return nil
		})
		select {
		case <-told:
		case <-time.After(patience):
			t.Errorf("%s: nobody was told", what)
		}
	}
	edit := func(change func(*admissionv1.MutatingWebhook)) {
		t.Helper()
		s.eventually("edited", func() error {
			is, err := s.mutating()
			if err != nil {
				return err
			}
			change(&is.Webhooks[0])
			return s.Update(t.Context(), is)
		})
	}
	want("reached", "")
	edit(func(w *admissionv1.MutatingWebhook) {
		w.MatchConditions = append(w.MatchConditions, admissionv1.MatchCondition{Name: "never", Expression: "false"})
	})
	want("somebody's condition keeps instances away", `"never"`)
	edit(func(w *admissionv1.MutatingWebhook) { w.MatchConditions = w.MatchConditions[:1] })
	want("called again", "")
	stop()
	want("nobody listens", "can't reach")
}
