// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"kubevirtbmc.dev/pkg/access"
	"kubevirtbmc.dev/pkg/grpcstatus"
	accessv1 "kubevirtbmc.dev/proto/gen/go/bmc/access/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	_ "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// sources are the .proto files, from this folder.
const sources = "../../proto"

// services returns the API's services, all of those that there are .proto files
// for: each has to be linked into this test.
func services(t *testing.T) []protoreflect.ServiceDescriptor {
	t.Helper()
	paths, err := filepath.Glob(sources + "/bmc/*/*/*.proto")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no .proto files: %v", err)
	}
	var all []protoreflect.ServiceDescriptor
	for _, path := range paths {
		name, err := filepath.Rel(sources, path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := protoregistry.GlobalFiles.FindFileByPath(filepath.ToSlash(name))
		if err != nil {
			t.Fatalf("import the Go package of %s in this test: %v", name, err)
		}
		for i := range file.Services().Len() {
			all = append(all, file.Services().Get(i))
		}
	}
	return all
}

// Every method has a rule, and every method whose rule is about one BMC has a
// place for its name in the first message.
func TestRuleOf_everyMethod(t *testing.T) {
	t.Parallel()
	for _, service := range services(t) {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			name := "/" + string(service.FullName()) + "/" + string(method.Name())
			rule, ok := access.RuleOf(name)
			if !ok {
				t.Errorf("%s has no access rule", name)
				continue
			}
			if rule.GetGrantedBmcs() {
				continue
			}
			message, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
			if err != nil {
				t.Fatal(err)
			}
			if !canName(message.New()) {
				t.Errorf("%s: the rule is about one BMC, but %s can't name one", name, method.Input().FullName())
			}
		}
	}
}

// canName tells whether a message, or one of its payloads, can name a BMC.
func canName(m protoreflect.Message) bool {
	bmc := &referencev1.BMCReference{Namespace: "n", Name: "b"}
	fill := func(m protoreflect.Message) bool {
		field := m.Descriptor().Fields().ByName("bmc")
		if field == nil || field.Message() == nil || field.Message().FullName() != bmc.ProtoReflect().Descriptor().FullName() {
			return false
		}
		m.Set(field, protoreflect.ValueOfMessage(bmc.ProtoReflect()))
		return true
	}
	filled := fill(m)
	for i := 0; i < m.Descriptor().Fields().Len() && !filled; i++ {
		field := m.Descriptor().Fields().Get(i)
		if field.ContainingOneof() != nil && field.Message() != nil {
			filled = fill(m.Mutable(field).Message())
		}
	}
	return filled && proto.Equal(access.BMCOf(m.Interface()), bmc)
}

func TestRuleOf_unknown(t *testing.T) {
	t.Parallel()
	for _, method := range []string{
		"", "/", "/bmc.power.v1.PowerService/Explode", "/bmc.power.v1.PowerService", "/bmc.power.v1.GetPowerRequest",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	} {
		if rule, ok := access.RuleOf(method); ok {
			t.Errorf("RuleOf(%q) = %v, want none", method, rule)
		}
	}
}

func TestRequestOf(t *testing.T) {
	t.Parallel()
	bmc := &referencev1.BMCReference{Namespace: "lab", Name: "vm-1"}
	open := func(readOnly bool) *consolev1.ConnectRequest {
		return &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc, ReadOnly: readOnly}}}
	}
	for name, tc := range map[string]struct {
		method  string
		message proto.Message
		want    string
		reason  errorsv1.Reason
	}{
		"a read": {
			method: powerv1.PowerService_GetPower_FullMethodName, message: &powerv1.GetPowerRequest{Bmc: bmc},
			want: "get virtualmachinebmcs/power of lab/vm-1",
		},
		"an action": {
			method: powerv1.PowerService_TransitionPower_FullMethodName, message: &powerv1.TransitionPowerRequest{Bmc: bmc},
			want: "update virtualmachinebmcs/power of lab/vm-1",
		},
		"a console to type at": {
			method: consolev1.ConsoleService_Connect_FullMethodName, message: open(false),
			want: "update virtualmachinebmcs/console of lab/vm-1",
		},
		"a console to watch": {
			method: consolev1.ConsoleService_Connect_FullMethodName, message: open(true),
			want: "get virtualmachinebmcs/console of lab/vm-1",
		},
		"a console that is not opened": {
			method:  consolev1.ConsoleService_Connect_FullMethodName,
			message: &consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte("x")}},
			reason:  errorsv1.Reason_REASON_INVALID_REQUEST,
		},
		"the registry": {
			method:  registryv1.RegistryService_Subscribe_FullMethodName,
			message: &registryv1.SubscribeRequest{Payload: &registryv1.SubscribeRequest_Hello{Hello: &registryv1.Hello{}}},
		},
		"accounts": {
			method: statev1.StateService_CreateAccount_FullMethodName, message: &statev1.CreateAccountRequest{Bmc: bmc},
			want: "update virtualmachinebmcs/credentials of lab/vm-1",
		},
		"no BMC": {
			method: powerv1.PowerService_GetPower_FullMethodName, message: &powerv1.GetPowerRequest{},
			reason: errorsv1.Reason_REASON_INVALID_REQUEST,
		},
		"a method without a rule": {
			method: "/bmc.power.v1.PowerService/Explode", message: &powerv1.GetPowerRequest{Bmc: bmc},
			reason: errorsv1.Reason_REASON_PERMISSION_DENIED,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request, ok, err := access.RequestOf(tc.method, tc.message)
			if got := grpcstatus.ReasonOf(err); got != tc.reason {
				t.Fatalf("error %v, want reason %v", err, tc.reason)
			}
			if ok != (tc.want != "") || ok && request.String() != tc.want {
				t.Errorf("request is %q, want %q", request, tc.want)
			}
		})
	}
}

func TestRequest_all(t *testing.T) {
	t.Parallel()
	all := access.Request{Subresource: access.Credentials, Verb: access.Get}
	one := access.Request{Subresource: access.Credentials, Verb: access.Get, BMC: &referencev1.BMCReference{}}
	if got := all.String(); got != "get virtualmachinebmcs/credentials of all BMCs" {
		t.Errorf("request is %q", got)
	}
	if all.Equal(one) || one.Equal(all) {
		t.Error("all BMCs are taken for one")
	}
}

func TestNames_areKubernetes(t *testing.T) {
	t.Parallel()
	for value := range accessv1.Subresource_name {
		s := accessv1.Subresource(value)
		if got := access.SubresourceName(s); (got == "") != (s == accessv1.Subresource_SUBRESOURCE_UNSPECIFIED) {
			t.Errorf("%v is written %q", s, got)
		}
	}
	if got := access.SubresourceName(accessv1.Subresource_SUBRESOURCE_CREDENTIALS); got != access.Credentials {
		t.Errorf("credentials are written %q", got)
	}
	for v, want := range map[accessv1.Verb]string{accessv1.Verb_VERB_UNSPECIFIED: "", accessv1.Verb_VERB_GET: access.Get, accessv1.Verb_VERB_UPDATE: access.Update} {
		if got := access.VerbName(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}
