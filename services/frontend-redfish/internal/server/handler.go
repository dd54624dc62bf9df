// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/callctx"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/backend"
	"kubevirtbmc.dev/services/frontend-redfish/internal/listener"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
	"kubevirtbmc.dev/services/frontend-redfish/internal/session"
)

// call is one request on its way through the server.
type call struct {
	w        http.ResponseWriter
	r        *http.Request
	endpoint *endpoint
	id       string
	source   netip.Addr
	started  time.Time

	// Who asks; set once authenticated.
	account account.Account
	session session.Session // its ID is empty with Basic authentication
	route   string
	status  int
	// inner: it is part of another, of which the caller is known.
	inner bool
	// read is what the parts of an answer share; nil: it has no parts.
	read    *read
	refusal *message.Error
}

// reply is what an operation answers.
type reply struct {
	status   int
	body     any // nil: none
	shown    any // what is sent of the body; nil: all
	raw      []byte
	rawType  string // media type of raw
	location string
	token    string
}

// ok answers with a resource, which gets its ETag.
func ok(r resource.Resource) (reply, error) {
	resource.SetETag(r)
	return reply{status: http.StatusOK, body: r}, nil
}

// serveHTTP is where requests of all BMCs come in.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	stopping := listener.Begin(conn)
	c := &call{w: w, r: r, endpoint: endpointOf(conn), id: callctx.NewRequestID(), started: time.Now(), route: "none"}
	if stopping || c.endpoint == nil {
		w.Header().Set("Connection", "close")
	}
	if c.endpoint == nil {
		http.Error(w, "no BMC here", http.StatusServiceUnavailable)
		return
	}
	if addr, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.source = addr.Addr().Unmap()
	}
	h := w.Header()
	h.Set("X-Request-Id", c.id)
	h.Set("OData-Version", "4.0")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	ctx := callctx.WithRequestID(r.Context(), c.id)
	defer s.finish(ctx, c)
	cleanPath(r.URL)
	if r.RequestURI == "*" {
		r.RequestURI = "/*" // The router answers the server-wide form by itself.
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(ctx, callKey{}, c)))
}

// cleanPath gives a URL the one form of its path: no redirects, which clients
// follow without their credentials or as GET. An escaped slash stays part of a
// name, unless the name would be none that the router leaves alone.
func cleanPath(u *url.URL) {
	raw := path.Clean("/" + u.EscapedPath())
	clean, err := url.PathUnescape(raw)
	if err != nil || path.Clean(clean) != clean {
		clean, raw = path.Clean("/"+u.Path), ""
	}
	u.Path, u.RawPath = clean, raw
}

type callKey struct{}

// finish writes the log line and the metrics of a request, also of one that
// failed by a defect.
func (s *Server) finish(ctx context.Context, c *call) {
	level := slog.LevelDebug
	if p := recover(); p != nil {
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p)
		}
		s.cfg.Log.ErrorContext(ctx, "request failed by a defect", logkey.Request, c.id, logkey.Error, p, "stack", string(debug.Stack()))
		if c.status == 0 {
			s.refuse(c, message.Errorf(http.StatusInternalServerError, message.InternalError))
		}
	}
	took := time.Since(c.started)
	s.metrics.observe(c.route, c.r.Method, c.status, took)
	switch c.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		level = slog.LevelInfo
	}
	if !s.cfg.Log.Enabled(ctx, level) {
		return
	}
	s.cfg.Log.Log(ctx, level, "request", logkey.Request, c.id, logkey.Namespace, c.endpoint.ref.GetNamespace(),
		logkey.BMC, c.endpoint.ref.GetName(), logkey.Protocol, "redfish", logkey.User, c.account.Username,
		logkey.Session, c.session.ID, logkey.Source, c.source.String(), logkey.Action, c.r.Method+" "+c.route,
		logkey.Code, c.status, logkey.Duration, took)
}

// operation is what a method does on a route.
type operation struct {
	// needs is the privilege for it; 0: anybody, also who is not logged in.
	needs account.Privilege
	run   func(context.Context, *call) (reply, error)
}

// route is a resource of the tree and what can be done with it.
type route struct {
	pattern    string
	operations map[string]operation
	allow      string // the Allow header
}

// serve answers a request to a route.
func (s *Server) serve(ctx context.Context, c *call, rt *route) {
	c.route = rt.pattern
	method := c.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	op, known := rt.operations[method]
	asked, badQuery := readQuery(c.r, method)
	// Who asks for other resources along with an open one has to be known.
	if !c.inner && (!known || op.needs != 0 || asked.Follows()) {
		if err := s.authenticate(ctx, c); err != nil {
			s.refuse(c, err)
			return
		}
	}
	ctx = callctx.WithCaller(ctx, callctx.Caller{User: c.account.Username, Address: c.r.RemoteAddr, Protocol: "redfish"})
	if rt.allow != "" {
		c.w.Header().Set("Allow", rt.allow)
	}
	switch {
	case len(rt.operations) == 0:
		s.refuse(c, missing(c))
		return
	case method == http.MethodOptions:
		s.send(c, reply{status: http.StatusNoContent})
		return
	case !known:
		s.refuse(c, message.Errorf(http.StatusMethodNotAllowed, message.OperationNotAllowed))
		return
	case op.needs != 0 && !account.Privileges(c.account.Role).Has(op.needs):
		s.refuse(c, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege))
		return
	case op.needs != 0 && c.account.PasswordChangeRequired && !s.leadsToPassword(c):
		s.refuse(c, passwordChangeRequired(c.account))
		return
	}
	if err := checkHeaders(c.r); err != nil {
		s.refuse(c, err)
		return
	}
	if badQuery != nil {
		s.refuse(c, badQuery)
		return
	}
	answer, err := op.run(ctx, c)
	if err == nil && !asked.IsZero() {
		answer, err = s.query(ctx, c, asked, answer)
	}
	if err != nil {
		s.fail(ctx, c, err)
		return
	}
	s.send(c, answer)
}

// checkHeaders refuses what a request asks for beyond the protocol that is
// served (DSP0266, "Request headers").
func checkHeaders(r *http.Request) *message.Error {
	if v := r.Header.Get("OData-Version"); v != "" && v != "4.0" {
		return message.Errorf(http.StatusPreconditionFailed, message.HeaderInvalid, "OData-Version")
	}
	if accept := r.Header.Values("Accept"); len(accept) > 0 && !accepts(strings.Join(accept, ","), path.Base(r.URL.Path)) {
		return message.Errorf(http.StatusNotAcceptable, message.HeaderInvalid, "Accept")
	}
	return nil
}

// accepts tells whether an Accept header admits what the service can send.
func accepts(header, base string) bool {
	for part := range strings.SplitSeq(header, ",") {
		media, params, _ := strings.Cut(part, ";")
		if q, found := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q="); found && strings.Trim(q, "0.") == "" {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(media)) {
		case "", "*/*", "application/*", "application/json":
			return true
		case "application/xml", "text/xml", "text/*":
			if base == "$metadata" {
				return true
			}
		}
	}
	return false
}

// fail answers with an error of an operation.
func (s *Server) fail(ctx context.Context, c *call, err error) {
	var refusal *message.Error
	if !errors.As(err, &refusal) {
		refusal = backend.Explain(err, backend.Subject{URI: shorten(c.r.URL.Path)})
		s.cfg.Log.WarnContext(ctx, "backend call failed", logkey.Request, c.id,
			logkey.Namespace, c.endpoint.ref.GetNamespace(), logkey.BMC, c.endpoint.ref.GetName(), logkey.Error, err.Error())
	}
	s.refuse(c, refusal)
}

// refuse answers with an error.
func (s *Server) refuse(c *call, e *message.Error) {
	c.refusal = e
	if e.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Status == http.StatusUnauthorized {
		c.w.Header().Set("WWW-Authenticate", `Basic realm="Redfish"`)
	}
	s.send(c, reply{status: e.Status, body: e.Body()})
}

// send writes an answer.
func (s *Server) send(c *call, a reply) {
	h := c.w.Header()
	raw, mediaType := a.raw, a.rawType
	if a.body != nil {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		shown := a.body
		if a.shown != nil {
			shown = a.shown
		}
		if err := encoder.Encode(shown); err != nil {
			panic(err) // Our own types; finish answers and logs it.
		}
		raw, mediaType = b.Bytes(), "application/json; charset=utf-8"
	}
	if r, ok := a.body.(resource.Resource); ok {
		h.Set("ETag", r.Common().ODataETag)
		if name, _, ok := strings.Cut(strings.TrimPrefix(r.Common().ODataType, "#"), "."+lastName(r.Common().ODataType)); ok {
			h.Set("Link", "<https://redfish.dmtf.org/schemas/v1/"+name+".json>; rel=describedby")
		}
	}
	if a.location != "" {
		h.Set("Location", a.location)
	}
	if a.token != "" {
		h.Set("X-Auth-Token", a.token)
	}
	if raw != nil {
		h.Set("Content-Type", mediaType)
		h.Set("Content-Length", strconv.Itoa(len(raw)))
	}
	c.status = a.status
	c.w.WriteHeader(a.status)
	if c.r.Method != http.MethodHead && len(raw) > 0 {
		c.w.Write(raw) //nolint:errcheck // The client has left.
	}
}

// lastName returns what follows the last dot of a type name.
func lastName(odataType string) string { return odataType[strings.LastIndexByte(odataType, '.')+1:] }
