// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// TestTranslate_what_KubeVirt_answers makes the errors as virt-api and the API
// server make them.
func TestTranslate_what_KubeVirt_answers(t *testing.T) {
	t.Parallel()
	conflict := func(text string) error {
		return apierrors.NewConflict(kvv1.Resource("virtualmachine"), "vm", errors.New(text))
	}
	for name, c := range map[string]struct {
		err  error
		want error
		// The texts of a conflict or an invalid request that is wanted.
		conflict, invalid string
	}{
		"start of a running machine": {
			err:      conflict("VM is already running"),
			conflict: "VM is already running",
		},
		"start under Always": {
			err:      conflict("Always does not support manual start requests"),
			conflict: "Always does not support manual start requests",
		},
		"second request": {
			err:  apierrors.NewInternalError(errors.New("unable to complete request: stop/start already underway")),
			want: hypervisor.ErrUnderway,
		},
		"lost race that virt-api names": {
			err:  conflict("jsonpatch test operation does not apply: /status/stateChangeRequests"),
			want: hypervisor.ErrStale,
		},
		"lost race as the API server tells virt-api": {
			err:  apierrors.NewInternalError(apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "test failed", 0, false)),
			want: hypervisor.ErrStale,
		},
		"failed test in a patch of ours": {
			err:  apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "test failed", 0, false),
			want: hypervisor.ErrStale,
		},
		"overtaken update": {
			err:  apierrors.NewConflict(kvv1.Resource("virtualmachines"), "vm", errors.New("the object has been modified; please apply your changes to the latest version and try again")),
			want: hypervisor.ErrStale,
		},
		"no machine": {
			err:  apierrors.NewNotFound(kvv1.Resource("virtualmachine"), "vm"),
			want: hypervisor.ErrNotFound,
		},
		"no instance": {
			err:  apierrors.NewNotFound(kvv1.Resource("virtualmachineinstance"), "vm"),
			want: hypervisor.ErrNoInstance,
		},
		"no KubeVirt": {
			err:  apierrors.NewGenericServerResponse(http.StatusNotFound, "put", kvv1.Resource("virtualmachines"), "vm", "404 page not found", 0, true),
			want: hypervisor.ErrUnavailable,
		},
		"reset of a starting machine": {
			err:     apierrors.NewBadRequest("Failed to reset non-running VMI with phase Scheduling: VMI is not in Scheduled or Running state"),
			invalid: "Failed to reset non-running VMI with phase Scheduling: VMI is not in Scheduled or Running state",
		},
		"duplicate boot order": {
			err: &apierrors.StatusError{ErrStatus: metav1.Status{
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message: `admission webhook "virtualmachine-validator.kubevirt.io" denied the request: Boot order for spec.template.spec.domain.devices.interfaces[0].bootOrder already set for a different device.`,
			}},
			invalid: "Boot order for spec.template.spec.domain.devices.interfaces[0].bootOrder already set for a different device.",
		},
		"pause with a probe": {
			err:  apierrors.NewForbidden(kvv1.Resource("virtualmachineinstance"), "vm", errors.New("Pausing VMIs with LivenessProbe is currently not supported")),
			want: hypervisor.ErrUnsupported,
		},
		"no right": {
			err:  apierrors.NewForbidden(kvv1.Resource("virtualmachines"), "vm", errors.New("User cannot update")),
			want: hypervisor.ErrUnavailable,
		},
		"no identity": {
			err:  apierrors.NewUnauthorized("Unauthorized"),
			want: hypervisor.ErrUnavailable,
		},
		"virt-api down": {
			err:  apierrors.NewServiceUnavailable("no endpoints available for service \"virt-api\""),
			want: hypervisor.ErrUnavailable,
		},
		"virt-handler down": {
			err:  apierrors.NewInternalError(errors.New("dial tcp 10.0.0.1:8186: connect: connection refused")),
			want: hypervisor.ErrUnavailable,
		},
		"API server down": {
			err:  fmt.Errorf("put: %w", errors.New("connection refused")),
			want: hypervisor.ErrUnavailable,
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := translate(t.Context(), c.err)
			if e, ok := errors.AsType[*hypervisor.ConflictError](got); ok != (c.conflict != "") || ok && e.Message != c.conflict {
				t.Errorf("got %v, want the conflict %q", got, c.conflict)
			}
			if e, ok := errors.AsType[*hypervisor.InvalidError](got); ok != (c.invalid != "") || ok && e.Message != c.invalid {
				t.Errorf("got %v, want it to be invalid: %q", got, c.invalid)
			}
			if c.want != nil && !errors.Is(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if errors.Is(c.want, hypervisor.ErrUnavailable) && !errors.Is(got, c.err) {
				t.Errorf("got %v, without its cause %v", got, c.err)
			}
			if c.err == nil && got != nil {
				t.Errorf("got %v for nothing", got)
			}
		})
	}
}

func TestTranslate_the_caller_gave_up(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := translate(ctx, errors.New("client rate limiter Wait returned an error: context canceled")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
