// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// Some of the controller's ClusterRoles may be left out where nobody needs what
// they are for. What the controller has is asked for before it is used: a cache of
// what it may not list would never be filled, and with it nothing would begin.

// How long an answer about rights counts. One that was right and is not any more
// shows in what the API server refuses then.
const (
	lackTime = 10 * time.Second
	haveTime = 5 * time.Minute
)

// role is a ClusterRole that may be left out.
type role struct {
	// name is the manifest's, deploy/rbac/services/controller.yaml.
	name string
	// needs are of its rights those that are asked for: without the others the API
	// server refuses what is asked of it, which is said of the object.
	needs []right
}

// right is verbs for a resource.
type right struct {
	resource schema.GroupResource
	verbs    []string
}

var (
	watching = []string{"list", "watch"}
	removing = []string{"get", "delete"}

	roleDedicated = role{"bmc.kubevirt.io:controller:dedicated", []right{
		{schema.GroupResource{Group: "apps", Resource: "deployments"}, watching},
		{schema.GroupResource{Resource: "serviceaccounts"}, watching},
		{schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}, watching},
		{schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, watching},
		{schema.GroupResource{Resource: "configmaps"}, watching},
		{schema.GroupResource{Resource: "pods"}, watching},
	}}
	roleAdoption = role{"bmc.kubevirt.io:controller:adoption", []right{
		{schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, removing},
		{schema.GroupResource{Resource: "pods"}, removing},
		{schema.GroupResource{Group: "apps", Resource: "deployments"}, removing},
		{schema.GroupResource{Resource: "serviceaccounts"}, removing},
	}}
	roleProvisioning = role{"bmc.kubevirt.io:controller:provisioning", []right{
		{schema.GroupResource{Group: "bmc.kubevirt.io", Resource: "virtualmachinebmcs"}, []string{"create"}},
	}}
	roleProvisioningCluster = role{"bmc.kubevirt.io:controller:provisioning:cluster", []right{
		{schema.GroupResource{Resource: "namespaces"}, watching},
	}}
)

// rights knows which of those roles the controller has. Its methods may be called
// from several goroutines.
type rights struct {
	client  typedauthorizationv1.SelfSubjectAccessReviewInterface
	lacking *prometheus.GaugeVec

	mu      sync.Mutex
	answers map[rightsKey]answer
}

// rightsKey is a role in a namespace, or in all.
type rightsKey struct{ role, namespace string }

// answer is what a role lacks; empty: nothing.
type answer struct {
	lacks string
	until time.Time
}

func newRights(metrics prometheus.Registerer) (*rights, error) {
	r := &rights{
		lacking: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vbmc_controller_role_lacking", Help: "Whether the controller lacks a ClusterRole that it has use for, in a namespace that it serves, by role.",
		}, []string{"role"}),
		answers: map[rightsKey]answer{},
	}
	return r, metrics.Register(r.lacking)
}

// lack tells what the controller lacks of a role in a namespace, or in all where
// that is empty; empty: nothing.
func (r *rights) lack(ctx context.Context, of *role, namespace string) (string, error) {
	key := rightsKey{of.name, namespace}
	r.mu.Lock()
	known, ok := r.answers[key]
	r.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.lacks, nil
	}
	lacks, err := r.ask(ctx, of, namespace)
	if err != nil {
		return "", err
	}
	known = answer{lacks: lacks, until: time.Now().Add(haveTime)}
	if lacks != "" {
		known.until = time.Now().Add(lackTime)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[key] = known
	value := 0.0
	for key, is := range r.answers {
		if key.role == of.name && is.lacks != "" {
			value = 1
		}
	}
	r.lacking.WithLabelValues(of.name).Set(value)
	return lacks, nil
}

func (r *rights) ask(ctx context.Context, of *role, namespace string) (string, error) {
	for _, need := range of.needs {
		for _, verb := range need.verbs {
			review, err := r.client.Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: verb, Group: need.resource.Group, Resource: need.resource.Resource,
				},
			}}, metav1.CreateOptions{})
			if err != nil {
				return "", fmt.Errorf("ask whether the controller may %s %s: %w", verb, need.resource, err)
			}
			if !review.Status.Allowed {
				where := "in the cluster"
				if namespace != "" {
					where = "in namespace " + namespace
				}
				return fmt.Sprintf("the controller may not %s %s %s, which ClusterRole %s is for", verb, need.resource, where, of.name), nil
			}
		}
	}
	return "", nil
}
