// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"kubevirtbmc.dev/pkg/grpcstatus"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// challenge is the WWW-Authenticate header of a 401 (RFC 6750 section 3).
const challenge = `Bearer realm="KubeVirtBMC"`

// handleError answers with an error's status as JSON. Errors of the gateway
// itself, as of a body that is not JSON, get a reason too.
func handleError(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if st := status.Convert(err); len(st.Details()) == 0 {
		err = grpcstatus.New(grpcstatus.ReasonOf(err), "%s", st.Message())
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, marshaler, challenger{w}, r, err)
}

// handleRoutingError answers a request that no method serves.
func handleRoutingError(ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", strings.Join(allowed(r.URL.Path), ", "))
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, marshaler, w, r, &runtime.HTTPStatusError{
		HTTPStatus: code,
		Err:        grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "%s", http.StatusText(code)),
	})
}

// challenger gives a 401 its header, in which the gateway would put the error's
// text.
type challenger struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c challenger) WriteHeader(code int) {
	if code == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", challenge)
	}
	c.ResponseWriter.WriteHeader(code)
}

// refuseBody answers a request whose body is too long. It reads a part of the
// body, for a while: an answer in the middle of a body gets lost with some
// clients.
func refuseBody(w http.ResponseWriter, r *http.Request) {
	const most, patience = 8 << 20, 5 * time.Second
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
	_, _ = io.CopyN(io.Discard, r.Body, most)
	st := status.Convert(grpcstatus.New(errorsv1.Reason_REASON_INVALID_REQUEST, "the request body is longer than 1 MiB"))
	text, err := protojson.Marshal(st.Proto())
	if err != nil {
		text = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusRequestEntityTooLarge)
	_, _ = w.Write(text) // A client that is gone needs no answer.
}

// route is an HTTP method and the paths that it is served for.
type route struct {
	method string
	path   *regexp.Regexp
}

// routes are those of all services that the program links, from the
// google.api.http options of their methods.
var routes = sync.OnceValue(func() []route {
	var all []route
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				rule, ok := proto.GetExtension(methods.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule)
				if !ok || rule == nil {
					continue
				}
				for method, template := range map[string]string{
					http.MethodGet: rule.GetGet(), http.MethodPost: rule.GetPost(), http.MethodPut: rule.GetPut(),
					http.MethodDelete: rule.GetDelete(), http.MethodPatch: rule.GetPatch(),
				} {
					if template != "" {
						all = append(all, route{method, templatePattern(template)})
					}
				}
			}
		}
		return true
	})
	return all
})

// templatePattern returns what matches the paths of a template, in which
// {field} stands for one segment.
func templatePattern(template string) *regexp.Regexp {
	fields := regexp.MustCompile(`\\\{[^}]*\\\}`)
	return regexp.MustCompile("^" + fields.ReplaceAllString(regexp.QuoteMeta(template), `[^/]+?`) + "$")
}

// allowed returns the methods that a path is served for, sorted.
func allowed(path string) []string {
	var methods []string
	for _, r := range routes() {
		if r.path.MatchString(path) {
			methods = append(methods, r.method)
		}
	}
	slices.Sort(methods)
	return slices.Compact(methods)
}
