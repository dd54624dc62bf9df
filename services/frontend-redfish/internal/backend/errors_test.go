// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// Every reason has an answer, and this table repeats each on purpose: a change
// of what clients see must be meant.
func TestExplain(t *testing.T) {
	t.Parallel()
	want := map[string]struct {
		status int
		id     string
		retry  bool
	}{
		"INVALID_REQUEST":        {400, "GeneralError", false},
		"UNAUTHENTICATED":        {503, "ServiceTemporarilyUnavailable", true},
		"PERMISSION_DENIED":      {500, "InternalError", false},
		"BMC_NOT_FOUND":          {404, "ResourceMissingAtURI", false},
		"MACHINE_NOT_FOUND":      {404, "ResourceMissingAtURI", false},
		"MEDIA_SLOT_NOT_FOUND":   {404, "ResourceMissingAtURI", false},
		"ENTRY_NOT_FOUND":        {404, "ResourceMissingAtURI", false},
		"INVALID_POWER_STATE":    {409, "ResourceInStandby", false},
		"NO_BOOT_DEVICE":         {400, "PropertyValueError", false},
		"BOOT_MODE_UNSUPPORTED":  {400, "PropertyValueError", false},
		"KERNEL_BOOT":            {409, "PropertyNotWritable", false},
		"MEDIA_SLOT_IN_USE":      {409, "ResourceInUse", false},
		"NO_CONSOLE":             {404, "ResourceMissingAtURI", false},
		"STALE_REVISION":         {412, "PreconditionFailed", false},
		"UNSUPPORTED":            {400, "ActionNotSupported", false},
		"OPERATION_UNDER_WAY":    {503, "ResourceInUse", true},
		"LIMIT_REACHED":          {503, "ResourceExhaustion", true},
		"ALREADY_EXISTS":         {409, "ResourceInUse", false},
		"HYPERVISOR_UNAVAILABLE": {503, "ServiceTemporarilyUnavailable", true},
		"INTERNAL":               {500, "InternalError", false},
	}
	for value, name := range errorsv1.Reason_name {
		reason := errorsv1.Reason(value)
		if reason == errorsv1.Reason_REASON_UNSPECIFIED {
			continue
		}
		w, ok := want[strings.TrimPrefix(name, "REASON_")]
		if !ok {
			t.Errorf("%s is not in this test", name)
			continue
		}
		if _, ok := answers[reason]; !ok {
			t.Errorf("%s has no answer", name)
		}
		e := Explain(grpcstatus.New(reason, "the text"), Subject{URI: "/x", Action: "ComputerSystem.Reset"})
		if id := strings.TrimPrefix(e.Messages[0].MessageID, "Base.1.22."); e.Status != w.status || id != w.id || (e.RetryAfter > 0) != w.retry {
			t.Errorf("%s = %d %s retry %d, want %+v", name, e.Status, id, e.RetryAfter, w)
		}
		for _, arg := range e.Messages[0].MessageArgs {
			if arg == "" {
				t.Errorf("%s: a message lacks an argument", name)
			}
		}
	}
	if len(answers) != len(errorsv1.Reason_name)-1 {
		t.Errorf("%d answers for %d reasons", len(answers), len(errorsv1.Reason_name)-1)
	}
}

// What happens below our own services: connections and deadlines.
func TestExplain_errorsWithoutReason(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		status int
	}{
		"connection lost": {status.Error(codes.Unavailable, "dial tcp 10.0.0.1: secret detail"), 503},
		"deadline":        {status.FromContextError(context.DeadlineExceeded).Err(), 503},
		"no such service": {status.Error(codes.Unimplemented, "unknown service"), 400},
		"a plain error":   {errors.New("secret detail"), 500},
	} {
		e := Explain(tc.err, Subject{URI: "/x"})
		if e.Status != tc.status || strings.Contains(e.Error(), "secret") {
			t.Errorf("%s: %d %q", name, e.Status, e.Error())
		}
	}
}
