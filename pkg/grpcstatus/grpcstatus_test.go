// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcstatus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// The .proto file names each reason's code in its comment; clients read that.
func TestCode_agreesWithProtoComments(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../proto/bmc/errors/v1/reason.proto")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile(`// ([A-Z_]+): [^\n]*\n(?:  //[^\n]*\n)*  (REASON_[A-Z_]+) = `).FindAllSubmatch(text, -1) {
		documented[string(m[2])] = string(m[1])
	}
	for n, name := range errorsv1.Reason_name {
		reason := errorsv1.Reason(n)
		if reason == errorsv1.Reason_REASON_UNSPECIFIED {
			continue
		}
		var want codes.Code
		if err := want.UnmarshalJSON([]byte(`"` + documented[name] + `"`)); err != nil {
			t.Errorf("%s: the comment names no gRPC code: %v", name, err)
			continue
		}
		if got := grpcstatus.Code(reason); got != want {
			t.Errorf("%s has code %v, the comment says %v", name, got, want)
		}
	}
}

func TestReasonOf_everyReason_roundTrips(t *testing.T) {
	t.Parallel()
	for n := range errorsv1.Reason_name {
		reason := errorsv1.Reason(n)
		if reason == errorsv1.Reason_REASON_UNSPECIFIED {
			continue
		}
		err := fmt.Errorf("call power: %w", grpcstatus.New(reason, "machine %s", "sim-0"))
		if got := grpcstatus.ReasonOf(err); got != reason {
			t.Errorf("ReasonOf(New(%v)) = %v", reason, got)
		}
	}
}

func TestReasonOf_foreignErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want errorsv1.Reason
	}{
		"no error":              {nil, errorsv1.Reason_REASON_UNSPECIFIED},
		"not a gRPC error":      {errors.New("boom"), errorsv1.Reason_REASON_INTERNAL},
		"connection lost":       {status.Error(codes.Unavailable, "eof"), errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
		"deadline":              {status.FromContextError(context.DeadlineExceeded).Err(), errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE},
		"method does not exist": {status.Error(codes.Unimplemented, "x"), errorsv1.Reason_REASON_UNSUPPORTED},
		"not found by others":   {status.Error(codes.NotFound, "x"), errorsv1.Reason_REASON_INTERNAL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := grpcstatus.ReasonOf(tc.err); got != tc.want {
				t.Errorf("ReasonOf(%v) = %v, want %v", tc.err, got, tc.want)
			}
		})
	}
}
