// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Package ociarchive writes container images as OCI archives, which containerd
// imports. It needs no registry, no container engine and no rights.
package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image describes an image.
type Image struct {
	// Name is the full name with a tag, such as example.test/hello:1.
	Name string
	// User is the numeric user that it runs as; empty is root.
	User string
	// Entrypoint is the program and its first arguments.
	Entrypoint []string
	// Base is the path of an uncompressed tar file that becomes the first layer.
	Base string
	// Files become a layer of their own.
	Files []File
}

// File is a file, directory or link in an image.
type File struct {
	// Path is its absolute path in the image. Directories above it are made.
	Path string
	// Source is the path of a file to copy; if it is empty, Content counts.
	Source string
	// Content is the file's content.
	Content []byte
	// Link makes it a symbolic link to this target.
	Link string
	// Dir makes it a directory.
	Dir bool
	// Mode is the permissions; 0 stands for 0755.
	Mode int64
	// NetBind gives the program the right to listen on ports below 1024
	// (capability CAP_NET_BIND_SERVICE, permitted and effective).
	NetBind bool
}

// netBind is the extended attribute security.capability, version 2, with
// capability 10 permitted and the effective bit set.
const netBind = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// descriptor refers to a blob of the archive.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type imageConfig struct {
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Config       runtimeConfig `json:"config"`
	RootFS       rootFS        `json:"rootfs"`
}

type runtimeConfig struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	WorkingDir string   `json:"WorkingDir"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	Manifests     []descriptor `json:"manifests"`
}

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
)

// Write writes the image to w. Equal input gives equal bytes.
func Write(w io.Writer, img Image) error {
	slash := strings.LastIndex(img.Name, "/")
	_, tag, ok := strings.Cut(img.Name[slash+1:], ":")
	if !ok || tag == "" {
		return fmt.Errorf("image name %q has no tag", img.Name)
	}
	a := archive{tw: tar.NewWriter(w)}
	if err := a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	var layers []descriptor
	if img.Base != "" {
		d, err := a.copyBlob(layerType, img.Base)
		if err != nil {
			return err
		}
		layers = append(layers, d)
	}
	if len(img.Files) > 0 {
		var b bytes.Buffer
		if err := writeLayer(&b, img.Files); err != nil {
			return fmt.Errorf("image %s: %w", img.Name, err)
		}
		d, err := a.blob(layerType, b.Bytes())
		if err != nil {
			return err
		}
		layers = append(layers, d)
	}
	config := imageConfig{
		Architecture: runtime.GOARCH, OS: "linux",
		Config: runtimeConfig{
			User: img.User, Entrypoint: img.Entrypoint, WorkingDir: "/",
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{}},
	}
	for _, l := range layers { // uncompressed: a layer's digest is that of its content
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest)
	}
	configBlob, err := a.json(configType, config)
	if err != nil {
		return err
	}
	m, err := a.json(manifestType, manifest{SchemaVersion: 2, MediaType: manifestType, Config: configBlob, Layers: layers})
	if err != nil {
		return err
	}
	m.Annotations = map[string]string{"io.containerd.image.name": img.Name, "org.opencontainers.image.ref.name": tag}
	b, err := json.Marshal(index{SchemaVersion: 2, Manifests: []descriptor{m}})
	if err != nil {
		return err
	}
	if err := a.file("index.json", b); err != nil {
		return err
	}
	return a.tw.Close()
}

// writeLayer writes a layer's tar file, parents before children.
func writeLayer(w io.Writer, files []File) error {
	tw := tar.NewWriter(w)
	var made []string
	var makeDir func(dir string, mode int64) error
	makeDir = func(dir string, mode int64) error {
		dir = strings.Trim(dir, "/")
		if dir == "" || slices.Contains(made, dir) {
			return nil
		}
		if err := makeDir(path.Dir("/"+dir), 0o755); err != nil {
			return err
		}
		made = append(made, dir)
		return tw.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: mode})
	}
	for _, f := range files {
		if !path.IsAbs(f.Path) {
			return fmt.Errorf("path %q is not absolute", f.Path)
		}
		name := strings.Trim(path.Clean(f.Path), "/")
		mode := f.Mode
		if mode == 0 {
			mode = 0o755
		}
		if f.Dir {
			if err := makeDir(name, mode); err != nil {
				return err
			}
			continue
		}
		if err := makeDir(path.Dir("/"+name), 0o755); err != nil {
			return err
		}
		if f.Link != "" {
			if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: f.Link}); err != nil {
				return err
			}
			continue
		}
		content := f.Content
		if f.Source != "" {
			var err error
			if content, err = os.ReadFile(f.Source); err != nil {
				return err
			}
		}
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}
		if f.NetBind {
			h.Format = tar.FormatPAX
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": netBind}
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(content); err != nil {
			return err
		}
	}
	return tw.Close()
}

// archive is the outer tar file.
type archive struct{ tw *tar.Writer }

func (a archive) file(name string, content []byte) error {
	if err := a.tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := a.tw.Write(content)
	return err
}

// blob adds a content-addressed file.
func (a archive) blob(mediaType string, content []byte) (descriptor, error) {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(content))}, a.file("blobs/sha256/"+digest, content)
}

func (a archive) json(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, b)
}

// copyBlob adds a file of the disk, which may be large, as a blob.
func (a archive) copyBlob(mediaType, name string) (descriptor, error) {
	f, err := os.Open(name)
	if err != nil {
		return descriptor{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return descriptor{}, err
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if err := a.tw.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		return descriptor{}, err
	}
	_, err = io.Copy(a.tw, f)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: size}, err
}
