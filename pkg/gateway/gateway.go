// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package gateway serves a gRPC server and its REST gateway.
package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"kubevirtbmc.dev/pkg/callctx"
)

// requestIDHeader names a request, in the request or in the answer.
const requestIDHeader = "X-Request-Id"

// maxBody is the longest REST request body, in bytes.
const maxBody = 1 << 20

// NewMux returns a REST gateway without services. JSON names are the fields'
// names in the .proto files; fields with default values are in the answers, so
// that a reader sees what there is. The Authorization header goes along to the
// gRPC service, which does all checking.
func NewMux() *runtime.ServeMux {
	return runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true},
		}),
		runtime.WithErrorHandler(handleError),
		runtime.WithRoutingErrorHandler(handleRoutingError),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithMetadata(func(_ context.Context, r *http.Request) metadata.MD {
			// The caller is named by its token; what else it says of itself does
			// not count, but for where it comes from.
			return metadata.Pairs("x-request-id", r.Header.Get(requestIDHeader), "x-bmc-address", r.RemoteAddr, "x-bmc-protocol", "rest")
		}),
	)
}

// Handler serves gRPC and REST on one HTTP/2 listener. A REST body over 1 MiB
// is refused.
func Handler(grpcServer http.Handler, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			grpcServer.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Header.Get(requestIDHeader) == "" {
			r.Header.Set(requestIDHeader, callctx.NewRequestID())
		}
		w.Header().Set(requestIDHeader, r.Header.Get(requestIDHeader))
		if r.ContentLength > maxBody {
			refuseBody(w, r)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody) // One of unknown length.
		rest.ServeHTTP(w, r)
	})
}

// NewServer returns an HTTP server for a handler of this package, with limits
// against clients that dawdle. Answers may take long: watches are streams.
func NewServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
