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

	"kubevirtbmc.dev/pkg/hypervisor"
)

// Texts of the API server that tell apart what its codes do not.
const (
	// textPatch is its 422 to a patch that does not apply, a failed test among
	// them.
	textPatch = "the server rejected our request due to an error in our request"
	// textModified is its 409 to a write that another overtook.
	textModified = "the object has been modified"
	// textNoResource is its 404 for an API that is not there.
	textNoResource = "the server could not find the requested resource"
)

// translate turns the answer to a request about a machine into an error of
// package hypervisor.
//
//	404               ErrNotFound, ErrUnsupported where the API is not served
//	409, 422          ErrStale when a writer overtook or a test failed
//	400, 422, 403     *InvalidError with the refusal of a webhook
//	anything else     ErrUnavailable with the cause
func translate(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	status := answer.Status()
	switch code := int(status.Code); {
	case strings.Contains(status.Message, textPatch), strings.Contains(status.Message, textModified), code == http.StatusConflict:
		return hypervisor.ErrStale
	case code == http.StatusNotFound && strings.Contains(status.Message, textNoResource):
		return fmt.Errorf("%w: %s", hypervisor.ErrUnsupported, status.Message)
	case code == http.StatusNotFound:
		return hypervisor.ErrNotFound
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		return hypervisor.Invalidf("%s", status.Message)
	default:
		return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
}
