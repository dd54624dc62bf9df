// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Without a file the certificates are those of the controller's own CA, once it has
// one.
func TestOptions_ca(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("file"), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle := func(text string) func() []byte { return func() []byte { return []byte(text) } }
	for name, tc := range map[string]struct {
		options Options
		want    string // empty: none
	}{
		"a file":             {Options{CAFile: file}, "file"},
		"a file comes first": {Options{CAFile: file, Bundle: bundle("own")}, "file"},
		"a file that lacks":  {Options{CAFile: file + "x", Bundle: bundle("own")}, ""},
		"the CA's own":       {Options{Bundle: bundle("own")}, "own"},
		"no CA yet":          {Options{Bundle: bundle("")}, ""},
		"nothing":            {Options{}, ""},
	} {
		got, err := tc.options.ca()
		if string(got) != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
}

func TestOptions_watchCA(t *testing.T) {
	t.Parallel()
	o := Options{CAFile: filepath.Join(t.TempDir(), "ca.crt")}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(o.CAFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan struct{}, 16), make(chan struct{})
	go func() {
		defer close(ended)
		o.watchCA(ctx, time.Millisecond, func() { changes <- struct{}{} })
	}()
	want := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(30 * time.Second):
			t.Fatalf("no change after %s", what)
		}
	}
	// The watch may have begun before or after this.
	write("two")
	for len(changes) == 0 && ctx.Err() == nil {
		write("two")
		write("three")
		time.Sleep(5 * time.Millisecond)
	}
	want("a change")
	if err := os.Remove(o.CAFile); err != nil {
		t.Fatal(err)
	}
	for len(changes) > 0 {
		<-changes
	}
	write("four, after it was gone")
	want("its return")
	cancel()
	<-ended
}
