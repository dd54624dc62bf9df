// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcstatus makes the errors of all services: gRPC statuses that carry
// a bmc.errors.v1.Reason, each reason always with the same code.
package grpcstatus

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// Domain is the ErrorInfo domain of this project's errors.
const Domain = "bmc.kubevirt.io"

const reasonPrefix = "REASON_"

// codeOf is the one table of reasons and codes; bmc/errors/v1/reason.proto
// documents it.
var codeOf = map[errorsv1.Reason]codes.Code{
	errorsv1.Reason_REASON_INVALID_REQUEST:        codes.InvalidArgument,
	errorsv1.Reason_REASON_UNAUTHENTICATED:        codes.Unauthenticated,
	errorsv1.Reason_REASON_PERMISSION_DENIED:      codes.PermissionDenied,
	errorsv1.Reason_REASON_BMC_NOT_FOUND:          codes.NotFound,
	errorsv1.Reason_REASON_MACHINE_NOT_FOUND:      codes.NotFound,
	errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND:   codes.NotFound,
	errorsv1.Reason_REASON_ENTRY_NOT_FOUND:        codes.NotFound,
	errorsv1.Reason_REASON_INVALID_POWER_STATE:    codes.FailedPrecondition,
	errorsv1.Reason_REASON_NO_BOOT_DEVICE:         codes.FailedPrecondition,
	errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED:  codes.FailedPrecondition,
	errorsv1.Reason_REASON_KERNEL_BOOT:            codes.FailedPrecondition,
	errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE:      codes.FailedPrecondition,
	errorsv1.Reason_REASON_NO_CONSOLE:             codes.FailedPrecondition,
	errorsv1.Reason_REASON_STALE_REVISION:         codes.FailedPrecondition,
	errorsv1.Reason_REASON_UNSUPPORTED:            codes.Unimplemented,
	errorsv1.Reason_REASON_OPERATION_UNDER_WAY:    codes.Aborted,
	errorsv1.Reason_REASON_LIMIT_REACHED:          codes.ResourceExhausted,
	errorsv1.Reason_REASON_ALREADY_EXISTS:         codes.AlreadyExists,
	errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: codes.Unavailable,
	errorsv1.Reason_REASON_INTERNAL:               codes.Internal,
}

// Code returns the gRPC code of a reason; Unknown for one that is not in the
// table.
func Code(reason errorsv1.Reason) codes.Code {
	if c, ok := codeOf[reason]; ok {
		return c
	}
	return codes.Unknown
}

// New returns an error with a reason and a text for people, made as by
// fmt.Sprintf.
func New(reason errorsv1.Reason, format string, args ...any) error {
	return WithDetails(reason, fmt.Sprintf(format, args...))
}

// WithDetails returns an error with a reason, a text for people and further
// details, as errdetails.BadRequest.
func WithDetails(reason errorsv1.Reason, message string, details ...protoadapt.MessageV1) error {
	st := status.New(Code(reason), message)
	info := &errdetails.ErrorInfo{Reason: strings.TrimPrefix(reason.String(), reasonPrefix), Domain: Domain}
	withDetails, err := st.WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	if err != nil { // A detail could not be marshalled: the code and text still count.
		return st.Err()
	}
	return withDetails.Err()
}

// ReasonOf returns the reason that an error carries. An error without one, as
// of a connection that broke, gets the reason that fits its gRPC code best;
// nil gets REASON_UNSPECIFIED.
func ReasonOf(err error) errorsv1.Reason {
	if err == nil {
		return errorsv1.Reason_REASON_UNSPECIFIED
	}
	var holder interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &holder) {
		return errorsv1.Reason_REASON_INTERNAL
	}
	st := holder.GRPCStatus()
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		if n, ok := errorsv1.Reason_value[reasonPrefix+info.GetReason()]; ok {
			return errorsv1.Reason(n)
		}
	}
	switch st.Code() {
	case codes.OK:
		return errorsv1.Reason_REASON_UNSPECIFIED
	case codes.InvalidArgument, codes.OutOfRange:
		return errorsv1.Reason_REASON_INVALID_REQUEST
	case codes.Unauthenticated:
		return errorsv1.Reason_REASON_UNAUTHENTICATED
	case codes.PermissionDenied:
		return errorsv1.Reason_REASON_PERMISSION_DENIED
	case codes.Unimplemented:
		return errorsv1.Reason_REASON_UNSUPPORTED
	case codes.Aborted:
		return errorsv1.Reason_REASON_OPERATION_UNDER_WAY
	case codes.ResourceExhausted:
		return errorsv1.Reason_REASON_LIMIT_REACHED
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE
	default:
		return errorsv1.Reason_REASON_INTERNAL
	}
}
