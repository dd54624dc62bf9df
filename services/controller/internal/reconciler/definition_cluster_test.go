//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/crds"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// TestDefinition_earlier: Helm leaves the definition of an earlier line on the
// cluster. The controller does not begin, says why and how to mend it, and begins
// when it is mended. It changes what all tests have, so it is alone.
func TestDefinition_earlier(t *testing.T) {
	s := newSite(t)
	ours := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.VirtualMachineBMC, &ours.Object); err != nil {
		t.Fatal(err)
	}
	upgrade := func(ctx context.Context) error { return s.replace(ctx, ours) }
	t.Cleanup(func() {
		if err := upgrade(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// Line 0.6.0, as test/crd has it.
	earlier := ours.DeepCopy()
	version := earlier.Object["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	root := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
	keep(root["spec"], "virtualMachineRef", "authSecretRef", "ipmi")
	delete(root["spec"].(map[string]any), "x-kubernetes-validations")
	keep(root["status"], "clusterIP", "conditions", "bootOverride")
	if err := s.replace(t.Context(), earlier); err != nil {
		t.Fatal(err)
	}
	bmc := s.complete("vm")
	s.eventually("the earlier definition counts", func() error {
		probe := bmc.DeepCopy()
		probe.Status.ObservedGeneration, probe.Status.ClusterIP = 1, "10.96.0.9"
		if err := s.Status().Update(t.Context(), probe); err != nil {
			return err
		}
		bmc = probe
		if probe.Status.ObservedGeneration != 0 {
			return errors.New("observedGeneration is kept")
		}
		return nil
	})
	bmc.Status.ClusterIP = ""
	if err := s.Status().Update(t.Context(), bmc); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // The API server's OpenAPI documents come a moment later.

	var mu sync.Mutex
	said := "nothing"
	problem := func() string {
		mu.Lock()
		defer mu.Unlock()
		return said
	}
	c := s.controller(func(config *reconciler.Config) {
		config.OnDefinition = func(problem string) {
			mu.Lock()
			defer mu.Unlock()
			said = problem
		}
	})
	f := s.frontend("frontend-0", "10.0.0.10")
	s.eventually("it says what is the matter", func() error {
		for _, part := range []string{"kubectl apply", "status.observedGeneration", "status.frontend", "status.nodePorts"} {
			if !strings.Contains(problem(), part) {
				return errors.New(problem())
			}
		}
		missing, err := c.gauge("vbmc_controller_definition_fields_missing", "status")
		if err == nil && missing < 3 {
			err = errors.New("the metric has too few fields")
		}
		return err
	})
	s.eventually("event", func() error {
		var list eventsv1.EventList
		if err := s.List(t.Context(), &list, client.InNamespace(s.system)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "DefinitionOutdated" && e.Type == "Warning" && strings.Contains(e.Note, "kubectl apply")
		}) {
			return errors.New("there is none")
		}
		return nil
	})
	time.Sleep(time.Second) // Long enough to make the mistake.
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil || len(bmc.Status.Conditions) > 0 {
		t.Errorf("the controller has begun: %+v, %v", bmc.Status, err)
	}
	if got := f.has(ipmi); len(got) > 0 {
		t.Errorf("frontends serve %v", got)
	}

	if err := upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wantReady(bmc)
	if problem() != "" {
		t.Errorf("it says %q when it serves", problem())
	}
	if missing, err := c.gauge("vbmc_controller_definition_fields_missing", "status"); err != nil || missing != 0 {
		t.Errorf("the metric is %v, %v", missing, err)
	}
}

// replace makes a definition the cluster's, whoever manages fields of it.
func (s *site) replace(ctx context.Context, definition *unstructured.Unstructured) error {
	is := &unstructured.Unstructured{}
	is.SetGroupVersionKind(definition.GroupVersionKind())
	if err := s.Get(ctx, client.ObjectKeyFromObject(definition), is); err != nil {
		return err
	}
	is.Object["spec"] = definition.DeepCopy().Object["spec"]
	return s.Update(ctx, is)
}

// keep takes all properties but some out of a schema.
func keep(schema any, names ...string) {
	properties := schema.(map[string]any)["properties"].(map[string]any)
	maps.DeleteFunc(properties, func(name string, _ any) bool { return !slices.Contains(names, name) })
}
