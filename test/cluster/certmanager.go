// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// certManagerModule is cert-manager, which certmanager/go.mod pins.
const certManagerModule = "github.com/cert-manager/cert-manager"

// CertManager is what it takes to have cert-manager in a cluster.
type CertManager struct {
	// Program is the path of its controllers as a program, with the flags
	// --kubeconfig and --namespace.
	Program string
	// Definitions are the YAML files of its custom resource definitions.
	Definitions []string
}

// BuildCertManager builds cert-manager, or takes it from the cache, and says on log
// when it builds.
func BuildCertManager(ctx context.Context, log io.Writer) (*CertManager, error) {
	root, err := sourceDir()
	if err != nil {
		return nil, err
	}
	t := target{name: "certmanager", module: "certmanager", modfile: "go.mod", pkg: ".", sources: []string{"."}, ldflags: "-s -w"}
	program, err := newBuilder(log).build(ctx, t)
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, "go", "mod", "download", "-json", certManagerModule)
	cmd.Dir, cmd.Env = filepath.Join(root, t.module), append(os.Environ(), t.env()...)
	text, err := output(cmd)
	if err != nil {
		return nil, err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return nil, fmt.Errorf("find cert-manager's definitions: %w", err)
	}
	definitions, err := filepath.Glob(filepath.Join(module.Dir, "deploy", "crds", "cert-manager.io_*.yaml"))
	if err == nil && len(definitions) == 0 {
		err = fmt.Errorf("%s has none", module.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("find cert-manager's definitions: %w", err)
	}
	return &CertManager{program, definitions}, nil
}
