// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package rbactest

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FolderVariable is the environment variable with the folder in which packages
// that test parts of a service leave what they have used of its rights.
const FolderVariable = "KUBEVIRTBMC_RIGHTS"

// RunPart runs the tests of a package that need a part of a service's rights, and
// returns the exit code. What they have used is left in the folder of
// FolderVariable.
func RunPart(m *testing.M, service string) int {
	code := m.Run()
	if err := leave(service); err != nil {
		fmt.Fprintf(os.Stderr, "leave what was used of the rights of %s: %v\n", service, err)
		return 1
	}
	return code
}

// leave writes what was used to the folder of FolderVariable, if there is one.
func leave(service string) error {
	dir := os.Getenv(FolderVariable)
	if dir == "" {
		return nil
	}
	text, err := json.Marshal(used.list())
	if err == nil {
		err = os.MkdirAll(dir, 0o750) //nolint:gosec // whoever runs the tests names the folder
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, service+"-"+strings.ToLower(rand.Text()[:8])+".json"), text, 0o600) //nolint:gosec // the same
	}
	return err
}

// RunWhole runs the tests of a package that need all of a service's rights, and
// returns the exit code: a right that all of them together do not use is a
// failure.
func RunWhole(m *testing.M, service string) int {
	code := RunPart(m, service)
	if code != 0 || !whole() {
		return code
	}
	manifest, err := Read(service)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if unused := manifest.unused(used.list()); len(unused) > 0 {
		complain(service, unused)
		return 1
	}
	return 0
}

// whole tells whether this is a run of all tests with a cluster.
func whole() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return os.Getenv("KUBECONFIG") != "" && !testing.Short()
}

func complain(service string, unused []string) {
	fmt.Fprintf(os.Stderr, "No test has used these rights of %s; take them out of %s, or test what needs them:\n  %s\n",
		service, Path(service), strings.Join(unused, "\n  "))
}

// CheckParts returns an error that names the rights of a service that none of the
// packages has used that left a file in a folder.
func CheckParts(dir, service string) error {
	manifest, err := Read(service)
	if err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(dir, service+"-*.json"))
	if err != nil {
		return err
	}
	var all []right
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var some []right
		if err := json.Unmarshal(text, &some); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, some...)
	}
	if unused := manifest.unused(all); len(unused) > 0 {
		return fmt.Errorf("%d packages together have not used these rights of %s; take them out of %s, or test what needs them:\n  %s",
			len(paths), service, Path(service), strings.Join(unused, "\n  "))
	}
	return nil
}
