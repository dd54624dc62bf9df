// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func TestRun_flagsAndEnvironment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args       []string
		env        map[string]string
		wantTarget string
		wantExit   int
		wantStderr string
	}{
		"default":                   {wantTarget: "none"},
		"flag":                      {args: []string{"--target", "a"}, wantTarget: "a"},
		"environment":               {env: map[string]string{"KUBEVIRTBMC_TARGET": "b"}, wantTarget: "b"},
		"flag wins":                 {args: []string{"--target=a"}, env: map[string]string{"KUBEVIRTBMC_TARGET": "b"}, wantTarget: "a"},
		"unknown flag":              {args: []string{"--nope"}, wantExit: 2, wantStderr: "-nope"},
		"stray argument":            {args: []string{"stray"}, wantExit: 2, wantStderr: `unexpected argument "stray"`},
		"bad value in environment":  {env: map[string]string{"KUBEVIRTBMC_COUNT": "x"}, wantExit: 2, wantStderr: "KUBEVIRTBMC_COUNT"},
		"bad log level":             {args: []string{"--log-level=loud"}, wantExit: 2, wantStderr: `"loud"`},
		"bad log format":            {args: []string{"--log-format=xml"}, wantExit: 2, wantStderr: `"xml"`},
		"failure":                   {args: []string{"--target=fail"}, wantTarget: "fail", wantExit: 1, wantStderr: "boom"},
		"a cancelled context is ok": {args: []string{"--target=cancel"}, wantTarget: "cancel"},
		"help":                      {args: []string{"--help"}, wantStderr: "health-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			var got string
			env := func(k string) (string, bool) { v, ok := tc.env[k]; return v, ok }
			exit := run("test", append([]string{"--health-listen="}, tc.args...), env, &stderr, func(flags *flag.FlagSet) Run {
				target := flags.String("target", "none", "")
				flags.Int("count", 0, "")
				return func(context.Context, *Process) error {
					got = *target
					switch got {
					case "fail":
						return errors.New("boom")
					case "cancel":
						return context.Canceled
					}
					return nil
				}
			})
			if exit != tc.wantExit || got != tc.wantTarget || !strings.Contains(stderr.String(), tc.wantStderr) {
				t.Errorf("exit %d, target %q, stderr:\n%s\nwant exit %d, target %q, stderr with %q",
					exit, got, &stderr, tc.wantExit, tc.wantTarget, tc.wantStderr)
			}
		})
	}
}

func TestHealth_readyz(t *testing.T) {
	t.Parallel()
	h := NewHealth()
	server := httptest.NewServer(h.Handler(NewRegistry()))
	defer server.Close()
	check := func(path string, want int) {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s = %d, want %d", path, resp.StatusCode, want)
		}
	}
	check("/healthz", http.StatusOK)
	check("/readyz", http.StatusServiceUnavailable)
	h.Set("cache", true)
	check("/readyz", http.StatusOK)
	h.Set("registry", false)
	check("/readyz", http.StatusServiceUnavailable)
	h.Set("registry", true)
	check("/readyz", http.StatusOK)
	check("/metrics", http.StatusOK)
}

func TestHealth_SetReason(t *testing.T) {
	t.Parallel()
	h := NewHealth()
	handler := h.Handler(NewRegistry())
	check := func(code int, body string) {
		t.Helper()
		got := httptest.NewRecorder()
		handler.ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
		if got.Code != code || strings.TrimSpace(got.Body.String()) != body {
			t.Errorf("/readyz is %d %q, want %d %q", got.Code, got.Body, code, body)
		}
	}
	h.Set("cache", false)
	h.SetReason("definition", "it is old")
	check(http.StatusServiceUnavailable, "not ready: cache, definition (it is old)")
	h.Set("cache", true)
	h.SetReason("definition", "")
	check(http.StatusOK, "ok")
}

// The last that watchers hear is how it is.
func TestHealth_concurrentSets_lastToldIsTrue(t *testing.T) {
	t.Parallel()
	for range 2000 {
		h := NewHealth()
		var told []bool
		h.OnChange(func(ready bool) { told = append(told, ready) })
		h.Set("a", false)
		h.Set("b", false)
		var group sync.WaitGroup
		group.Go(func() { h.Set("a", true) })
		group.Go(func() { h.Set("b", true) })
		group.Wait()
		if !told[len(told)-1] {
			t.Fatalf("told %v, but all is ready", told)
		}
	}
}
