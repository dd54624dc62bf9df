// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package access tells what a caller must be allowed to do before it may make a
// call: the method's rule (bmc/access/v1, an option in its .proto file) applied
// to what the call's first message names.
package access

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"kubevirtbmc.dev/pkg/grpcstatus"
	accessv1 "kubevirtbmc.dev/proto/gen/go/bmc/access/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
)

// The Kubernetes resource that subresources belong to.
const (
	Group    = "bmc.kubevirt.io"
	Resource = "virtualmachinebmcs"
)

// Verbs, as Kubernetes writes them.
const (
	Get    = "get"
	Update = "update"
)

// Credentials is the subresource whose reader knows how to log in to a BMC.
const Credentials = "credentials"

// Request is what a call asks for.
type Request struct {
	// Subresource and Verb as Kubernetes writes them: power, get.
	Subresource, Verb string
	// BMC that the call is about; nil: all of them.
	BMC *referencev1.BMCReference
}

// Equal tells whether two requests ask for the same.
func (r Request) Equal(other Request) bool {
	return r.Subresource == other.Subresource && r.Verb == other.Verb && (r.BMC == nil) == (other.BMC == nil) &&
		r.BMC.GetNamespace() == other.BMC.GetNamespace() && r.BMC.GetName() == other.BMC.GetName()
}

// String says what is asked for: update virtualmachinebmcs/power of default/vm.
func (r Request) String() string {
	what := r.Verb + " " + Resource + "/" + r.Subresource
	if r.BMC == nil {
		return what + " of all BMCs"
	}
	return what + " of " + r.BMC.GetNamespace() + "/" + r.BMC.GetName()
}

// RuleOf returns the rule of a method, by its full name with slashes. Without a
// rule, or with half of one, nobody may call it: ok is false.
func RuleOf(method string) (rule *accessv1.Rule, ok bool) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, false
	}
	if _, ok := descriptor.(protoreflect.MethodDescriptor); !ok {
		return nil, false
	}
	rule, _ = proto.GetExtension(descriptor.Options(), accessv1.E_Rule).(*accessv1.Rule)
	return rule, SubresourceName(rule.GetSubresource()) != "" && VerbName(rule.GetVerb()) != ""
}

// SubresourceName returns a subresource as Kubernetes writes it; empty for one
// that is not set.
func SubresourceName(s accessv1.Subresource) string {
	if s == accessv1.Subresource_SUBRESOURCE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "SUBRESOURCE_"))
}

// VerbName returns a verb as Kubernetes writes it; empty for one that is not
// set.
func VerbName(v accessv1.Verb) string {
	if v == accessv1.Verb_VERB_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(v.String(), "VERB_"))
}

// RequestOf returns what a call of a method asks for whose first message this
// is; nothing (ok is false) where the service itself asks about each BMC. Errors:
// PERMISSION_DENIED for a method without a rule, INVALID_REQUEST for a message
// that does not name the BMC that it has to.
func RequestOf(method string, message proto.Message) (request Request, ok bool, err error) {
	rule, ok := RuleOf(method)
	if !ok {
		return Request{}, false, grpcstatus.New(errorsv1.Reason_REASON_PERMISSION_DENIED, "nobody may call %s: it has no access rule", method)
	}
	if rule.GetGrantedBmcs() {
		return Request{}, false, nil
	}
	bmc, readOnly := named(message)
	if bmc == nil {
		return Request{}, false, grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the first message must name a BMC")
	}
	request = Request{Subresource: SubresourceName(rule.GetSubresource()), Verb: VerbName(rule.GetVerb()), BMC: bmc}
	if readOnly {
		request.Verb = Get
	}
	return request, true, nil
}

// BMCOf returns the BMC that a message names, in a field bmc of its own or of
// the payload that it carries; nil when it names none.
func BMCOf(message proto.Message) *referencev1.BMCReference {
	bmc, _ := named(message)
	return bmc
}

// named is BMCOf with the field read_only beside the BMC.
func named(message proto.Message) (bmc *referencev1.BMCReference, readOnly bool) {
	m := message.ProtoReflect()
	if bmc := bmcField(m); bmc != nil {
		return bmc, readOnlyField(m)
	}
	oneofs := m.Descriptor().Oneofs()
	for i := range oneofs.Len() {
		field := m.WhichOneof(oneofs.Get(i))
		if field == nil || field.Message() == nil {
			continue
		}
		payload := m.Get(field).Message()
		if bmc := bmcField(payload); bmc != nil {
			return bmc, readOnlyField(payload)
		}
	}
	return nil, false
}

func bmcField(m protoreflect.Message) *referencev1.BMCReference {
	field := m.Descriptor().Fields().ByName("bmc")
	if field == nil || field.Message() == nil || !m.Has(field) {
		return nil
	}
	bmc, _ := m.Get(field).Message().Interface().(*referencev1.BMCReference)
	return bmc
}

func readOnlyField(m protoreflect.Message) bool {
	field := m.Descriptor().Fields().ByName("read_only")
	return field != nil && field.Kind() == protoreflect.BoolKind && m.Get(field).Bool()
}
