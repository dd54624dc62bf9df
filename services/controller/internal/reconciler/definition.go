// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/yaml"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/logkey"
)

const (
	// definitionName is that of the CustomResourceDefinition.
	definitionName = "virtualmachinebmcs.bmc.kubevirt.io"
	// definitionCommand brings the cluster's up to date. Others, as Helm, manage
	// fields of it.
	definitionCommand = "kubectl apply --server-side --force-conflicts -f api/crds/bmc.kubevirt.io_virtualmachinebmcs.yaml"
	// Reasons of the events about it: it is another version's, or can't be read, and it
	// is not there. Events of one reason are counted as one, with the text of the first.
	reasonOutdated = "DefinitionOutdated"
	reasonMissing  = "DefinitionMissing"

	partSpec   = "spec"
	partStatus = "status"
)

// definition tells whether the cluster's CustomResourceDefinition of
// VirtualMachineBMC has what this version's has. Server-side apply of a field that
// it lacks is not pruned but fails, as an internal error
// (kubernetes/kubernetes#139253), so that no status could be written; and Helm
// never upgrades what a chart has in its folder crds. It asks for the schema that
// the API server serves, which takes no right.
type definition struct {
	kind schema.GroupVersionKind
	// want is this version's schema.
	want      *fields
	discovery discovery.OpenAPIV3SchemaInterface
	interval  time.Duration
	log       *slog.Logger
	missing   *prometheus.GaugeVec
	// served is apis.served.
	served *prometheus.GaugeVec
	// events are about regarding, which stands for the controllers.
	events    events.EventRecorder
	regarding *corev1.ObjectReference
	// tell is told, until the definition fits for the first time, what is the matter;
	// empty: nothing is.
	tell func(problem string)

	fits chan struct{} // closed when it fits
	// url names the document that was looked at last, by its content, and known is
	// what was found in it.
	url   string
	known shortage
}

// shortage is what a definition lacks, by its part.
type shortage map[string][]string

// fields is what is of interest of a schema.
type fields struct {
	Properties map[string]*fields `json:"properties"`
	Items      *fields            `json:"items"`
	Enum       []any              `json:"enum"`
	Preserve   bool               `json:"x-kubernetes-preserve-unknown-fields"`
}

func newDefinition(metrics prometheus.Registerer, embedded []byte) (*definition, error) {
	d := &definition{
		kind: v1beta1.GroupVersion.WithKind("VirtualMachineBMC"),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vbmc_controller_definition_fields_missing",
			Help: "Fields and values that the cluster's CustomResourceDefinition of VirtualMachineBMC lacks, by the part of the object. The controller does not begin without those of the status.",
		}, []string{"part"}),
		fits: make(chan struct{}),
	}
	var err error
	if d.want, err = fieldsOf(embedded, d.kind.Version); err != nil {
		return nil, err
	}
	return d, metrics.Register(d.missing)
}

// fieldsOf reads a version's schema in a CustomResourceDefinition in YAML.
func fieldsOf(content []byte, version string) (*fields, error) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema *fields `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &crd); err != nil {
		return nil, fmt.Errorf("parse CustomResourceDefinition: %w", err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == version && v.Schema.OpenAPIV3Schema != nil {
			return v.Schema.OpenAPIV3Schema, nil
		}
	}
	return nil, fmt.Errorf("parse CustomResourceDefinition: it has no version %s", version)
}

// run looks until the context ends.
func (d *definition) run(ctx context.Context) {
	ticker := time.NewTicker(d.interval)
	defer ticker.Stop()
	fitted, said := false, ""
	for {
		reason, problem, fit := d.look()
		if problem != "" && problem != said && ctx.Err() == nil {
			d.log.ErrorContext(ctx, "the CustomResourceDefinition is not this version's", "waits", !fit && !fitted, logkey.Error, problem)
			d.events.Eventf(d.regarding, nil, corev1.EventTypeWarning, reason, "ReadDefinition", "%s", problem)
		}
		if problem == "" && said != "" {
			d.log.InfoContext(ctx, "the CustomResourceDefinition is this version's")
		}
		said = problem
		if !fitted && d.tell != nil {
			// A controller that works goes on to, and stays ready: those that it serves
			// need it, and nobody is served better by another.
			if fit {
				d.tell("")
			} else {
				d.tell(problem)
			}
		}
		if fit && !fitted {
			fitted = true
			close(d.fits)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look returns what is the matter with the definition, for people and as the reason
// of an event, and whether the controller can work with it all the same.
func (d *definition) look() (reason, problem string, fit bool) {
	lacks, served, err := d.lacks()
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return reasonOutdated, fmt.Sprintf("the controller may not read the API server's OpenAPI documents, which ClusterRole system:discovery is for, and takes CustomResourceDefinition %s for its own version's: %v", definitionName, err), true
	case err != nil:
		return reasonOutdated, fmt.Sprintf("can't read the definition that the API server serves: %v", err), false
	case !served:
		d.served.WithLabelValues(d.kind.Group).Set(0)
		d.missing.Reset()
		return reasonMissing, fmt.Sprintf("CustomResourceDefinition %s is not there; install it: %s", definitionName, definitionCommand), false
	}
	d.served.WithLabelValues(d.kind.Group).Set(1)
	for _, part := range []string{partSpec, partStatus} {
		d.missing.WithLabelValues(part).Set(float64(len(lacks[part])))
	}
	if len(lacks) == 0 {
		return "", "", true
	}
	all := slices.Concat(lacks[partStatus], lacks[partSpec])
	return reasonOutdated, shorten(fmt.Sprintf("CustomResourceDefinition %s is another version's, upgrade it: %s. It lacks %s",
		definitionName, definitionCommand, strings.Join(all, ", "))), len(lacks[partStatus]) == 0
}

// lacks returns what the served definition lacks; served: there is one.
func (d *definition) lacks() (lacks shortage, served bool, err error) {
	paths, err := d.discovery.OpenAPIV3().Paths()
	if err != nil {
		return nil, false, fmt.Errorf("list OpenAPI documents: %w", err)
	}
	document, ok := paths["apis/"+d.kind.GroupVersion().String()]
	if !ok {
		return nil, false, nil
	}
	url := document.ServerRelativeURL()
	if d.known != nil && url == d.url {
		return d.known, true, nil
	}
	content, err := document.Schema("application/json")
	if err != nil {
		return nil, false, fmt.Errorf("read OpenAPI document of %s: %w", d.kind.GroupVersion(), err)
	}
	is, err := servedFields(content, d.kind)
	if is == nil || err != nil {
		return nil, false, err
	}
	d.url, d.known = url, shortage{}
	for _, part := range []string{partSpec, partStatus} {
		if list := d.want.Properties[part].missing(is.Properties[part], part); len(list) > 0 {
			d.known[part] = list
		}
	}
	return d.known, true, nil
}

// servedFields finds a kind in an OpenAPI document; nil: it is not in it.
func servedFields(content []byte, kind schema.GroupVersionKind) (*fields, error) {
	var document struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("parse OpenAPI document: %w", err)
	}
	for _, raw := range document.Components.Schemas {
		var of struct {
			Kinds []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			fields
		}
		if err := json.Unmarshal(raw, &of); err != nil {
			continue // It is another's.
		}
		if len(of.Kinds) == 1 && of.Kinds[0] == kind {
			return &of.fields, nil
		}
	}
	return nil, nil
}

// missing returns the fields and enumerated values that a schema lacks, as paths.
// What is below a field that is missing is not named.
func (f *fields) missing(is *fields, path string) []string {
	switch {
	case f == nil:
		return nil
	case is == nil:
		return []string{path}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(f.Properties)) {
		below := is.Properties[name]
		if below == nil && is.Preserve {
			continue
		}
		list = append(list, f.Properties[name].missing(below, path+"."+name)...)
	}
	if f.Items != nil && is.Items != nil {
		list = append(list, f.Items.missing(is.Items, path+"[]")...)
	}
	for _, value := range f.Enum {
		if len(is.Enum) > 0 && !slices.Contains(is.Enum, value) {
			list = append(list, fmt.Sprintf("%s=%v", path, value))
		}
	}
	return list
}
