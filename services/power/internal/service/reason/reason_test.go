// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/power/internal/console"
	"kubevirtbmc.dev/services/power/internal/machine"
	"kubevirtbmc.dev/services/power/internal/service/reason"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	if err := reason.Status(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	for _, test := range []struct {
		err  error
		want errorsv1.Reason
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
		{hypervisor.ErrUnseen, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
		{hypervisor.ErrStale, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
		{hypervisor.ErrUnderway, errorsv1.Reason_REASON_OPERATION_UNDER_WAY},
		// A policy of the cluster that forbids the change is no defect of ours.
		{hypervisor.Invalidf("the template is not to be changed"), errorsv1.Reason_REASON_UNSUPPORTED},
		{errors.New("another"), errorsv1.Reason_REASON_INTERNAL},
	} {
		err := reason.Status(fmt.Errorf("about a machine: %w", test.err))
		if got := grpcstatus.ReasonOf(err); got != test.want {
			t.Errorf("%v: reason %s, want %s", test.err, got, test.want)
		}
		if got, want := status.Code(err), grpcstatus.Code(test.want); got != want {
			t.Errorf("%v: code %s, want %s", test.err, got, want)
		}
	}
	for err, want := range map[error]codes.Code{
		context.Canceled:                  codes.Canceled,
		context.DeadlineExceeded:          codes.DeadlineExceeded,
		status.Error(codes.Aborted, "so"): codes.Aborted,
	} {
		if got := status.Code(reason.Status(err)); got != want {
			t.Errorf("%v: code %s, want %s", err, got, want)
		}
	}
}
