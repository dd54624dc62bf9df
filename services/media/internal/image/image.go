// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package image fetches images from the servers that a policy leaves open, and
// finds out how large they are before anything is reserved for them.
package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/urlpolicy"
)

const (
	// maxRedirects is how many redirects are followed.
	maxRedirects = 10
	// maxHeaderBytes of an answer.
	maxHeaderBytes = 64 << 10
)

var (
	// ErrUnreachable says that the image server does not answer as one does.
	ErrUnreachable = errors.New("image server can't be reached")
	// ErrCredentials says that the image server wants other credentials.
	ErrCredentials = errors.New("image server refuses the credentials")
	// ErrNoImage says that the image server has no such image.
	ErrNoImage = errors.New("image server has no such image")
	// ErrLength says that the server sent less or more than it had announced.
	ErrLength = errors.New("image has another length than announced")
)

// Source is an image on a server.
type Source struct {
	// URL without credentials.
	URL string
	// Username and Password for Basic authentication; empty for none.
	Username, Password string
	// Header is sent along, as an Authorization with a bearer token. It is as
	// secret as the password: another origin than the URL's never gets it.
	Header http.Header
	// Roots are the only ones that the server's certificate may come from; nil:
	// the system's.
	Roots *x509.CertPool
	// InsecureSkipVerify takes any certificate for this source alone.
	InsecureSkipVerify bool
}

// Config of a client.
type Config struct {
	Policy *urlpolicy.Policy
	// Connect is how long a connection with its TLS handshake may take; 0: 10 s.
	Connect time.Duration
	// Answer is how long the server may take until its header; 0: 30 s.
	Answer time.Duration
	// Stall is how long a body may bring nothing; 0: 60 s.
	Stall time.Duration
}

// Client fetches images. It keeps no connections: images are few and large, and
// what one source trusts must not serve another.
type Client struct {
	config Config
}

// NewClient makes a client.
func NewClient(config Config) *Client {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&config.Connect, 10 * time.Second}, {&config.Answer, 30 * time.Second}, {&config.Stall, time.Minute}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return &Client{config: config}
}

// Request asks for an image with method GET or HEAD; span is the value of a Range
// header, empty for none. Any answer of the last server is returned with nil, its
// status unread; the caller closes its body. Reading the body fails with
// ErrUnreachable when nothing comes for too long.
func (c *Client) Request(ctx context.Context, source *Source, method, span string) (*http.Response, error) {
	u, err := url.Parse(source.URL)
	if err != nil {
		// The parser's error would repeat the URL.
		return nil, fmt.Errorf("%w: URL is not valid", urlpolicy.ErrDenied)
	}
	if err := c.config.Policy.CheckURL(u); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("%w: URL is not valid", urlpolicy.ErrDenied)
	}
	request.Header = source.header()
	if span != "" {
		request.Header.Set("Range", span)
	}
	client, closeIdle := c.client(source)
	response, err := client.Do(request)
	if err != nil {
		gone := context.Cause(ctx)
		cancel(nil)
		closeIdle()
		if gone != nil {
			return nil, gone
		}
		return nil, failure(err)
	}
	response.Body = newBody(response.Body, c.config.Stall, cancel, closeIdle)
	return response, nil
}

// header makes the header of a request.
func (s *Source) header() http.Header {
	header := http.Header{}
	for name, values := range s.Header {
		header[http.CanonicalHeaderKey(name)] = values
	}
	if s.Username != "" || s.Password != "" {
		r := http.Request{Header: header}
		r.SetBasicAuth(s.Username, s.Password)
	}
	// A length in other bytes than the image's is of no use.
	header.Set("Accept-Encoding", "identity")
	header.Set("User-Agent", "kubevirtbmc-media")
	return header
}

func (c *Client) client(source *Source) (client *http.Client, closeIdle func()) {
	dialer := &urlpolicy.Dialer{Policy: c.config.Policy, Timeout: c.config.Connect}
	transport := &http.Transport{
		// A proxy would connect where the policy can't see it.
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    c.config.Connect,
		ResponseHeaderTimeout:  c.config.Answer,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
		DisableKeepAlives:      true,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			RootCAs:    source.Roots,
			//nolint:gosec // A user's choice for an image of theirs, of this source alone.
			InsecureSkipVerify: source.InsecureSkipVerify,
		},
	}
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("%w: more than %d redirects", ErrUnreachable, maxRedirects)
			}
			if err := c.config.Policy.CheckURL(request.URL); err != nil {
				return fmt.Errorf("redirect: %w", err)
			}
			if first := via[0].URL; !sameOrigin(first, request.URL) {
				// net/http takes away what it knows, and compares names alone.
				request.Header.Del("Authorization")
				for name := range source.Header {
					request.Header.Del(name)
				}
			}
			request.Header.Del("Referer")
			return nil
		},
	}, transport.CloseIdleConnections
}

func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	if strings.EqualFold(u.Scheme, "https") {
		return "443"
	}
	return "80"
}

// failure is the error of a request, without the URL: its query may be a secret.
func failure(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if errors.Is(err, urlpolicy.ErrDenied) || errors.Is(err, ErrUnreachable) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// statusError is what an answer other than 200 and 206 means.
func statusError(response *http.Response) error {
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return fmt.Errorf("%w: %s", ErrCredentials, response.Status)
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w: %s", ErrNoImage, response.Status)
	default:
		return fmt.Errorf("%w: %s", ErrUnreachable, response.Status)
	}
}

// errStalled ends a request whose body brings nothing.
var errStalled = fmt.Errorf("%w: nothing came for too long", ErrUnreachable)

// body is an answer's body that ends when it stalls.
type body struct {
	inner  io.ReadCloser
	stall  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
	idle   func()
	dead   chan struct{}
}

func newBody(inner io.ReadCloser, stall time.Duration, cancel context.CancelCauseFunc, idle func()) *body {
	b := &body{inner: inner, stall: stall, cancel: cancel, idle: idle, dead: make(chan struct{})}
	b.timer = time.AfterFunc(stall, func() {
		close(b.dead)
		cancel(errStalled)
	})
	// Only a Read under way can stall.
	b.timer.Stop()
	return b
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.timer.Reset(b.stall)
	n, err := b.inner.Read(p)
	b.timer.Stop()
	if err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return n, err
	}
	select {
	case <-b.dead:
		return n, errStalled
	default:
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return n, fmt.Errorf("%w: %w", ErrLength, err)
	}
	return n, failure(err)
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.timer.Stop()
	err := b.inner.Close()
	b.cancel(nil)
	b.idle()
	return err
}

// rangeTotal reads the length of the whole from a Content-Range, RFC 9110 14.4;
// false when it does not tell.
func rangeTotal(contentRange string) (int64, bool) {
	rest, ok := strings.CutPrefix(contentRange, "bytes ")
	if !ok {
		return 0, false
	}
	_, total, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(total, 10, 64)
	return n, err == nil && n >= 0
}
