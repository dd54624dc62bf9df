// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/url"
	"testing"
)

func TestCleanPath(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"/redfish/v1/":            "/redfish/v1",
		"//redfish//v1/./a/../b/": "/redfish/v1/b",
		"/a%2Fb":                  "/a%2Fb",
		"/a%2Fb/":                 "/a%2Fb",
		"/a%20b":                  "/a%20b",
		"/a/..%2Fb":               "/b",
		"/a/%2e%2e/b":             "/b",
		"/a%2F%2Fb":               "/a/b",
		"/a%2F":                   "/a",
		"/../../etc":              "/etc",
		"/%25":                    "/%25",
	} {
		u, err := url.Parse("http://x" + raw)
		if err != nil {
			t.Fatal(err)
		}
		if cleanPath(u); u.EscapedPath() != want {
			t.Errorf("%s is %s, want %s", raw, u.EscapedPath(), want)
		}
	}
}
