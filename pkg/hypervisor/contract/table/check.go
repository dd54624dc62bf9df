// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// CheckPart is Check of what stands in a file between two marks, which stay.
func CheckPart(t testing.TB, path, begin, end string, update bool, want string) {
	t.Helper()
	Check(t, path, update, func(old string) string {
		before, rest, found := strings.Cut(old, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no place for the table, from %q to %q", path, begin, end)
		}
		return before + begin + want + end + after
	})
}

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
		t.Errorf("%s mismatch (-recorded +found); -update rewrites it, of a table of hypervisors on the simulator\n%s", filepath.Base(path), diff)
	}
}
