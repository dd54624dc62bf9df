// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write writes files below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTarget_key(t *testing.T) {
	base := target{name: "p", module: "m", modfile: "go.mod", pkg: "./p", sources: []string{"p"}, ldflags: "-s"}
	key := func(change map[string]string, tg target) string {
		dir := t.TempDir()
		write(t, dir, map[string]string{"m/go.mod": "module m\n", "m/go.sum": "sum\n", "m/p/main.go": "package main\n", "m/p/main_test.go": "package main\n", "m/q/q.go": "package q\n", "m/p/other/go.mod": "module other\n", "m/p/other/x.go": "package other\n"})
		write(t, dir, change)
		k, err := tg.key(dir)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	same := key(nil, base)
	for name, test := range map[string]struct {
		files   map[string]string
		target  target
		changes bool
	}{
		"nothing":                     {target: base},
		"go.sum":                      {files: map[string]string{"m/go.sum": "other\n"}, target: base, changes: true},
		"go.mod":                      {files: map[string]string{"m/go.mod": "module m \n"}, target: base, changes: true},
		"a source file":               {files: map[string]string{"m/p/main.go": "package main \n"}, target: base, changes: true},
		"a test":                      {files: map[string]string{"m/p/main_test.go": "package main \n"}, target: base},
		"a file elsewhere":            {files: map[string]string{"m/q/q.go": "package q \n"}, target: base},
		"a module within the sources": {files: map[string]string{"m/p/other/x.go": "package other \n"}, target: base},
		"linker flags":                {target: func() target { b := base; b.ldflags = "-w"; return b }(), changes: true},
		"build tags":                  {target: func() target { b := base; b.tags = "x"; return b }(), changes: true},
		"cgo":                         {target: func() target { b := base; b.cgo = true; return b }(), changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := key(test.files, test.target) != same; got != test.changes {
				t.Errorf("the key changes: %t, want %t", got, test.changes)
			}
		})
	}
}

func TestBuilder_cached(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	b := newBuilder(io.Discard)
	calls := 0
	make := func(tmp string) error {
		calls++
		return os.WriteFile(tmp, []byte("made"), 0o644)
	}
	for range 2 {
		path, err := b.cached("key", "name", make)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); string(got) != "made" {
			t.Errorf("content %q, %v, want made", got, err)
		}
	}
	if calls != 1 {
		t.Errorf("made %d times, want once", calls)
	}
}

func TestBuilder_cached_keeps_nothing_of_a_failure(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	b := newBuilder(io.Discard)
	broken := errors.New("broken")
	if _, err := b.cached("key", "name", func(tmp string) error {
		if err := os.WriteFile(tmp, []byte("half"), 0o644); err != nil {
			return err
		}
		return broken
	}); !errors.Is(err, broken) {
		t.Errorf("cached() failed with %v, want %v", err, broken)
	}
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(cache, "key"))
	if err != nil || len(files) > 0 {
		t.Errorf("the cache holds %v, %v, want nothing", files, err)
	}
}

func TestTargets_grow_with_the_level(t *testing.T) {
	names := func(l Level) (list []string) {
		for _, x := range targets(l, KubeVirtVersions()[0]) {
			list = append(list, x.name)
		}
		return list
	}
	api, kubeVirt, real := names(LevelAPI), names(LevelKubeVirt), names(LevelReal)
	for _, n := range api {
		if !slices.Contains(kubeVirt, n) || !slices.Contains(real, n) {
			t.Errorf("%s is a target of level api only", n)
		}
	}
	if slices.Contains(kubeVirt, "virt-launcher") || slices.Contains(real, "nodestandin") {
		t.Errorf("levels kubevirt and real are %q and %q, want the stand-in or the real thing", kubeVirt, real)
	}
}

// What is written as constants has to agree with what is pinned.
func TestPins(t *testing.T) {
	for file, want := range map[string]string{
		"k8s/go.mod":          "\tk8s.io/kubernetes " + kubernetesVersion + " ",
		"kubevirt/go.mod":     "\tkubevirt.io/kubevirt v1.7.0 ",
		"kubevirt/v1.6.0.mod": "\tkubevirt.io/kubevirt v1.6.0",
		"kubevirt/v1.8.4.mod": "\tkubevirt.io/kubevirt v1.8.4 ",
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %q", file, want)
		}
	}
	for _, v := range KubeVirtVersions() {
		if _, err := os.Stat(filepath.Join("kubevirt", kubeVirtPins[v].modfile)); err != nil || kubeVirtPins[v].modfile == "" {
			t.Errorf("version %s has no go.mod file: %v", v, err)
		}
	}
}
