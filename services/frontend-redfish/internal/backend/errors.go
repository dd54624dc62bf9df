// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"strconv"

	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
)

// retryAfter is what clients are told to wait, in seconds, when a backend is
// not available or busy.
const retryAfter = 5

// Subject is what a failed call was about, for the arguments of messages.
type Subject struct {
	// URI of the request.
	URI string
	// Action that was asked for, as ComputerSystem.Reset; empty when none was.
	Action string
}

// answer says how a reason is told to a Redfish client.
type answer struct {
	status int
	key    message.Key
	args   func(Subject) []string // nil: the message has none
	retry  bool                   // the same request may succeed later
	// The error's text is made for people and about what they asked for.
	tell bool
}

// answers is the one table of reasons and answers.
var answers = map[errorsv1.Reason]answer{
	errorsv1.Reason_REASON_INVALID_REQUEST: {status: 400, key: message.GeneralError, tell: true},
	// The client's own credentials were right: the backends refuse this
	// frontend, whose token is being replaced or whose rights are missing.
	errorsv1.Reason_REASON_UNAUTHENTICATED:      {status: 503, key: message.ServiceTemporarilyUnavailable, args: retryArg, retry: true},
	errorsv1.Reason_REASON_PERMISSION_DENIED:    {status: 500, key: message.InternalError},
	errorsv1.Reason_REASON_BMC_NOT_FOUND:        {status: 404, key: message.ResourceMissingAtURI, args: uriArg},
	errorsv1.Reason_REASON_MACHINE_NOT_FOUND:    {status: 404, key: message.ResourceMissingAtURI, args: uriArg, tell: true},
	errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND: {status: 404, key: message.ResourceMissingAtURI, args: uriArg},
	errorsv1.Reason_REASON_ENTRY_NOT_FOUND:      {status: 404, key: message.ResourceMissingAtURI, args: uriArg},
	errorsv1.Reason_REASON_INVALID_POWER_STATE:  {status: 409, key: message.ResourceInStandby, tell: true},
	errorsv1.Reason_REASON_NO_BOOT_DEVICE:       {status: 400, key: message.PropertyValueError, args: fixed("BootSourceOverrideTarget"), tell: true},
	errorsv1.Reason_REASON_BOOT_MODE_UNSUPPORTED: {
		status: 400, key: message.PropertyValueError, args: fixed("BootSourceOverrideMode"), tell: true,
	},
	errorsv1.Reason_REASON_KERNEL_BOOT:            {status: 409, key: message.PropertyNotWritable, args: fixed("BootSourceOverrideTarget"), tell: true},
	errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE:      {status: 409, key: message.ResourceInUse, tell: true},
	errorsv1.Reason_REASON_NO_CONSOLE:             {status: 404, key: message.ResourceMissingAtURI, args: uriArg, tell: true},
	errorsv1.Reason_REASON_STALE_REVISION:         {status: 412, key: message.PreconditionFailed},
	errorsv1.Reason_REASON_UNSUPPORTED:            {status: 400, key: message.ActionNotSupported, args: actionArg, tell: true},
	errorsv1.Reason_REASON_OPERATION_UNDER_WAY:    {status: 503, key: message.ResourceInUse, retry: true, tell: true},
	errorsv1.Reason_REASON_LIMIT_REACHED:          {status: 503, key: message.ResourceExhaustion, args: uriArg, retry: true, tell: true},
	errorsv1.Reason_REASON_ALREADY_EXISTS:         {status: 409, key: message.ResourceInUse, tell: true},
	errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE: {status: 503, key: message.ServiceTemporarilyUnavailable, args: retryArg, retry: true},
	errorsv1.Reason_REASON_INTERNAL:               {status: 500, key: message.InternalError},
}

func fixed(arg string) func(Subject) []string { return func(Subject) []string { return []string{arg} } }

func uriArg(s Subject) []string { return []string{s.URI} }

func retryArg(Subject) []string { return []string{strconv.Itoa(retryAfter)} }

func actionArg(s Subject) []string {
	if s.Action == "" {
		return []string{s.URI}
	}
	return []string{s.Action}
}

// Explain returns the answer to a client whose call failed with an error of a
// backend.
func Explain(err error, about Subject) *message.Error {
	a, ok := answers[grpcstatus.ReasonOf(err)]
	if !ok {
		a = answers[errorsv1.Reason_REASON_INTERNAL]
	}
	var args []string
	if a.args != nil {
		args = a.args(about)
	}
	e := message.Errorf(a.status, a.key, args...)
	if a.retry {
		e.RetryAfter = retryAfter
	}
	if a.tell {
		if st, ok := status.FromError(err); ok {
			e.Text = st.Message()
		}
	}
	return e
}
