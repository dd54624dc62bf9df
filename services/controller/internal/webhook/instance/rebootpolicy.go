// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// rebootPolicyGate is KubeVirt's feature gate; without it KubeVirt refuses
	// instances that have the field.
	rebootPolicyGate = "RebootPolicy"
	// instanceSchema is the name of the instances' schema in KubeVirt's OpenAPI
	// document.
	instanceSchema = "io.kubevirt.v1.VirtualMachineInstance"
)

// RebootPolicies knows whether KubeVirt has domain.rebootPolicy: the field is in
// the served resource, and its feature gate is on. It looks every so often.
type RebootPolicies struct {
	// Client reads KubeVirt's own resource.
	Client client.Reader
	// Discovery reads the schemas that the API server serves.
	Discovery discovery.OpenAPIV3SchemaInterface
	// Interval is how often it looks.
	Interval time.Duration
	Log      *slog.Logger

	have atomic.Bool
}

// Have tells whether KubeVirt had it when it was looked for last.
func (r *RebootPolicies) Have() bool { return r.have.Load() }

// Run looks until the context ends.
func (r *RebootPolicies) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.Interval)
	defer ticker.Stop()
	var trouble string
	for {
		have, err := r.look(ctx)
		r.have.Store(have)
		switch {
		case err == nil:
			trouble = ""
		case ctx.Err() == nil && err.Error() != trouble:
			trouble = err.Error()
			r.Log.WarnContext(ctx, "can't find out whether KubeVirt has reboot policies: none is set", logkey.Error, trouble)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *RebootPolicies) look(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Interval)
	defer cancel()
	var list kvv1.KubeVirtList
	if err := r.Client.List(ctx, &list); err != nil {
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return false, nil // There is no KubeVirt.
		}
		return false, fmt.Errorf("list KubeVirts: %w", err)
	}
	gated := slices.ContainsFunc(list.Items, func(k kvv1.KubeVirt) bool {
		developer := k.Spec.Configuration.DeveloperConfiguration
		return developer != nil && slices.Contains(developer.FeatureGates, rebootPolicyGate) && !slices.Contains(developer.DisabledFeatureGates, rebootPolicyGate)
	})
	if !gated {
		return false, nil
	}
	return r.served()
}

// served tells whether the resource of instances has the field.
func (r *RebootPolicies) served() (bool, error) {
	paths, err := r.Discovery.OpenAPIV3().Paths()
	if err != nil {
		return false, fmt.Errorf("list OpenAPI documents: %w", err)
	}
	document, ok := paths["apis/"+kvv1.VirtualMachineInstanceGroupVersionKind.GroupVersion().String()]
	if !ok {
		return false, nil
	}
	content, err := document.Schema("application/json")
	if err != nil {
		return false, fmt.Errorf("read KubeVirt's OpenAPI document: %w", err)
	}
	return hasRebootPolicy(content)
}

// schema is what is of interest of an object's schema.
type schema struct {
	Properties map[string]schema `json:"properties"`
}

func hasRebootPolicy(content []byte) (bool, error) {
	var document struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(content, &document); err != nil {
		return false, fmt.Errorf("parse KubeVirt's OpenAPI document: %w", err)
	}
	raw, ok := document.Components.Schemas[instanceSchema]
	if !ok {
		return false, nil
	}
	var instance schema
	if err := json.Unmarshal(raw, &instance); err != nil {
		return false, fmt.Errorf("parse KubeVirt's OpenAPI document: %w", err)
	}
	_, ok = instance.Properties["spec"].Properties["domain"].Properties["rebootPolicy"]
	return ok, nil
}
