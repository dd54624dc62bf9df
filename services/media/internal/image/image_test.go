// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/urlpolicy"
	"kubevirtbmc.dev/services/media/internal/image"
)

// iso is an image of an odd length.
var iso = bytes.Repeat([]byte("KubeVirtBMC test image\n"), 4321)

func packed(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// qcow2 is an image whose header tells a virtual size.
func qcow2(virtual uint64) []byte {
	content := bytes.Repeat([]byte{0}, 4096)
	copy(content, "QFI\xfb\x00\x00\x00\x03")
	binary.BigEndian.PutUint64(content[24:], virtual)
	return content
}

// whole serves content as a file server does, ranges included.
func whole(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// plainly serves content without ranges.
func plainly(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	}
}

// chunked serves content without telling its length.
func chunked(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(content)
	}
}

// noHead refuses HEAD.
func noHead(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			http.Error(w, "signed for GET", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

// client may talk to the servers of these tests.
func client(t *testing.T) *image.Client {
	t.Helper()
	return image.NewClient(image.Config{Policy: open(t), Connect: 5 * time.Second, Answer: time.Second, Stall: time.Second})
}

func open(t *testing.T) *urlpolicy.Policy {
	t.Helper()
	p, err := urlpolicy.New(urlpolicy.Config{Deny: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestSize(t *testing.T) {
	t.Parallel()
	gz := packed(t, iso)
	length := int64(len(iso))
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    image.Size
	}{
		"file server":             {whole(iso), image.Size{Length: length, Content: length, Ranges: true, Method: image.MethodHead}},
		"without HEAD":            {noHead(whole(iso)), image.Size{Length: length, Content: length, Ranges: true, Method: image.MethodRange}},
		"without ranges":          {plainly(iso), image.Size{Length: length, Content: length, Method: image.MethodHead}},
		"without HEAD and ranges": {noHead(plainly(iso)), image.Size{Length: length, Content: length, Method: image.MethodLength}},
		"of unknown length":       {noHead(chunked(iso)), image.Size{Length: length, Content: length, Method: image.MethodCount}},
		"of a few bytes":          {whole([]byte("x")), image.Size{Length: 1, Content: 1, Ranges: true, Method: image.MethodHead}},
		"gzip":                    {whole(gz), image.Size{Length: int64(len(gz)), Content: length, Ranges: true, Method: image.MethodCount}},
		"gzip of unknown length":  {noHead(chunked(gz)), image.Size{Length: int64(len(gz)), Content: length, Method: image.MethodCount}},
		"qcow2":                   {whole(qcow2(10 << 30)), image.Size{Length: 4096, Content: 10 << 30, Ranges: true, Method: image.MethodHead}},
		"qcow2 of unknown length": {noHead(chunked(qcow2(1 << 20))), image.Size{Length: 4096, Content: 1 << 20, Method: image.MethodCount}},
		"range of unknown length": {
			func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead || r.Header.Get("Range") == "" {
					plainly(iso)(w, r)
					return
				}
				w.Header().Set("Content-Range", "bytes 0-511/*")
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(iso[:512])
			},
			image.Size{Length: length, Content: length, Ranges: true, Method: image.MethodHead},
		},
		"HEAD breaks the connection": {
			func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead {
					panic(http.ErrAbortHandler)
				}
				whole(iso)(w, r)
			},
			image.Size{Length: length, Content: length, Ranges: true, Method: image.MethodRange},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := client(t).Size(t.Context(), &image.Source{URL: serve(t, test.handler)})
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestSize_failures(t *testing.T) {
	t.Parallel()
	gz := packed(t, iso)
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    error
	}{
		"no such image":  {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, image.ErrNoImage},
		"empty image":    {whole(nil), image.ErrNoImage},
		"no credentials": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) }, image.ErrCredentials},
		"server error":   {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "ouch", http.StatusBadGateway) }, image.ErrUnreachable},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(time.Minute):
			}
		}, image.ErrUnreachable},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Minute):
			}
		}, image.ErrUnreachable},
		"HEAD and GET differ": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Length", "7")
				return
			}
			whole(iso)(w, r)
		}, image.ErrLength},
		"breaks off": {noHead(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(iso)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), image.ErrLength},
		"gzip is cut off":  {whole(gz[:len(gz)/2]), image.ErrLength},
		"gzip is damaged":  {whole(append([]byte{0x1f, 0x8b}, iso...)), image.ErrFormat},
		"xz":               {whole([]byte("\xfd7zXZ\x00rest of it")), image.ErrFormat},
		"qcow2 is cut off": {whole([]byte("QFI\xfb\x00\x00\x00\x03")), image.ErrLength},
		"qcow2 of nothing": {whole(qcow2(0)), image.ErrFormat},
		"redirects for ever": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
		}, image.ErrUnreachable},
		"redirects to a file": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, urlpolicy.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := serve(t, test.handler)
			got, err := client(t).Size(t.Context(), &image.Source{URL: at + "/?signature=hush"})
			if !errors.Is(err, test.want) {
				t.Errorf("got %+v, %v; want %v", got, err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the error repeats the query: %v", err)
			}
		})
	}
}

func TestSize_nobodyListens(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(whole(iso))
	server.Close()
	if _, err := client(t).Size(t.Context(), &image.Source{URL: server.URL}); !errors.Is(err, image.ErrUnreachable) {
		t.Errorf("got %v, want %v", err, image.ErrUnreachable)
	}
}

func TestSize_endsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	at := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	if _, err := client(t).Size(ctx, &image.Source{URL: at}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestPolicy: neither a first address nor one that a redirect leads to is
// connected to where the policy closes it.
func TestPolicy(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	hidden := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Store(true)
		whole(iso)(w, r)
	}))
	address := netip.MustParseAddrPort(strings.TrimPrefix(hidden, "http://"))
	byName := "http://localhost:" + strconv.Itoa(int(address.Port()))
	p, err := urlpolicy.New(urlpolicy.Config{Deny: []string{}, Endpoints: func() []netip.AddrPort { return []netip.AddrPort{address} }})
	if err != nil {
		t.Fatal(err)
	}
	c := image.NewClient(image.Config{Policy: p})
	for name, at := range map[string]string{
		"directly":           hidden,
		"by name":            byName,
		"by redirect":        serve(t, http.RedirectHandler(hidden, http.StatusFound)),
		"by redirect, named": serve(t, http.RedirectHandler(byName, http.StatusTemporaryRedirect)),
	} {
		if _, err := c.Size(t.Context(), &image.Source{URL: at}); !errors.Is(err, urlpolicy.ErrDenied) {
			t.Errorf("%s: got %v, want %v", name, err, urlpolicy.ErrDenied)
		}
	}
	if reached.Load() {
		t.Error("the server was reached")
	}
}

// TestCredentials go to the origin of the URL alone.
func TestCredentials(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 8)
	other := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Clone()
		whole(iso)(w, r)
	}))
	first := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		switch {
		case !ok || user != "user" || password != "hush" || r.Header.Get("X-Token") != "hush":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, other, http.StatusFound)
		case r.URL.Path == "/here":
			http.Redirect(w, r, "/there", http.StatusFound)
		default:
			whole(iso)(w, r)
		}
	})
	at := serve(t, first)
	source := func(path string) *image.Source {
		return &image.Source{URL: at + path, Username: "user", Password: "hush", Header: http.Header{"x-token": {"hush"}}}
	}
	for _, path := range []string{"/", "/here", "/moved"} {
		if _, err := client(t).Size(t.Context(), source(path)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	close(seen)
	n := 0
	for header := range seen {
		n++
		for name, values := range header {
			if strings.Contains(strings.Join(values, " "), "hush") || name == "Authorization" || name == "Referer" {
				t.Errorf("another origin was sent %s: %q", name, values)
			}
		}
	}
	if n == 0 {
		t.Error("the redirect was not followed")
	}
	wrong := source("/")
	wrong.Password = "wrong"
	if _, err := client(t).Size(t.Context(), wrong); !errors.Is(err, image.ErrCredentials) {
		t.Errorf("wrong password: got %v, want %v", err, image.ErrCredentials)
	}
}

// TestTLS: each source has its own trust.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(whole(iso))
	// The refused handshakes are meant.
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c := client(t)
	for _, test := range []struct {
		name   string
		source image.Source
		want   error
	}{
		{"private CA", image.Source{Roots: roots}, nil},
		{"any certificate", image.Source{InsecureSkipVerify: true}, nil},
		{"the system's roots", image.Source{}, image.ErrUnreachable},
		{"another CA", image.Source{Roots: x509.NewCertPool()}, image.ErrUnreachable},
		{"private CA again", image.Source{Roots: roots}, nil},
	} {
		test.source.URL = server.URL
		if _, err := c.Size(t.Context(), &test.source); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
	}
}

// TestRequest_range passes a part on as it comes.
func TestRequest_range(t *testing.T) {
	t.Parallel()
	response, err := client(t).Request(t.Context(), &image.Source{URL: serve(t, whole(iso))}, http.MethodGet, "bytes=100-199")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusPartialContent || !bytes.Equal(got, iso[100:200]) {
		t.Errorf("got %s, %d bytes, %v", response.Status, len(got), err)
	}
}
