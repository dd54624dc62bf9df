// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

func TestBootSector(t *testing.T) {
	const text = "hello\r\n"
	s, err := BootSector(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(s) != 512 || s[510] != 0x55 || s[511] != 0xaa {
		t.Errorf("sector of %d bytes ends with % x, want 512 and 55 aa", len(s), s[len(s)-2:])
	}
	// The operand of "mov si, text" has to be where the text is.
	at := int(binary.LittleEndian.Uint16(s[7:])) - 0x7c00
	if got := s[at : at+len(text)+1]; !bytes.Equal(got, []byte(text+"\x00")) {
		t.Errorf("text at %#x is %q, want %q and a zero byte", at, got, text)
	}
}

// Each short jump has to land on the first byte of the instruction that its
// comment names.
func TestProgram_jumps(t *testing.T) {
	for name, jump := range map[string]struct{ at, to int }{
		"jz wait":   {0x0c, 0x20},
		"jz busy":   {0x16, 0x13},
		"jmp next":  {0x1e, 0x09},
		"jz idle":   {0x29, 0x30},
		"loop spin": {0x34, 0x34},
		"loop poll": {0x37, 0x23},
		"jmp again": {0x39, 0x06},
	} {
		if got := jump.at + 2 + int(int8(program[jump.at+1])); got != jump.to {
			t.Errorf("%s at %#x goes to %#x, want %#x", name, jump.at, got, jump.to)
		}
	}
}

func TestBootSector_refuses_a_text_that_does_not_fit(t *testing.T) {
	room := 512 - 2 - len(program) - 1
	if _, err := BootSector(strings.Repeat("x", room)); err != nil {
		t.Errorf("BootSector of %d bytes: %v", room, err)
	}
	if _, err := BootSector(strings.Repeat("x", room+1)); !errors.Is(err, ErrTextTooLong) {
		t.Errorf("BootSector of %d bytes: error %v, want ErrTextTooLong", room+1, err)
	}
}
