// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// codeOf is the one table from a service's reason to what an IPMI client sees.
// Ironic tries again on node busy and time-outs; what passes by itself maps
// there, and what does not does not.
var codeOf = map[errorsv1.Reason]ipmi.CompletionCode{
	errorsv1.Reason_REASON_UNSPECIFIED:            ipmi.Unspecified,
	errorsv1.Reason_REASON_INVALID_REQUEST:        ipmi.InvalidDataField,
	errorsv1.Reason_REASON_UNAUTHENTICATED:        ipmi.ResponseNotProvided, // The frontend's token, not the user's login.
	errorsv1.Reason_REASON_PERMISSION_DENIED:      ipmi.InsufficientPrivilege,
	errorsv1.Reason_REASON_BMC_NOT_FOUND:          ipmi.DestinationNotThere,
	errorsv1.Reason_REASON_MACHINE_NOT_FOUND:      ipmi.DestinationNotThere,
	errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND:   ipmi.RecordNotPresent,
	errorsv1.Reason_REASON_ENTRY_NOT_FOUND:        ipmi.RecordNotPresent,
	errorsv1.Reason_REASON_INVALID_POWER_STATE:    ipmi.NotInPresentState,
	errorsv1.Reason_REASON_NO_BOOT_DEVICE:         ipmi.NotInPresentState,
	errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED:  ipmi.InvalidDataField,
	errorsv1.Reason_REASON_KERNEL_BOOT:            ipmi.NotInPresentState,
	errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE:      ipmi.NotInPresentState,
	errorsv1.Reason_REASON_NO_CONSOLE:             ipmi.NotInPresentState,
	errorsv1.Reason_REASON_STALE_REVISION:         ipmi.ReservationCanceled,
	errorsv1.Reason_REASON_UNSUPPORTED:            ipmi.SubFunctionDisabled,
	errorsv1.Reason_REASON_OPERATION_UNDER_WAY:    ipmi.NodeBusy,
	errorsv1.Reason_REASON_LIMIT_REACHED:          ipmi.NodeBusy,
	errorsv1.Reason_REASON_ALREADY_EXISTS:         ipmi.InvalidDataField,
	errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: ipmi.NodeBusy,
	errorsv1.Reason_REASON_INTERNAL:               ipmi.Unspecified,
}

// CompletionCode returns what an IPMI client sees of a call's outcome. A call
// that ran out of time may still be carried out, which is what Timeout says.
func CompletionCode(err error) ipmi.CompletionCode {
	switch {
	case err == nil:
		return ipmi.OK
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return ipmi.Timeout
	}
	if code, ok := codeOf[grpcstatus.ReasonOf(err)]; ok {
		return code
	}
	return ipmi.Unspecified
}
