// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package node

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// What follows the line is for the process that is started next.
func TestReadLine_takes_no_byte_more(t *testing.T) {
	first, err := Line(Launch{Namespaces: true, Cgroups: []string{"/a\nb"}})
	if err != nil {
		t.Fatal(err)
	}
	r := strings.NewReader(string(first) + "rest")
	var l Launch
	if err := readLine(r, &l); err != nil {
		t.Fatal(err)
	}
	if !l.Namespaces || len(l.Cgroups) != 1 || l.Cgroups[0] != "/a\nb" {
		t.Errorf("read %+v", l)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Errorf("left %q, want rest", rest)
	}
}

// The caller died before it said what to do.
func TestReadLine_end_of_input(t *testing.T) {
	for _, s := range []string{"", `{"namespaces":true}`} {
		if err := readLine(strings.NewReader(s), &Launch{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("readLine(%q) = %v, want %v", s, err, io.ErrUnexpectedEOF)
		}
	}
}
