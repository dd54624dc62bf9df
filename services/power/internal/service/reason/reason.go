// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package reason turns the errors of the power service's domain into the
// statuses that its gRPC services answer with.
package reason

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/power/internal/console"
	"kubevirtbmc.dev/services/power/internal/machine"
)

// table has the reason of each error; the first that matches counts.
var table = []struct {
	err    error
	reason errorsv1.Reason
}{
	{hypervisor.ErrNoBMC, errorsv1.Reason_REASON_BMC_NOT_FOUND},
	{hypervisor.ErrNotFound, errorsv1.Reason_REASON_MACHINE_NOT_FOUND},
	{machine.ErrPowerState, errorsv1.Reason_REASON_INVALID_POWER_STATE},
	{machine.ErrRunStrategy, errorsv1.Reason_REASON_UNSUPPORTED},
	{machine.ErrOperation, errorsv1.Reason_REASON_OPERATION_UNDER_WAY},
	{machine.ErrNoBootDevice, errorsv1.Reason_REASON_NO_BOOT_DEVICE},
	{machine.ErrBootMode, errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED},
	{machine.ErrKernelBoot, errorsv1.Reason_REASON_KERNEL_BOOT},
	{console.ErrNoConsole, errorsv1.Reason_REASON_NO_CONSOLE},
	{console.ErrTooSlow, errorsv1.Reason_REASON_LIMIT_REACHED},
	{console.ErrTooMany, errorsv1.Reason_REASON_LIMIT_REACHED},
	{hypervisor.ErrUnsupported, errorsv1.Reason_REASON_UNSUPPORTED},
	{hypervisor.ErrUnavailable, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
	{hypervisor.ErrStale, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
	{hypervisor.ErrUnderway, errorsv1.Reason_REASON_OPERATION_UNDER_WAY},
}

// Status returns the gRPC status error of err; nil for nil.
func Status(err error) error {
	if err == nil {
		return nil
	}
	for _, row := range table {
		if errors.Is(err, row.err) {
			return grpcstatus.New(row.reason, "%s", err)
		}
	}
	if _, ok := errors.AsType[*hypervisor.InvalidError](err); ok {
		// The request was checked: it is the cluster that does not have it.
		return grpcstatus.New(errorsv1.Reason_REASON_UNSUPPORTED, "%s", err)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	case errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case status.Code(err) != codes.Unknown:
		return err
	}
	return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "%s", err)
}
