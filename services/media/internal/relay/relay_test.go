// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/urlpolicy"
	"kubevirtbmc.dev/services/media/internal/image"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
	"kubevirtbmc.dev/services/media/internal/relay"
)

var iso = bytes.Repeat([]byte("relayed image\n"), 60_000)

// start starts a relay that CDI can ask.
func start(t *testing.T, sealer *relay.Sealer, deny ...string) *relay.Relay {
	t.Helper()
	p, err := urlpolicy.New(urlpolicy.Config{Deny: append([]string{}, deny...)})
	if err != nil {
		t.Fatal(err)
	}
	var r *relay.Relay
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) { r.ServeHTTP(w, request) }))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	r = relay.New(relay.Config{
		Client: image.NewClient(image.Config{Policy: p, Answer: 5 * time.Second, Stall: time.Second}),
		Sealer: sealer, Roots: roots, Base: base, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	return r
}

// pools are the certificates of ConfigMaps.
var pools sync.Map

func roots(_ context.Context, trust kubevirt.Trust) (*x509.CertPool, error) {
	if trust.ConfigMap == "" {
		return nil, nil
	}
	pool, ok := pools.Load(trust)
	if !ok {
		return nil, hypervisor.Invalidf("no ConfigMap")
	}
	certificates, _ := pool.(*x509.CertPool)
	return certificates, nil
}

// TestRelay_trust: what an insert trusts counts for its image alone, whenever CDI
// fetches it.
func TestRelay_trust(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(whole))
	// The refused handshakes are meant.
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	private := kubevirt.Trust{Namespace: t.Name(), ConfigMap: "ca"}
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	pools.Store(private, pool)
	invalid := &hypervisor.InvalidError{}
	r := start(t, sealer(t, relay.NewKey()))
	for _, test := range []struct {
		name  string
		trust kubevirt.Trust
		ok    bool
	}{
		{"the system's", kubevirt.Trust{}, false},
		{"private CA", private, true},
		{"any", kubevirt.Trust{InsecureSkipVerify: true}, true},
		{"the system's again", kubevirt.Trust{}, false},
		{"no ConfigMap", kubevirt.Trust{Namespace: t.Name(), ConfigMap: "none"}, false},
	} {
		prepared, err := r.Prepare(t.Context(), hypervisor.Image{URL: server.URL}, test.trust)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, image.ErrUnreachable) && !errors.As(err, &invalid) {
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil {
			continue
		}
		if _, content, err := fetch(t, http.MethodGet, prepared.URL, ""); err != nil || !bytes.Equal(content, iso) {
			t.Errorf("%s: CDI gets %d bytes, %v", test.name, len(content), err)
		}
	}
}

func sealer(t *testing.T, keys ...[]byte) *relay.Sealer {
	t.Helper()
	s, err := relay.NewSealer(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func whole(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(iso))
}

// fetch asks as CDI does.
func fetch(t *testing.T, method, at, span string) (*http.Response, []byte, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, at, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if span != "" {
		request.Header.Set("Range", span)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return response, content, err
}

func TestRelay(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "hush" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		whole(w, r)
	})
	r := start(t, sealer(t, relay.NewKey()))
	prepared, err := r.Prepare(t.Context(), hypervisor.Image{URL: server + "/a.iso", Username: "user", Password: "hush"}, kubevirt.Trust{})
	if err != nil {
		t.Fatal(err)
	}
	if prepared.Bytes != int64(len(iso)) {
		t.Errorf("size is %d, want %d", prepared.Bytes, len(iso))
	}
	for _, secret := range []string{"hush", "a.iso", strings.TrimPrefix(server, "http://")} {
		if strings.Contains(prepared.URL, secret) || strings.Contains(prepared.URL, base64.RawURLEncoding.EncodeToString([]byte(secret))) {
			t.Errorf("CDI's URL has %q: %s", secret, prepared.URL)
		}
	}
	for _, test := range []struct {
		method, span string
		status       int
		length       int64
		want         []byte
	}{
		{http.MethodHead, "", http.StatusOK, int64(len(iso)), nil},
		{http.MethodGet, "", http.StatusOK, int64(len(iso)), iso},
		{http.MethodGet, "bytes=10-19", http.StatusPartialContent, 10, iso[10:20]},
		{http.MethodGet, "bytes=-5", http.StatusPartialContent, 5, iso[len(iso)-5:]},
	} {
		response, content, err := fetch(t, test.method, prepared.URL, test.span)
		if err != nil || response.StatusCode != test.status || response.ContentLength != test.length || !bytes.Equal(content, test.want) {
			t.Errorf("%s %s: got %v, %d bytes, %v", test.method, test.span, response, len(content), err)
			continue
		}
		if got := response.Header.Get("Accept-Ranges"); got != "bytes" {
			t.Errorf("%s %s: Accept-Ranges is %q", test.method, test.span, got)
		}
	}
	response, _, err := fetch(t, http.MethodPost, prepared.URL, "")
	if err != nil || response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %v, %v", response, err)
	}
}

// TestRelay_tokens: a URL outlives the process that made it, and nobody can make
// one of their own.
func TestRelay_tokens(t *testing.T) {
	t.Parallel()
	server := serve(t, whole)
	old, fresh := relay.NewKey(), relay.NewKey()
	prepared, err := start(t, sealer(t, old)).Prepare(t.Context(), hypervisor.Image{URL: server}, kubevirt.Trust{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(prepared.URL)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *relay.Relay, path string) int {
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return recorder.Code
	}
	changed := []byte(u.Path)
	changed[len(changed)-5] ^= 1
	for name, test := range map[string]struct {
		sealer *relay.Sealer
		path   string
		want   int
	}{
		"after a restart":      {sealer(t, old), u.Path, http.StatusOK},
		"after a key's change": {sealer(t, fresh, old), u.Path, http.StatusOK},
		"another key":          {sealer(t, fresh), u.Path, http.StatusNotFound},
		"changed":              {sealer(t, old), string(changed), http.StatusNotFound},
		"cut off":              {sealer(t, old), u.Path[:20], http.StatusNotFound},
		"none":                 {sealer(t, old), "/image/", http.StatusNotFound},
		"plain URL":            {sealer(t, old), "/image/" + url.PathEscape(server), http.StatusNotFound},
	} {
		if got := ask(start(t, test.sealer), test.path); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

// TestRelay_faults: what CDI gets is the whole image that was measured, or an
// error.
func TestRelay_faults(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]http.HandlerFunc{
		"gone": http.NotFound,
		"longer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(append(iso[:len(iso):len(iso)], "more"...))
		},
		"longer, without a length": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(append(iso[:len(iso):len(iso)], "more"...))
		},
		"shorter, without a length": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(iso[:1000])
		},
		"breaks off": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(iso[:len(iso)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"stalls": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(iso[:len(iso)/2])
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Minute):
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var broken atomic.Bool
			server := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if broken.Load() {
					fault(w, r)
					return
				}
				whole(w, r)
			})
			prepared, err := start(t, sealer(t, relay.NewKey())).Prepare(t.Context(), hypervisor.Image{URL: server}, kubevirt.Trust{})
			if err != nil {
				t.Fatal(err)
			}
			broken.Store(true)
			response, content, err := fetch(t, http.MethodGet, prepared.URL, "")
			if err == nil && response.StatusCode != http.StatusBadGateway {
				t.Errorf("got %s and %d bytes without an error", response.Status, len(content))
			}
			broken.Store(false)
			if _, content, err = fetch(t, http.MethodGet, prepared.URL, ""); err != nil || !bytes.Equal(content, iso) {
				t.Errorf("once more: got %d bytes, %v", len(content), err)
			}
		})
	}
}

func TestRelay_policy(t *testing.T) {
	t.Parallel()
	server := serve(t, whole)
	key := relay.NewKey()
	if _, err := start(t, sealer(t, key), "loopback").Prepare(t.Context(), hypervisor.Image{URL: server}, kubevirt.Trust{}); !errors.Is(err, urlpolicy.ErrDenied) {
		t.Errorf("prepare: got %v, want %v", err, urlpolicy.ErrDenied)
	}
	prepared, err := start(t, sealer(t, key)).Prepare(t.Context(), hypervisor.Image{URL: server}, kubevirt.Trust{})
	if err != nil {
		t.Fatal(err)
	}
	// The policy of today counts, not that of the insert.
	at, err := url.Parse(prepared.URL)
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	start(t, sealer(t, key), "loopback").ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, at.Path, http.NoBody))
	if recorder.Code != http.StatusBadGateway || !strings.Contains(recorder.Body.String(), urlpolicy.ErrDenied.Error()) {
		t.Errorf("got %d %s", recorder.Code, recorder.Body)
	}
}

func TestLoadSealer(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString(relay.NewKey())
	for content, ok := range map[string]bool{
		key: true, key + "\n" + key + "\n": true, "": false, "x": false, "c2hvcnQ=": false,
	} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := relay.LoadSealer(file); (err == nil) != ok {
			t.Errorf("%q: %v", content, err)
		}
	}
	if _, err := relay.LoadSealer(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestDirect(t *testing.T) {
	t.Parallel()
	server := serve(t, whole)
	p, err := urlpolicy.New(urlpolicy.Config{Deny: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	d := &relay.Direct{Client: image.NewClient(image.Config{Policy: p}), Roots: roots}
	if got, err := d.Prepare(t.Context(), hypervisor.Image{URL: server}, kubevirt.Trust{}); err != nil || got.URL != server || got.Bytes != int64(len(iso)) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := d.Prepare(t.Context(), hypervisor.Image{URL: server, Username: "user"}, kubevirt.Trust{}); !errors.Is(err, hypervisor.ErrUnsupported) {
		t.Errorf("with credentials: got %v, want %v", err, hypervisor.ErrUnsupported)
	}
}
