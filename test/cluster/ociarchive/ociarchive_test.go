// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// entries reads a tar file into headers in order and contents by name.
func entries(t *testing.T, r io.Reader) (headers []*tar.Header, content map[string][]byte) {
	t.Helper()
	content = map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return headers, content
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
		content[h.Name] = b
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	base, program := filepath.Join(dir, "base.tar"), filepath.Join(dir, "program")
	var b bytes.Buffer
	if err := writeLayer(&b, []File{{Path: "/etc", Dir: true}}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{base: b.Bytes(), program: []byte("code")} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	img := Image{Name: "example.test:5000/a/b:v1", User: "1001", Entrypoint: []string{"/usr/bin/p"}, Base: base, Files: []File{
		{Path: "/usr/bin/p", Source: program, NetBind: true},
		{Path: "/usr/bin/q", Link: "p"},
		{Path: "/tmp", Dir: true, Mode: 0o1777},
		{Path: "/etc/passwd", Content: []byte("root"), Mode: 0o644},
	}}
	var out, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&out, &again} {
		if err := Write(w, img); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("two writes of one image differ")
	}
	_, files := entries(t, &out)
	for name, content := range files {
		if want, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
				t.Errorf("blob %s has another digest", name)
			}
		}
	}
	read := func(d descriptor, v any) {
		content, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if !ok || int64(len(content)) != d.Size {
			t.Fatalf("blob %+v is missing or of another size", d)
		}
		if v != nil {
			if err := json.Unmarshal(content, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	var i index
	if err := json.Unmarshal(files["index.json"], &i); err != nil {
		t.Fatal(err)
	}
	if got := i.Manifests[0].Annotations["io.containerd.image.name"]; got != img.Name {
		t.Errorf("the image is called %q, want %q", got, img.Name)
	}
	if got := i.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "v1" {
		t.Errorf("the tag is %q, want v1", got)
	}
	var m manifest
	read(i.Manifests[0], &m)
	var c imageConfig
	read(m.Config, &c)
	if c.Config.User != "1001" || !slices.Equal(c.Config.Entrypoint, img.Entrypoint) {
		t.Errorf("config is %+v", c.Config)
	}
	if len(m.Layers) != 2 || !slices.Equal(c.RootFS.DiffIDs, []string{m.Layers[0].Digest, m.Layers[1].Digest}) {
		t.Errorf("layers %+v with %q, want the base and ours", m.Layers, c.RootFS.DiffIDs)
	}
	read(m.Layers[0], nil)
	headers, content := entries(t, bytes.NewReader(files["blobs/sha256/"+strings.TrimPrefix(m.Layers[1].Digest, "sha256:")]))
	var names []string
	for _, h := range headers {
		names = append(names, h.Name)
		switch h.Name {
		case "usr/bin/p":
			if h.Mode != 0o755 || string(content[h.Name]) != "code" || h.PAXRecords["SCHILY.xattr.security.capability"] != netBind {
				t.Errorf("program is %+v", h)
			}
		case "usr/bin/q":
			if h.Typeflag != tar.TypeSymlink || h.Linkname != "p" {
				t.Errorf("link is %+v", h)
			}
		case "tmp/":
			if h.Mode != 0o1777 {
				t.Errorf("/tmp has mode %o", h.Mode)
			}
		}
	}
	if want := []string{"usr/", "usr/bin/", "usr/bin/p", "usr/bin/q", "tmp/", "etc/", "etc/passwd"}; !slices.Equal(names, want) {
		t.Errorf("the layer holds %q, want %q", names, want)
	}
}

func TestWrite_refuses(t *testing.T) {
	for name, img := range map[string]Image{
		"a name without a tag":       {Name: "example.test:5000/a"},
		"a relative path":            {Name: "a:1", Files: []File{{Path: "x"}}},
		"a source that is not there": {Name: "a:1", Files: []File{{Path: "/x", Source: "/does/not/exist"}}},
		"a base that is not there":   {Name: "a:1", Base: "/does/not/exist"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Write(io.Discard, img); err == nil {
				t.Error("Write succeeded")
			}
		})
	}
}
