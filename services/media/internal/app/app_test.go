// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor/backend/backendtest"
	"kubevirtbmc.dev/services/media/internal/app"
)

const media = "/v1/namespaces/default/bmcs/sim-0/media"

// TestRestart: an import outlives the program that began it.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := backendtest.New(t)
	stop := s.Start(t, app.New)
	code, content := s.Call(t, http.MethodPost, media+"/CD1:insert", backendtest.Token, `{"image_url":"http://images.example/one.iso"}`)
	if code != http.StatusOK || !strings.Contains(content, `"state":"MEDIA_STATE_IMPORTING"`) {
		t.Errorf("insert: got %d %s", code, content)
	}
	stop()
	defer s.Start(t, app.New)()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		code, content = s.Call(t, http.MethodGet, media, backendtest.Token, "")
		if code == http.StatusOK && strings.Contains(content, `"state":"MEDIA_STATE_INSERTED"`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("import did not end: %d %s", code, content)
		}
	}
	code, content = s.Call(t, http.MethodPost, media+"/CD1:eject", backendtest.Token, "{}")
	if code != http.StatusOK || !strings.Contains(content, `"state":"MEDIA_STATE_EMPTY"`) {
		t.Errorf("eject: got %d %s", code, content)
	}
}

func TestREST_refusals(t *testing.T) {
	t.Parallel()
	s := backendtest.New(t)
	defer s.Start(t, app.New)()
	for name, test := range map[string]struct {
		path, bearer, body string
		code               int
		want               string
	}{
		"no token":     {media + "/CD1:eject", "", "{}", http.StatusUnauthorized, "UNAUTHENTICATED"},
		"no such slot": {media + "/CD7:eject", backendtest.Token, "{}", http.StatusNotFound, "MEDIA_SLOT_NOT_FOUND"},
		"no URL":       {media + "/CD1:insert", backendtest.Token, "{}", http.StatusBadRequest, "INVALID_REQUEST"},
	} {
		code, content := s.Call(t, http.MethodPost, test.path, test.bearer, test.body)
		if code != test.code || !strings.Contains(content, test.want) {
			t.Errorf("%s: got %d %s, want %d with %s", name, code, content, test.code, test.want)
		}
	}
}
