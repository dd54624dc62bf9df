// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// kubernetesVersion is the version that k8s/go.mod pins.
const kubernetesVersion = "v1.34.4"

// pin says how a version of KubeVirt is built.
type pin struct {
	// modfile is the name of the go.mod file, in kubevirt, that pins it.
	modfile string
	// tags are build tags of our programs there, for what changed between
	// versions.
	tags string
	// gates are Kubernetes' feature gates that it can't do with.
	gates string
	// real says that the node side can be built too.
	real bool
}

// kubeVirtPins holds each version of KubeVirt that can be built. The real node
// side of 1.8 cannot: virt-launcher imports libguestfs.org/libnbd, which is not
// to be had as a Go module. That of 1.6 was not tried. Of 1.6's releases 1.6.0 is
// the only one whose three modules are all to be had.
var kubeVirtPins = map[string]pin{
	"v1.7.0": {modfile: "go.mod", real: true},
	// Its client drops the field that this gate adds to the conditions of pods;
	// virt-controller's patches of conditions are then refused for good.
	"v1.6.0": {modfile: "v1.6.0.mod", tags: "kubevirt16", gates: "PodObservedGenerationTracking=false"},
	"v1.8.4": {modfile: "v1.8.4.mod", tags: "kubevirt18"},
}

// KubeVirtVersions lists the versions of KubeVirt that can be built, the
// default first.
func KubeVirtVersions() []string { return []string{"v1.7.0", "v1.6.0", "v1.8.4"} }

// target is a binary to build.
type target struct {
	// name is the binary's file name.
	name string
	// module is the module's directory below this one; modfile the name of its
	// go.mod file.
	module, modfile string
	// pkg is the package to build.
	pkg string
	// sources are directories below the module whose Go files make a difference
	// to the binary; what go.sum pins needs no mention.
	sources []string
	// ldflags are flags of the linker, tags build tags.
	ldflags, tags string
	// cgo asks for a C compiler.
	cgo bool
}

// k8sTarget is one of Kubernetes' own programs.
func k8sTarget(name string) target {
	// Without a version in the binary, kubelets and Helm charts refuse it.
	ldflags := "-s -w"
	major, minor, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	for _, v := range []string{"gitVersion=" + kubernetesVersion, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean", "gitCommit=module"} {
		ldflags += " -X k8s.io/component-base/version." + v + " -X k8s.io/client-go/pkg/version." + v
	}
	return target{name: name, module: "k8s", modfile: "go.mod", pkg: "k8s.io/kubernetes/cmd/" + name, ldflags: ldflags}
}

// kubeVirtTarget is one of KubeVirt's own programs.
func kubeVirtTarget(name, version string, cgo bool) target {
	ldflags := "-s -w"
	for _, v := range []string{"gitVersion=" + version, "gitTreeState=clean", "gitCommit=module"} {
		ldflags += " -X kubevirt.io/client-go/version." + v
	}
	return target{name: name, module: "kubevirt", modfile: kubeVirtPins[version].modfile, pkg: "kubevirt.io/kubevirt/cmd/" + name, ldflags: ldflags, cgo: cgo}
}

// ownKubeVirtTarget is a program of ours that needs KubeVirt's packages.
func ownKubeVirtTarget(name, version string) target {
	return target{name: name, module: "kubevirt", modfile: kubeVirtPins[version].modfile, pkg: "./cmd/" + name, tags: kubeVirtPins[version].tags, sources: []string{"cmd/" + name}, ldflags: "-s -w"}
}

// ownTarget is a program of this module.
func ownTarget(name string) target {
	return target{name: name, module: ".", modfile: "go.mod", pkg: "./cmd/" + name, sources: []string{"."}, ldflags: "-s -w"}
}

// targets lists what a level needs.
func targets(level Level, version string) []target {
	t := []target{ownTarget("node"), k8sTarget("kube-apiserver"), k8sTarget("kubectl"), ownKubeVirtTarget("manifests", version)}
	if level == LevelAPI {
		return t
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		t = append(t, k8sTarget(name))
	}
	t = append(t, ownTarget("pause"), ownTarget("dns"))
	for _, name := range []string{"virt-operator", "virt-api", "virt-controller"} {
		t = append(t, kubeVirtTarget(name, version, false))
	}
	if level == LevelKubeVirt {
		return append(t, ownTarget("launcherstandin"), ownKubeVirtTarget("nodestandin", version))
	}
	for _, name := range []string{"virt-launcher-monitor", "virt-chroot", "virt-tail"} {
		t = append(t, kubeVirtTarget(name, version, false))
	}
	// virt-launcher binds to libvirt, virt-handler to the kernel's headers.
	return append(t, kubeVirtTarget("virt-launcher", version, true), kubeVirtTarget("virt-handler", version, true))
}

// binaries maps the names of built binaries to their paths.
type binaries map[string]string

// path returns where a binary is. It panics if it was not built, since the
// list of targets is then wrong.
func (b binaries) path(name string) string {
	p, ok := b[name]
	if !ok {
		panic("binary " + name + " is not among the targets of this level")
	}
	return p
}

// Build builds, without starting anything, all that Up needs at a level.
func Build(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	_, err = buildAll(ctx, newBuilder(o.Log), o)
	return err
}

func buildAll(ctx context.Context, b *builder, o Options) (binaries, error) {
	bin := binaries{}
	for _, t := range targets(o.Level, o.KubeVirtVersion) {
		path, err := b.build(ctx, t)
		if err != nil {
			return nil, err
		}
		bin[t.name] = path
	}
	if o.Level == LevelReal {
		var err error
		if bin["container-disk"], err = b.containerDisk(ctx, o.KubeVirtVersion); err != nil {
			return nil, err
		}
		if bin["rootfs.tar"], err = b.rootfs(ctx); err != nil {
			return nil, err
		}
	}
	return bin, nil
}

// builder makes binaries and keeps them in the user's cache.
type builder struct {
	log io.Writer
}

func newBuilder(log io.Writer) *builder { return &builder{log: log} }

// CacheDir is where binaries are kept between runs. It can be removed at any
// time.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "kubevirtbmc", "testbed"), err
}

// build returns the path of the target's binary, building it if the cache does
// not hold one made from the same inputs.
func (b *builder) build(ctx context.Context, t target) (string, error) {
	root, err := sourceDir()
	if err != nil {
		return "", err
	}
	key, err := t.key(root)
	if err != nil {
		return "", err
	}
	return b.cached(key, t.name, func(tmp string) error {
		args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", t.ldflags, "-tags", t.tags, "-modfile", t.modfile, "-o", tmp, t.pkg}
		cmd := command(ctx, "nice", append([]string{"-n", "19", "go"}, args...)...)
		cmd.Dir = filepath.Join(root, t.module)
		cmd.Env = append(os.Environ(), t.env()...)
		_, err := output(cmd)
		return err
	})
}

// env is what the go command sees besides the environment. The modules here
// are not part of the repository's workspace.
func (t target) env() []string {
	cgo := "CGO_ENABLED=0"
	if t.cgo {
		cgo = "CGO_ENABLED=1"
	}
	return []string{"GOWORK=off", "GOFLAGS=", cgo}
}

// key identifies everything that the binary is made from.
func (t target) key(root string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH, t.pkg, t.ldflags, t.tags, t.cgo)
	modfile := filepath.Join(root, t.module, t.modfile)
	files := []string{modfile, strings.TrimSuffix(modfile, ".mod") + ".sum"}
	for _, s := range t.sources {
		err := filepath.WalkDir(filepath.Join(root, t.module, s), func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && path != filepath.Join(root, t.module, s) {
				if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
					return filepath.SkipDir
				}
			}
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	slices.Sort(files)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(f, ".sum") {
			continue // a module without dependencies has none
		}
		if err != nil {
			return "", err
		}
		rel, err := filepath.Rel(root, f)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, rel, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// cached returns the path of the file that the cache holds under key and name.
// If there is none, it calls make with the path of a file to write, and moves
// that into place when it is complete.
func (b *builder) cached(key, name string, make func(tmp string) error) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, key, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // another process made it while we waited
	}
	tmp := path + ".tmp" // the lock is ours: a file that is there is a crash's
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	start := time.Now()
	fmt.Fprintf(b.log, "building %s ...\n", name)
	if err := make(tmp); err != nil {
		os.RemoveAll(tmp)
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	fmt.Fprintf(b.log, "built %s in %s\n", name, time.Since(start).Round(time.Second))
	return path, os.Rename(tmp, path)
}

// containerDisk returns KubeVirt's static C program that serves a disk from a
// container image.
func (b *builder) containerDisk(ctx context.Context, version string) (string, error) {
	root, err := sourceDir()
	if err != nil {
		return "", err
	}
	t := kubeVirtTarget("container-disk", version, true)
	key, err := t.key(root)
	if err != nil {
		return "", err
	}
	return b.cached(key, t.name, func(tmp string) error {
		dir, err := kubeVirtSource(ctx, version)
		if err != nil {
			return err
		}
		_, err = output(command(ctx, "gcc", "-static", "-O2", "-s", "-o", tmp, filepath.Join(dir, "cmd/container-disk-v2alpha/main.c")))
		return err
	})
}

// kubeVirtSource is where the module cache holds KubeVirt's sources.
func kubeVirtSource(ctx context.Context, version string) (string, error) {
	root, err := sourceDir()
	if err != nil {
		return "", err
	}
	cmd := command(ctx, "go", "list", "-modfile", kubeVirtPins[version].modfile, "-m", "-f", "{{.Dir}}", "kubevirt.io/kubevirt")
	cmd.Dir = filepath.Join(root, "kubevirt")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	dir, err := output(cmd)
	if err != nil {
		return "", err
	}
	if dir = strings.TrimSpace(dir); dir == "" {
		return "", errors.New("the module cache does not hold kubevirt.io/kubevirt")
	}
	return dir, nil
}

// sourceDir is the directory of this package's sources: the one it was
// compiled from, or test/cluster in a directory above the current one.
func sourceDir() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		if dir := filepath.Dir(file); isSource(dir) {
			return dir, nil
		}
	}
	dir, err := os.Getwd()
	for err == nil {
		for _, d := range []string{dir, filepath.Join(dir, "test", "cluster")} {
			if isSource(d) {
				return d, nil
			}
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("not found here or above")
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("sources of kubevirtbmc.dev/test/cluster: %w", err)
}

func isSource(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(b), "module kubevirtbmc.dev/test/cluster\n")
}
