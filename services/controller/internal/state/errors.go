// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

func errNotFound(ref registry.Ref) error {
	return grpcstatus.New(errorsv1.Reason_REASON_BMC_NOT_FOUND, "there is no BMC %s", ref)
}

func errNotReady() error {
	return grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "the BMCs have not been read yet")
}

// translate turns an answer of the API server into an error of package
// grpcstatus. Its text goes to the log alone.
//
//	namespace gone or going    BMC_NOT_FOUND
//	too large                  LIMIT_REACHED
//	refused                    INTERNAL
//	anything else              HYPERVISOR_UNAVAILABLE
func (s *Store) translate(ctx context.Context, ref registry.Ref, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err // It is the store's own.
	}
	var answer apierrors.APIStatus
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return errNotFound(ref)
	case apierrors.IsRequestEntityTooLargeError(err), apierrors.HasStatusCause(err, metav1.CauseType(field.ErrorTypeTooLong)):
		return grpcstatus.New(errorsv1.Reason_REASON_LIMIT_REACHED, "the state of %s is too large", ref)
	}
	s.config.Log.LogAttrs(ctx, slog.LevelError, "can't keep a BMC's state", slog.String(logkey.Namespace, ref.Namespace),
		slog.String(logkey.BMC, ref.Name), slog.String(logkey.Error, err.Error()))
	if errors.As(err, &answer) && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)) {
		return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "Kubernetes refuses to keep the state of %s", ref)
	}
	return grpcstatus.New(errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE, "Kubernetes does not answer")
}
