// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Texts of KubeVirt and of the API server that tell apart what their codes do
// not.
const (
	// textUnderway is virt-api's 500 to a request while another is pending.
	textUnderway = "already underway"
	// textPatch is the API server's 422 to a patch that does not apply, a failed
	// test among them; virt-api wraps it into a 500.
	textPatch = "the server rejected our request due to an error in our request"
	// textPatchTest is what virt-api makes of a failed test where the API server
	// names it.
	textPatchTest = "test operation does not apply"
	// textModified is the API server's 409 to a write that another overtook.
	textModified = "the object has been modified"
	// textNoResource is the API server's 404 for an API that is not there.
	textNoResource = "the server could not find the requested resource"
	// textProbe is in virt-api's 403 to a pause of a machine with such a probe.
	textProbe = "LivenessProbe"
	// textAdmission begins a webhook's refusal.
	textAdmission = "denied the request: "
)

// translate turns the answer to a request about a machine into an error of
// package hypervisor.
//
//	404 of the instance     ErrNoInstance
//	404 of the machine      ErrNotFound
//	409                     *ConflictError, ErrStale when a writer overtook
//	400, 422                *InvalidError, ErrStale when a test failed
//	403 because of a probe  ErrUnsupported
//	500 "already underway"  ErrUnderway
//	anything else           ErrUnavailable with the cause
func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	status := answer.Status()
	text := status.Message
	switch code := int(status.Code); {
	case strings.Contains(text, textUnderway) && (code == http.StatusInternalServerError || code == http.StatusConflict):
		return hypervisor.ErrUnderway
	case strings.Contains(text, textPatch), strings.Contains(text, textPatchTest), strings.Contains(text, textModified):
		return hypervisor.ErrStale
	case code == http.StatusNotFound && !strings.Contains(text, textNoResource):
		return notFound(status)
	case code == http.StatusConflict:
		return hypervisor.Conflictf("%s", reason(text))
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		return hypervisor.Invalidf("%s", reason(text))
	case code == http.StatusForbidden && strings.Contains(text, textProbe):
		return fmt.Errorf("%w: %s", hypervisor.ErrUnsupported, reason(text))
	default:
		return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
}

// notFound tells a missing instance from a missing machine.
func notFound(status metav1.Status) error {
	if status.Details != nil && strings.HasPrefix(strings.ToLower(status.Details.Kind), "virtualmachineinstance") {
		return hypervisor.ErrNoInstance
	}
	return hypervisor.ErrNotFound
}

// reason is KubeVirt's own text, without what the API server puts before it.
func reason(text string) string {
	if _, after, ok := strings.Cut(text, textAdmission); ok {
		return after
	}
	if strings.HasPrefix(text, "Operation cannot be fulfilled on ") || strings.Contains(text, " is forbidden: ") {
		if _, after, ok := strings.Cut(text, `": `); ok {
			return after
		}
		if _, after, ok := strings.Cut(text, " is forbidden: "); ok {
			return after
		}
	}
	return text
}
