// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package relay serves images to CDI and fetches them from their servers: CDI
// talks to nobody else, so the policy for URLs, credentials, trust and unknown
// lengths are this service's to handle, and no DataVolume shows them.
package relay

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/media/internal/image"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
)

const (
	// path is where images are, each below it under its token.
	path = "/image/"
	// probeTimeout is how long an insert may ask for an image's size. Clients give
	// a request a minute.
	probeTimeout = 40 * time.Second
	// writeTimeout is how long CDI may take nothing.
	writeTimeout = 2 * time.Minute
	// chunkBytes are passed on at a time.
	chunkBytes = 256 << 10
)

// Relay makes images ready for CDI, and serves them to it. It is a
// kubevirt.Source and an http.Handler.
type Relay struct {
	client *image.Client
	sealer *Sealer
	roots  Roots
	base   *url.URL
	log    *slog.Logger
}

// Roots reads the certificates that a Trust names; nil for the system's.
type Roots func(context.Context, kubevirt.Trust) (*x509.CertPool, error)

var _ kubevirt.Source = (*Relay)(nil)

// Config of a relay. All is needed.
type Config struct {
	Client *image.Client
	Sealer *Sealer
	Roots  Roots
	// Base is the URL at which CDI reaches the handler.
	Base *url.URL
	Log  *slog.Logger
}

// New makes a relay.
func New(config Config) *Relay {
	return &Relay{client: config.Client, sealer: config.Sealer, roots: config.Roots, base: config.Base, log: config.Log}
}

// Prepare implements kubevirt.Source.
func (r *Relay) Prepare(ctx context.Context, wanted hypervisor.Image, trust kubevirt.Trust) (kubevirt.Prepared, error) {
	size, err := sizeOf(ctx, r.client, wanted, trust, r.roots)
	if err != nil {
		return kubevirt.Prepared{}, err
	}
	token, err := r.sealer.seal(sealed{
		URL: wanted.URL, Username: wanted.Username, Password: wanted.Password,
		Insecure: trust.InsecureSkipVerify, Namespace: trust.Namespace, ConfigMap: trust.ConfigMap,
		Length: size.Length, Ranges: size.Ranges,
	})
	if err != nil {
		return kubevirt.Prepared{}, err
	}
	return kubevirt.Prepared{URL: r.base.JoinPath(path, token).String(), Bytes: size.Content}, nil
}

// sourceOf is an image with the certificates of its server.
func sourceOf(ctx context.Context, wanted hypervisor.Image, trust kubevirt.Trust, roots Roots) (*image.Source, error) {
	pool, err := roots(ctx, trust)
	if err != nil {
		return nil, err
	}
	return &image.Source{
		URL: wanted.URL, Username: wanted.Username, Password: wanted.Password,
		Roots: pool, InsecureSkipVerify: trust.InsecureSkipVerify,
	}, nil
}

func sizeOf(ctx context.Context, client *image.Client, wanted hypervisor.Image, trust kubevirt.Trust, roots Roots) (image.Size, error) {
	within, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	source, err := sourceOf(within, wanted, trust, roots)
	if err != nil {
		return image.Size{}, err
	}
	size, err := client.Size(within, source)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return image.Size{}, fmt.Errorf("%w: its size is not known after %s", image.ErrUnreachable, probeTimeout)
	}
	return size, err
}

// Direct lets CDI fetch images from their servers itself. It is a kubevirt.Source.
type Direct struct {
	Client *image.Client
	Roots  Roots
}

var _ kubevirt.Source = (*Direct)(nil)

// Prepare implements kubevirt.Source.
func (d *Direct) Prepare(ctx context.Context, wanted hypervisor.Image, trust kubevirt.Trust) (kubevirt.Prepared, error) {
	if wanted.Username != "" || wanted.Password != "" || trust.InsecureSkipVerify {
		return kubevirt.Prepared{}, fmt.Errorf("%w: credentials and insecureSkipVerify need the relay, which is switched off", hypervisor.ErrUnsupported)
	}
	size, err := sizeOf(ctx, d.Client, wanted, trust, d.Roots)
	if err != nil {
		return kubevirt.Prepared{}, err
	}
	return kubevirt.Prepared{URL: wanted.URL, Bytes: size.Content, CertConfigMap: trust.ConfigMap}, nil
}

// ServeHTTP serves GET and HEAD of images.
func (r *Relay) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"{token}", r.serve)
	mux.ServeHTTP(w, request)
}

func (r *Relay) serve(w http.ResponseWriter, request *http.Request) {
	wanted, err := r.sealer.open(request.PathValue("token"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "none")
	if wanted.Ranges {
		header.Set("Accept-Ranges", "bytes")
	}
	if request.Method == http.MethodHead {
		// The image's server may refuse it.
		header.Set("Content-Length", strconv.FormatInt(wanted.Length, 10))
		return
	}
	span := ""
	if wanted.Ranges {
		span = request.Header.Get("Range")
	}
	source, err := sourceOf(request.Context(), hypervisor.Image{URL: wanted.URL, Username: wanted.Username, Password: wanted.Password},
		kubevirt.Trust{InsecureSkipVerify: wanted.Insecure, Namespace: wanted.Namespace, ConfigMap: wanted.ConfigMap}, r.roots)
	if err != nil {
		r.failed(w, request, err)
		return
	}
	response, err := r.client.Request(request.Context(), source, http.MethodGet, span)
	if err != nil {
		r.failed(w, request, err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	length, err := expected(response, span, wanted.Length)
	if err != nil {
		r.failed(w, request, err)
		return
	}
	if length >= 0 {
		header.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	if response.StatusCode == http.StatusPartialContent {
		header.Set("Content-Range", response.Header.Get("Content-Range"))
	}
	w.WriteHeader(response.StatusCode)
	if err := pass(w, response.Body, length); err != nil {
		if request.Context().Err() == nil {
			r.log.WarnContext(request.Context(), "image broke off", slog.String(logkey.Error, err.Error()))
		}
		// CDI must not take what it has for the whole.
		panic(http.ErrAbortHandler)
	}
}

// expected tells how much an answer has to bring; -1 when only the server knows.
func expected(response *http.Response, span string, length int64) (int64, error) {
	switch {
	case response.StatusCode == http.StatusOK && response.ContentLength >= 0 && response.ContentLength != length:
		return 0, fmt.Errorf("%w: %d bytes, not %d", image.ErrLength, response.ContentLength, length)
	case response.StatusCode == http.StatusOK:
		return length, nil
	case response.StatusCode == http.StatusPartialContent && span != "":
		return response.ContentLength, nil
	default:
		return 0, fmt.Errorf("%w: %s", image.ErrUnreachable, response.Status)
	}
}

// pass copies a body of a length, or of an unknown one.
func pass(w http.ResponseWriter, body io.Reader, length int64) error {
	controller := http.NewResponseController(w)
	buffer := make([]byte, chunkBytes)
	var passed int64
	for {
		n, err := body.Read(buffer)
		if passed += int64(n); length >= 0 && passed > length {
			return fmt.Errorf("%w: more than %d bytes", image.ErrLength, length)
		}
		if n > 0 {
			if err := controller.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if length >= 0 && passed != length {
		return fmt.Errorf("%w: %d bytes, not %d", image.ErrLength, passed, length)
	}
	return nil
}

// failed answers that the image can't be had. CDI shows the text in the
// DataVolume.
func (r *Relay) failed(w http.ResponseWriter, request *http.Request, err error) {
	if request.Context().Err() != nil {
		return
	}
	r.log.WarnContext(request.Context(), "image can't be had", slog.String(logkey.Error, err.Error()))
	w.Header().Del("Accept-Ranges")
	http.Error(w, err.Error(), http.StatusBadGateway)
}
