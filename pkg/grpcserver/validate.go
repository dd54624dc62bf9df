// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"errors"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// validate checks a message against the rules in its .proto file. The error
// names each field that breaks one.
func validate(validator protovalidate.Validator, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "validate request: %T is not a message", m)
	}
	err := validator.Validate(message)
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		return grpcstatus.New(errorsv1.Reason_REASON_INTERNAL, "validate request: %v", err)
	}
	var bad errdetails.BadRequest
	for _, v := range invalid.Violations {
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field:       protovalidate.FieldPathString(v.Proto.GetField()),
			Description: v.Proto.GetMessage(),
			Reason:      v.Proto.GetRuleId(),
		})
	}
	return grpcstatus.WithDetails(errorsv1.Reason_REASON_INVALID_REQUEST, "invalid request: "+describe(&bad), &bad)
}

// describe puts the first violation into words.
func describe(bad *errdetails.BadRequest) string {
	if len(bad.FieldViolations) == 0 {
		return "no rule named"
	}
	v := bad.FieldViolations[0]
	if v.GetField() == "" {
		return v.GetDescription()
	}
	return v.GetField() + ": " + v.GetDescription()
}
