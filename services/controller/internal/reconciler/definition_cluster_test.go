//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"fmt"
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
	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource/bmcresourcetest"
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
	earlier := earlierDefinition(ours)
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

	var said definitionProblem
	c := s.controller(func(config *reconciler.Config) { config.OnDefinition = said.set })
	f := s.frontend("frontend-0", "10.0.0.10")
	s.eventually("it says what is the matter", func() error {
		for _, part := range []string{"kubectl apply", "status.observedGeneration", "status.frontend", "status.nodePorts"} {
			if !strings.Contains(said.get(), part) {
				return errors.New(said.get())
			}
		}
		missing, err := c.gauge("vbmc_controller_definition_fields_missing", "status")
		if err == nil && missing < 3 {
			err = errors.New("the metric has too few fields")
		}
		return err
	})
	s.wantDefinitionEvent("DefinitionOutdated", "kubectl apply")
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
	if said.get() != "" {
		t.Errorf("it says %q when it serves", said.get())
	}
	if missing, err := c.gauge("vbmc_controller_definition_fields_missing", "status"); err != nil || missing != 0 {
		t.Errorf("the metric is %v, %v", missing, err)
	}
}

// TestDefinition_underLeader: a definition that is replaced by an earlier one, or
// removed, while a controller works is told of, and the controller stays ready; it
// works on when the definition is back. It changes what all tests have, so it is
// alone.
func TestDefinition_underLeader(t *testing.T) {
	s := newSite(t)
	ours := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crds.VirtualMachineBMC, &ours.Object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(ours.DeepCopy()), client.ForceOwnership, client.FieldOwner("test"))
		if err != nil {
			t.Error(err)
		}
	})
	var said definitionProblem
	c := s.controller(func(config *reconciler.Config) { config.OnDefinition = said.set })
	f := s.frontend("frontend-0", "10.0.0.10")
	bmc := s.complete("vm")
	s.wantReady(bmc)
	wantMetrics := func(when string, served float64, missing bool) {
		t.Helper()
		s.eventually(when, func() error {
			if got, err := c.gauge("vbmc_controller_api_served", v1beta1.GroupVersion.Group); err != nil || got != served {
				return fmt.Errorf("served is %v, %w", got, err)
			}
			got, err := c.gauge("vbmc_controller_definition_fields_missing", "status")
			if served == 0 {
				if err == nil {
					return fmt.Errorf("%v fields are missing of a definition that is not there", got)
				}
				return nil
			}
			if err != nil || got > 0 != missing {
				return fmt.Errorf("%v fields are missing, %w", got, err)
			}
			return nil
		})
	}
	wantMetrics("it is served", 1, false)
	began := said.all() // The API server's OpenAPI documents may have come a moment later.

	if err := s.replace(t.Context(), earlierDefinition(ours)); err != nil {
		t.Fatal(err)
	}
	wantMetrics("the earlier one is served", 1, true)
	s.wantDefinitionEvent("DefinitionOutdated", "is another version's")
	if got := f.has(ipmi); !slices.Equal(got, []string{bmc.Name}) {
		t.Errorf("under an earlier definition the frontend serves %v", got)
	}
	if err := s.replace(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	wantMetrics("it is served again", 1, false)
	// Fields that the earlier definition does not have are lost with it.
	s.wantReady(bmc)

	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(ours.GroupVersionKind())
	definition.SetName(ours.GetName())
	s.remove(definition)
	wantMetrics("it is gone", 0, false)
	s.wantDefinitionEvent("DefinitionMissing", "is not there")
	bmcresourcetest.Install(t, s.config)
	wantMetrics("it is there again", 1, false)
	// The watch may have ended before it told of the BMC's end.
	s.eventually("frontends have no BMC", func() error { return equal(len(f.has(ipmi)), 0) })
	s.collect(bmc)
	again := s.bmc("vm")
	s.eventually("create", func() error { return s.Create(t.Context(), again) })
	s.wantReady(again)
	if got := said.all(); !slices.Equal(got, began) || said.get() != "" {
		t.Errorf("readiness was told %q, want nothing after it began: %q", got, began)
	}
}

// definitionProblem is what readiness was told.
type definitionProblem struct {
	mu   sync.Mutex
	said []string // each once, as long as it was the last
}

func (d *definitionProblem) set(problem string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.said); n == 0 || d.said[n-1] != problem {
		d.said = append(d.said, problem)
	}
}

// get is what it was told last.
func (d *definitionProblem) get() string {
	if all := d.all(); len(all) > 0 {
		return all[len(all)-1]
	}
	return "nothing"
}

func (d *definitionProblem) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.said)
}

// wantDefinitionEvent waits for an event that says so.
func (s *site) wantDefinitionEvent(reason, text string) {
	s.Helper()
	s.eventually("event", func() error {
		var list eventsv1.EventList
		if err := s.List(s.Context(), &list, client.InNamespace(s.system)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == reason && e.Type == "Warning" && strings.Contains(e.Note, text)
		}) {
			return errors.New("there is none")
		}
		return nil
	})
}

// earlierDefinition is that of line 0.6.0, as test/crd has it.
func earlierDefinition(ours *unstructured.Unstructured) *unstructured.Unstructured {
	earlier := ours.DeepCopy()
	version := earlier.Object["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	root := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
	keep(root["spec"], "virtualMachineRef", "authSecretRef", "ipmi")
	delete(root["spec"].(map[string]any), "x-kubernetes-validations")
	keep(root["status"], "clusterIP", "conditions", "bootOverride")
	return earlier
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
