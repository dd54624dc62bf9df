// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Level says how much of a cluster is real.
type Level string

// The levels, each holding all of the one before.
const (
	LevelAPI      Level = "api"
	LevelKubeVirt Level = "kubevirt"
	LevelReal     Level = "real"
)

// Levels lists all levels from the smallest to the largest.
func Levels() []Level { return []Level{LevelAPI, LevelKubeVirt, LevelReal} }

// ParseLevel returns the level that s names.
func ParseLevel(s string) (Level, error) {
	if l := Level(s); slices.Contains(Levels(), l) {
		return l, nil
	}
	return "", fmt.Errorf("level %q: want one of %v", s, Levels())
}

// Options says what Up is to bring up. The zero value of each field but Level
// stands for a default.
type Options struct {
	// Level is how much of the cluster is real.
	Level Level
	// KubeVirtVersion is one of KubeVirtVersions; the first is the default.
	KubeVirtVersion string
	// FeatureGates are switched on in the KubeVirt resource.
	FeatureGates []string
	// Nodes is how many nodes there are, at most two: the control plane is on
	// the first. The default is two at level kubevirt, so that machines can
	// migrate, and one at level real. Level api has none.
	Nodes int
	// Dir holds all state of the cluster and must lie on a local disk. It is
	// created by Up and removed by Down. The default is DefaultDir.
	Dir string
	// Log receives a line for each step. The default is standard error.
	Log io.Writer
}

// withDefaults fills what was left empty and rejects what cannot be.
func (o Options) withDefaults() (Options, error) {
	if _, err := ParseLevel(string(o.Level)); err != nil {
		return o, err
	}
	if o.KubeVirtVersion == "" {
		o.KubeVirtVersion = KubeVirtVersions()[0]
	}
	if !slices.Contains(KubeVirtVersions(), o.KubeVirtVersion) {
		return o, fmt.Errorf("KubeVirt version %q: want one of %v", o.KubeVirtVersion, KubeVirtVersions())
	}
	if o.Level == LevelReal && !kubeVirtPins[o.KubeVirtVersion].real {
		return o, fmt.Errorf("KubeVirt version %s: cannot be built for level %s", o.KubeVirtVersion, o.Level)
	}
	switch {
	case o.Nodes < 0 || o.Nodes > maxNodes:
		return o, fmt.Errorf("%d nodes: want at most %d", o.Nodes, maxNodes)
	case o.Level == LevelAPI && o.Nodes > 0:
		return o, fmt.Errorf("%d nodes: level %s has none", o.Nodes, o.Level)
	case o.Level == LevelKubeVirt && o.Nodes == 0:
		o.Nodes = 2
	case o.Level == LevelReal && o.Nodes == 0:
		o.Nodes = 1
	}
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, err
	}
	if strings.ContainsAny(dir, `,:\`) {
		return o, fmt.Errorf("directory %s: the options of an overlay mount cannot hold its name", dir)
	}
	for _, covered := range overlaid {
		if dir == covered || strings.HasPrefix(dir, covered+"/") {
			return o, fmt.Errorf("directory %s: lies below %s, which the node covers", dir, covered)
		}
	}
	o.Dir = dir
	if o.Log == nil {
		o.Log = os.Stderr
	}
	return o, nil
}

// DefaultDir is the state directory used when Options.Dir is empty.
func DefaultDir() string {
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "kubevirtbmc", "testbed")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".local", "state", "kubevirtbmc", "testbed")
}

// Cluster is a running cluster.
type Cluster struct {
	// Level is how much of the cluster is real.
	Level Level `json:"level"`
	// KubeVirtVersion is the version of KubeVirt that runs in it, or at level
	// api the version whose CRDs are installed. It is empty for a cluster that
	// KUBECONFIG named.
	KubeVirtVersion string `json:"kubeVirtVersion,omitempty"`
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string `json:"kubeconfig"`
	// Dir is the state directory; empty for a cluster that KUBECONFIG named.
	Dir string `json:"dir,omitempty"`
	// NodeIP and HostIP are the two ends of the link between the first node and
	// the host; empty at level api and for a cluster that KUBECONFIG named. Pod and
	// service addresses are reachable from the host.
	NodeIP string `json:"nodeIP,omitempty"`
	HostIP string `json:"hostIP,omitempty"`
	// NodePIDs holds each node's first process as the host sees it.
	NodePIDs []int `json:"nodePIDs,omitempty"`

	kubectl string
}

// External reports whether the cluster was found through KUBECONFIG; Down
// leaves such a cluster alone.
func (c *Cluster) External() bool { return c.Dir == "" }

// Down removes the cluster and all that Up made, unless it is External.
func (c *Cluster) Down(ctx context.Context) error {
	if c.External() {
		return nil
	}
	return Down(ctx, c.Dir)
}

// Kubectl returns a kubectl command that talks to the cluster.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := command(ctx, c.kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	return cmd
}

// output runs kubectl and returns what it printed, or an error that holds
// what it complained about.
func (c *Cluster) output(ctx context.Context, args ...string) (string, error) {
	return output(c.Kubectl(ctx, args...))
}

// Apply applies manifests, given as YAML or JSON documents, on the server side.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	cmd := c.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", "-")
	cmd.Stdin = bytes.NewReader(manifests)
	_, err := output(cmd)
	return err
}

// Attach returns the running cluster whose state directory is dir.
func Attach(ctx context.Context, dir string) (*Cluster, error) {
	b, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", dir, err)
	}
	c := &Cluster{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("attach to %s: %w", dir, err)
	}
	if c.kubectl, err = newBuilder(os.Stderr).build(ctx, k8sTarget("kubectl")); err != nil {
		return nil, err
	}
	if _, err := c.output(ctx, "get", "--raw", "/readyz"); err != nil {
		return nil, fmt.Errorf("attach to %s: %w", dir, err)
	}
	return c, nil
}

// ErrNoKubeconfig says that KUBECONFIG names no cluster.
var ErrNoKubeconfig = errors.New("KUBECONFIG is not set")

// FromEnv returns the cluster that KUBECONFIG names, or ErrNoKubeconfig. It is
// an error if that cluster lacks KubeVirt's CRDs. Where the kubeconfig is one
// that Up wrote, its level is known; otherwise the node side is taken for real.
func FromEnv(ctx context.Context) (*Cluster, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, ErrNoKubeconfig
	}
	if dir := filepath.Dir(path); filepath.Base(path) == kubeconfigFile {
		if c, err := Attach(ctx, dir); err == nil {
			return &Cluster{Level: c.Level, KubeVirtVersion: c.KubeVirtVersion, Kubeconfig: path, NodeIP: c.NodeIP, HostIP: c.HostIP, NodePIDs: c.NodePIDs, kubectl: c.kubectl}, nil
		}
	}
	kubectl, err := newBuilder(os.Stderr).build(ctx, k8sTarget("kubectl"))
	if err != nil {
		return nil, err
	}
	c := &Cluster{Level: LevelReal, Kubeconfig: path, kubectl: kubectl}
	if _, err := c.output(ctx, "get", "crd", "virtualmachines.kubevirt.io", "-o", "name"); err != nil {
		return nil, fmt.Errorf("cluster of KUBECONFIG %s: KubeVirt not found: %w", path, err)
	}
	return c, nil
}

// Open returns the cluster that KUBECONFIG names, or brings one up.
func Open(ctx context.Context, o Options) (*Cluster, error) {
	c, err := FromEnv(ctx)
	if errors.Is(err, ErrNoKubeconfig) {
		return Up(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	if levels := Levels(); slices.Index(levels, c.Level) < slices.Index(levels, o.Level) {
		return nil, fmt.Errorf("cluster of KUBECONFIG is of level %s, want %s", c.Level, o.Level)
	}
	return c, nil
}

// Up brings a cluster up and returns when it is ready. Remains of an earlier
// one in the same directory are removed first. On error everything that was
// started is removed again, unless KUBEVIRTBMC_KEEP is set.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Level != LevelAPI {
		if err := checkHost(); err != nil {
			return nil, err
		}
	}
	bin, err := buildAll(ctx, newBuilder(o.Log), o)
	if err != nil {
		return nil, err
	}
	unlock, err := lockState(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeState(ctx, o.Dir); err != nil {
		return nil, fmt.Errorf("remove the remains of an earlier cluster: %w", err)
	}
	j, err := newJournal(o.Dir)
	if err != nil {
		return nil, err
	}
	defer j.close()
	log := newProgress(o.Log)
	c := &Cluster{Level: o.Level, KubeVirtVersion: o.KubeVirtVersion, Dir: o.Dir, Kubeconfig: filepath.Join(o.Dir, kubeconfigFile), kubectl: bin.path("kubectl")}
	bring := c.upNode
	if o.Level == LevelAPI {
		bring = c.upAPI
	}
	if err := bring(ctx, o, bin, j, log); err != nil {
		err = fmt.Errorf("bring up level %s: %w", o.Level, err)
		if os.Getenv("KUBEVIRTBMC_KEEP") != "" {
			return nil, err
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, removeState(clean, o.Dir))
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(o.Dir, clusterFile), append(b, '\n'), 0o600); err != nil {
		return nil, err
	}
	log.step("level %s is up: export KUBECONFIG=%s", o.Level, c.Kubeconfig)
	return c, nil
}

// Down removes the cluster whose state directory is dir, or what a crash left
// of it. Without one it does nothing.
func Down(ctx context.Context, dir string) error {
	if dir == "" {
		dir = DefaultDir()
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := lockState(dir)
	if err != nil {
		return err
	}
	defer unlock()
	return removeState(ctx, dir)
}
