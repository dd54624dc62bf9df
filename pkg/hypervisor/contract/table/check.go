// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check compares a file with what it should be, given what it is, or rewrites
// it.
func Check(t testing.TB, path string, update bool, want func(old string) string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil && !update {
		t.Fatal(err)
	}
	text := want(string(old))
	diff := cmp.Diff(string(old), text)
	switch {
	case diff == "":
	case update:
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // part of the source
			t.Fatal(err)
		}
	default:
		t.Errorf("%s mismatch (-recorded +found); -update on the simulator rewrites it\n%s", filepath.Base(path), diff)
	}
}
