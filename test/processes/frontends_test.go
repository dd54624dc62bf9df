// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubevirtbmc.dev/test/launch"
)

// The exposed programs have no code in them that speaks to Kubernetes.
func TestFrontends_withoutKubernetes(t *testing.T) {
	t.Parallel()
	folders, err := filepath.Glob(filepath.Join(launch.Root(), "services", "frontend-*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) != 2 {
		t.Errorf("frontends are %v", folders)
	}
	for _, folder := range folders {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
		list.Dir, list.Env = folder, append(os.Environ(), "GOWORK=off")
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%s: %v", folder, err)
		}
		packages := strings.Fields(string(out))
		if len(packages) < 100 {
			t.Errorf("%s is made of %d packages", folder, len(packages))
		}
		for _, name := range packages {
			for _, kubernetes := range []string{"k8s.io/", "sigs.k8s.io/", "kubevirt.io/", "kubevirtbmc.dev/pkg/kubeaccess", "kubevirtbmc.dev/pkg/bmcresource"} {
				if strings.HasPrefix(name, kubernetes) {
					t.Errorf("%s has %s in it", filepath.Base(folder), name)
				}
			}
		}
	}
}
