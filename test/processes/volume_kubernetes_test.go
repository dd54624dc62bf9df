//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// syncTime is how often volumes are brought up to date. Kubelet takes a minute.
const syncTime = 500 * time.Millisecond

// volume is a folder with what a Secret or ConfigMap has, as kubelet mounts it:
// each file is a link into ..data, itself a link to a folder that is never changed
// but replaced as a whole.
type volume struct {
	dir     string
	read    func(context.Context) (map[string][]byte, error)
	content map[string][]byte
	version int
}

// path is that of a file of the volume.
func (v *volume) path(name string) string { return filepath.Join(v.dir, name) }

// sync brings the volume up to date.
func (v *volume) sync(ctx context.Context) error {
	content, err := v.read(ctx)
	if err != nil {
		return err
	}
	if maps.EqualFunc(content, v.content, func(a, b []byte) bool { return string(a) == string(b) }) {
		return nil
	}
	v.version++
	next := fmt.Sprintf("..%d", v.version)
	if err := os.Mkdir(v.path(next), 0o700); err != nil {
		return err
	}
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(v.dir, next, name), text, 0o600); err != nil {
			return err
		}
	}
	before, _ := os.Readlink(v.path("..data")) // There is none at first.
	if err := os.Symlink(next, v.path("..data_tmp")); err != nil {
		return err
	}
	if err := os.Rename(v.path("..data_tmp"), v.path("..data")); err != nil {
		return err
	}
	for name := range content {
		if err := os.Symlink(filepath.Join("..data", name), v.path(name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	v.content = content
	if before == "" {
		return nil
	}
	return os.RemoveAll(v.path(before))
}

// mount keeps a volume until the test ends, from the moment on that what it is of
// is there.
func (a *accounts) mount(read func(context.Context) (map[string][]byte, error)) *volume {
	a.t.Helper()
	v := &volume{dir: a.t.TempDir(), read: read}
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if err = v.sync(a.t.Context()); err == nil {
			break
		}
		if time.Now().After(end) {
			a.t.Fatalf("mount: %v", err)
		}
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	a.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		ticker := time.NewTicker(syncTime)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := v.sync(ctx); err != nil && ctx.Err() == nil {
				a.t.Errorf("mount: %v", err)
			}
		}
	})
	return v
}

// mountSecret mounts a Secret.
func (a *accounts) mountSecret(namespace, name string) *volume {
	a.t.Helper()
	return a.mount(func(ctx context.Context) (map[string][]byte, error) {
		secret, err := a.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	})
}

// mountConfigMap mounts a ConfigMap.
func (a *accounts) mountConfigMap(namespace, name string) *volume {
	a.t.Helper()
	return a.mount(func(ctx context.Context) (map[string][]byte, error) {
		configMap, err := a.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		content := map[string][]byte{}
		for name, text := range configMap.Data {
			content[name] = []byte(text)
		}
		return content, nil
	})
}
