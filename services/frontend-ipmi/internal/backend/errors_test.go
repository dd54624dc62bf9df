// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// A new reason has to be given a completion code here and in the table.
func TestCompletionCode_everyReason(t *testing.T) {
	t.Parallel()
	want := map[errorsv1.Reason]ipmi.CompletionCode{
		errorsv1.Reason_REASON_INVALID_REQUEST:        0xCC,
		errorsv1.Reason_REASON_UNAUTHENTICATED:        0xCE,
		errorsv1.Reason_REASON_PERMISSION_DENIED:      0xD4,
		errorsv1.Reason_REASON_BMC_NOT_FOUND:          0xD3,
		errorsv1.Reason_REASON_MACHINE_NOT_FOUND:      0xD3,
		errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND:   0xCB,
		errorsv1.Reason_REASON_ENTRY_NOT_FOUND:        0xCB,
		errorsv1.Reason_REASON_INVALID_POWER_STATE:    0xD5,
		errorsv1.Reason_REASON_NO_BOOT_DEVICE:         0xD5,
		errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED:  0xCC,
		errorsv1.Reason_REASON_KERNEL_BOOT:            0xD5,
		errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE:      0xD5,
		errorsv1.Reason_REASON_NO_CONSOLE:             0xD5,
		errorsv1.Reason_REASON_STALE_REVISION:         0xC5,
		errorsv1.Reason_REASON_UNSUPPORTED:            0xD6,
		errorsv1.Reason_REASON_OPERATION_UNDER_WAY:    0xC0,
		errorsv1.Reason_REASON_LIMIT_REACHED:          0xC0,
		errorsv1.Reason_REASON_ALREADY_EXISTS:         0xCC,
		errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: 0xC0,
		errorsv1.Reason_REASON_INTERNAL:               0xFF,
	}
	for n, name := range errorsv1.Reason_name {
		reason := errorsv1.Reason(n)
		if reason == errorsv1.Reason_REASON_UNSPECIFIED {
			continue
		}
		code, ok := want[reason]
		if !ok {
			t.Errorf("%s: no completion code is decided", name)
			continue
		}
		if got := backend.CompletionCode(fmt.Errorf("call: %w", grpcstatus.New(reason, "text"))); got != code {
			t.Errorf("%s gives %v, want %v", name, got, code)
		}
	}
}

func TestCompletionCode_withoutReason(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want ipmi.CompletionCode
	}{
		"success":                      {nil, ipmi.OK},
		"deadline of the context":      {context.DeadlineExceeded, ipmi.Timeout},
		"deadline of the call":         {status.Error(codes.DeadlineExceeded, ""), ipmi.Timeout},
		"backend is not there":         {status.Error(codes.Unavailable, ""), ipmi.NodeBusy},
		"backend lacks the method":     {status.Error(codes.Unimplemented, ""), ipmi.SubFunctionDisabled},
		"an error of no known kind":    {errors.New("x"), ipmi.Unspecified},
		"an unknown gRPC code":         {status.Error(codes.Unknown, ""), ipmi.Unspecified},
		"an unspecified reason, never": {grpcstatus.New(errorsv1.Reason_REASON_UNSPECIFIED, ""), ipmi.Unspecified},
	} {
		if got := backend.CompletionCode(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
