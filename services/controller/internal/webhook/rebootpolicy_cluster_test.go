//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/services/controller/internal/webhook/instance"
)

// looks counts what is listed.
type looks struct {
	client.Reader
	n atomic.Int32
}

func (l *looks) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	defer l.n.Add(1)
	return l.Reader.List(ctx, list, options...)
}

// policies are KubeVirt's as the controller sees them.
func (s *site) policies(reader client.Reader) *instance.RebootPolicies {
	s.Helper()
	schemas, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		s.Fatal(err)
	}
	return &instance.RebootPolicies{Client: reader, Discovery: schemas, Interval: 500 * time.Millisecond, Log: s.log()}
}

// rebootPolicyDefined tells whether the definition of instances has the field.
func (s *site) rebootPolicyDefined() bool {
	s.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := s.Get(s.Context(), client.ObjectKey{Name: "virtualmachineinstances.kubevirt.io"}, crd); err != nil {
		s.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(version any) bool {
		of := version.(map[string]any)
		_, ok, _ := unstructured.NestedMap(of, "schema", "openAPIV3Schema", "properties", "spec", "properties", "domain", "properties", "rebootPolicy")
		return of["name"] == "v1" && ok
	})
}

// TestRebootPolicies: KubeVirt has them where its definitions and its feature gate
// say so.
func TestRebootPolicies(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reader := &looks{Reader: s.controller}
	policies := s.policies(reader)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- policies.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	want := func(what string, want bool) {
		t.Helper()
		// One look may be under way; the next one counts, and is over when another
		// one begins.
		now := reader.n.Load()
		s.eventually(what, func() error {
			if reader.n.Load() < now+3 {
				return errors.New("it has not looked")
			}
			if got := policies.Have(); got != want {
				return fmt.Errorf("has reboot policies: %t, want %t", got, want)
			}
			return nil
		})
	}
	var kubeVirts kvv1.KubeVirtList
	if err := s.List(t.Context(), &kubeVirts); err != nil {
		t.Fatal(err)
	}
	gated := slices.ContainsFunc(kubeVirts.Items, func(k kvv1.KubeVirt) bool {
		developer := k.Spec.Configuration.DeveloperConfiguration
		return developer != nil && slices.Contains(developer.FeatureGates, "RebootPolicy")
	})
	defined := s.rebootPolicyDefined()
	want("as it is", gated && defined)
	if len(kubeVirts.Items) > 0 {
		return // It is not ours to change.
	}
	kubeVirt := &kvv1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: s.namespace},
		Spec: kvv1.KubeVirtSpec{Configuration: kvv1.KubeVirtConfiguration{
			DeveloperConfiguration: &kvv1.DeveloperConfiguration{FeatureGates: []string{"RebootPolicy"}},
		}},
	}
	s.create(kubeVirt)
	want("with the feature gate", defined)
	if err := change(s, kubeVirt, func(k *kvv1.KubeVirt) {
		k.Spec.Configuration.DeveloperConfiguration.FeatureGates = []string{"Sidecar"}
	}); err != nil {
		t.Fatal(err)
	}
	want("with another feature gate", false)
	s.remove(kubeVirt)
	want("without KubeVirt", false)
}
