// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certs_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/pkg/certs"
)

// volume is a folder as kubelet makes it of a Secret or a ConfigMap: files are
// links into a folder that is replaced as a whole.
type volume struct {
	*testing.T
	dir   string
	count int
}

func (v *volume) put(files map[string][]byte) {
	v.Helper()
	v.count++
	version := fmt.Sprintf("..version-%d", v.count)
	if err := os.Mkdir(filepath.Join(v.dir, version), 0o700); err != nil {
		v.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(v.dir, version, name), content, 0o600); err != nil {
			v.Fatal(err)
		}
	}
	next := filepath.Join(v.dir, "..data_tmp")
	if err := os.Symlink(version, next); err != nil {
		v.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(v.dir, "..data")); err != nil {
		v.Fatal(err)
	}
	for name := range files {
		link := filepath.Join(v.dir, name)
		if _, err := os.Lstat(link); err != nil {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				v.Fatal(err)
			}
		}
	}
}

func TestRoots_followMountedBundle(t *testing.T) {
	t.Parallel()
	v := &volume{T: t, dir: t.TempDir()}
	file := filepath.Join(v.dir, "ca.crt")
	if _, err := certs.LoadRoots(file); err == nil {
		t.Fatal("a missing file was loaded")
	}
	first, second := newAuthority(t), newAuthority(t)
	v.put(map[string][]byte{"ca.crt": []byte("no certificate")})
	if _, err := certs.LoadRoots(file); err == nil {
		t.Fatal("a file without certificates was loaded")
	}
	v.put(map[string][]byte{"ca.crt": first.PEM()})
	synctest.Test(t, func(t *testing.T) {
		roots, err := certs.LoadRoots(file)
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, trusted ...*certs.Authority) {
			t.Helper()
			want := x509.NewCertPool()
			for _, ca := range trusted {
				want.AppendCertsFromPEM(ca.PEM())
			}
			if !roots.Pool().Equal(want) {
				t.Errorf("%s: other certificates are trusted than the file's", when)
			}
		}
		check("at first", first)
		v.put(map[string][]byte{"ca.crt": append(first.PEM(), second.PEM()...)})
		check("before it is looked at again", first)
		time.Sleep(10 * time.Second)
		check("with the next CA", first, second)
		v.put(map[string][]byte{"ca.crt": []byte("half a file")})
		time.Sleep(10 * time.Second)
		check("with a bad file", first, second)
		v.put(map[string][]byte{"ca.crt": second.PEM()})
		time.Sleep(10 * time.Second)
		check("without the former CA", second)
	})
}

func TestFiles_followMountedSecret(t *testing.T) {
	t.Parallel()
	v := &volume{T: t, dir: t.TempDir()}
	ca := newAuthority(t)
	put := func(c *tls.Certificate) {
		t.Helper()
		key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		v.put(map[string][]byte{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		})
	}
	first, second := issue(t, ca, "a.example"), issue(t, ca, "b.example")
	put(first)
	synctest.Test(t, func(t *testing.T) {
		files, err := certs.LoadFiles(filepath.Join(v.dir, "tls.crt"), filepath.Join(v.dir, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		put(second)
		time.Sleep(10 * time.Second)
		got, err := files.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if name := got.Leaf.DNSNames[0]; name != "b.example" {
			t.Errorf("after the swap: certificate of %s, want b.example", name)
		}
	})
}
