// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/query"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// readQuery reads a request's query parameters, which only reading has.
func readQuery(r *http.Request, method string) (query.Query, *message.Error) {
	q, err := query.Parse(r.URL.Query())
	if err != nil {
		return q, queryError(err)
	}
	if method != http.MethodGet && !q.IsZero() {
		return q, message.Errorf(http.StatusBadRequest, message.QueryNotSupportedOnOperation)
	}
	return q, nil
}

// queryError returns the answer to a query that can't be answered.
func queryError(err *query.Error) *message.Error {
	value := shorten(err.Value)
	switch err.Kind {
	case query.Format:
		return message.Errorf(http.StatusBadRequest, message.QueryParameterValueFormatError, value, err.Parameter)
	case query.OutOfRange:
		return message.Errorf(http.StatusBadRequest, message.QueryParameterOutOfRange, value, err.Parameter, err.Range)
	case query.Combination:
		return message.Errorf(http.StatusBadRequest, message.QueryCombinationInvalid)
	case query.WrongResource:
		return message.Errorf(http.StatusBadRequest, message.QueryNotSupportedOnResource)
	default:
		return message.Errorf(http.StatusNotImplemented, message.QueryNotSupported)
	}
}

// read is what the backends have told for an answer already: an expanded collection
// has many members that are parts of one machine or log.
type read struct {
	machines map[backend.Part]backend.Machine
	events   *statev1.ListEventsResponse
}

// query applies a query to an answer.
func (s *Server) query(ctx context.Context, c *call, q query.Query, answer reply) (reply, error) {
	if _, is := answer.body.(resource.Resource); !is {
		return reply{}, message.Errorf(http.StatusBadRequest, message.QueryNotSupportedOnResource)
	}
	raw, err := json.Marshal(answer.body)
	if err != nil {
		return reply{}, fmt.Errorf("encode %s: %w", c.route, err)
	}
	object, err := decode(raw)
	if err != nil {
		return reply{}, err
	}
	c.read = &read{machines: map[backend.Part]backend.Machine{}}
	shown, err := q.Apply(object, func(uri string) (map[string]any, error) { return s.fetch(ctx, c, uri) })
	var refusal *query.Error
	if errors.As(err, &refusal) {
		return reply{}, queryError(refusal)
	}
	if err != nil {
		return reply{}, err
	}
	answer.shown = shown
	return answer, nil
}

// decode reads a JSON object and leaves numbers as they are.
func decode(raw []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("read an answer of this service: %w", err)
	}
	return object, nil
}

// fetch reads another resource for the caller of a request: nil where there is
// none, or none that the caller may read.
func (s *Server) fetch(ctx context.Context, c *call, uri string) (map[string]any, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" || u.Fragment != "" {
		return nil, nil //nolint:nilerr // Not a resource of this service.
	}
	cleanPath(u)
	var w captured
	inner := &call{
		w: &w, endpoint: c.endpoint, id: c.id, source: c.source, started: c.started,
		account: c.account, session: c.session, inner: true, read: c.read,
	}
	r := c.r.Clone(context.WithValue(ctx, callKey{}, inner))
	r.Method, r.URL, r.RequestURI, r.Header, r.Body = http.MethodGet, u, u.EscapedPath(), http.Header{}, http.NoBody
	inner.r = r
	s.mux.ServeHTTP(&w, r)
	switch {
	case inner.refusal != nil && inner.status >= http.StatusInternalServerError:
		return nil, inner.refusal
	case inner.status != http.StatusOK:
		return nil, nil
	}
	return decode(w.body.Bytes())
}

// captured is where the answer to an inner request goes.
type captured struct {
	header http.Header
	body   bytes.Buffer
}

func (w *captured) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *captured) Write(p []byte) (int, error) { return w.body.Write(p) }

func (w *captured) WriteHeader(int) {}
