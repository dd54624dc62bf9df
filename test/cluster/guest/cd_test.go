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

// TestCD follows the image as a BIOS does.
func TestCD(t *testing.T) {
	t.Parallel()
	cd, err := CD("hello\r\n")
	if err != nil {
		t.Fatal(err)
	}
	record := cd[17*2048 : 18*2048]
	if !bytes.HasPrefix(record, []byte("\x00CD001\x01EL TORITO SPECIFICATION\x00")) {
		t.Fatalf("sector 17 is no boot record: % x", record[:40])
	}
	catalog := cd[binary.LittleEndian.Uint32(record[0x47:])*2048:]
	var sum uint16
	for n := 0; n < 32; n += 2 {
		sum += binary.LittleEndian.Uint16(catalog[n:])
	}
	if catalog[0] != 1 || catalog[30] != 0x55 || catalog[31] != 0xaa || sum != 0 {
		t.Errorf("the validation entry is % x, its words add up to %#x", catalog[:32], sum)
	}
	entry := catalog[32:64]
	if entry[0] != 0x88 || entry[1] != 0 {
		t.Errorf("the entry is % x, want a bootable one without emulation", entry)
	}
	size := int(binary.LittleEndian.Uint16(entry[6:])) * 512
	image := cd[binary.LittleEndian.Uint32(entry[8:])*2048:][:size]
	want, err := BootSector("hello\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(image, want) {
		t.Error("the boot image is not the boot sector")
	}
}

func TestCD_refuses_a_text_that_does_not_fit(t *testing.T) {
	t.Parallel()
	if _, err := CD(strings.Repeat("x", 512)); !errors.Is(err, ErrTextTooLong) {
		t.Errorf("got %v, want %v", err, ErrTextTooLong)
	}
}
