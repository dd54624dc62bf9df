// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Package guest makes the smallest operating system that shows from where a
// machine has booted: one disk sector that prints a text on the serial port
// again and again, and sends back what it reads. It comes on a disk or a CD.
package guest

import (
	"errors"
	"fmt"
)

// program is the boot sector's code, for an 8086 in real mode. The firmware
// loads the sector to 0x7c00 and jumps there. It talks to the first serial
// port (registers from 0x3f8; the transmitter is waited for at 0x3fd) as the
// firmware left it.
var program = []byte{
	0x31, 0xc0, //              00        xor  ax, ax
	0x8e, 0xd8, //              02        mov  ds, ax
	0xfa,             //                    04        cli
	0xfc,             //                    05        cld
	0xbe, 0x3b, 0x7c, //        06 again: mov  si, 0x7c00 + text
	0xac,       //                    09 next:  lodsb
	0x84, 0xc0, //              0a        test al, al
	0x74, 0x12, //              0c        jz   wait
	0x88, 0xc4, //              0e        mov  ah, al
	0xba, 0xfd, 0x03, //        10        mov  dx, 0x3fd
	0xec,       //                    13 busy:  in   al, dx
	0xa8, 0x20, //              14        test al, 0x20       ; transmitter empty?
	0x74, 0xfb, //              16        jz   busy
	0x88, 0xe0, //              18        mov  al, ah
	0xba, 0xf8, 0x03, //        1a        mov  dx, 0x3f8
	0xee,       //                    1d        out  dx, al
	0xeb, 0xe9, //              1e        jmp  next
	0xb9, 0xff, 0xff, //        20 wait:  mov  cx, 0xffff     ; polls until the text comes again
	0xba, 0xfd, 0x03, //        23 poll:  mov  dx, 0x3fd
	0xec,       //                    26        in   al, dx
	0xa8, 0x01, //              27        test al, 0x01       ; received a byte?
	0x74, 0x05, //              29        jz   idle
	0xba, 0xf8, 0x03, //        2b        mov  dx, 0x3f8
	0xec,             //                    2e        in   al, dx
	0xee,             //                    2f        out  dx, al         ; send it back
	0x51,             //                    30 idle:  push cx
	0xb9, 0xff, 0x1f, //        31        mov  cx, 0x1fff
	0xe2, 0xfe, //              34 spin:  loop spin
	0x59,       //                    36        pop  cx
	0xe2, 0xea, //              37        loop poll
	0xeb, 0xcb, //              39        jmp  again
	//                          3b text:  the text and a zero byte
}

// sectorSize is the size of a boot sector; its last two bytes tell the
// firmware that it is one.
const sectorSize = 512

// DiskSize is the size of a disk made by Disk.
const DiskSize = 1 << 20

// ErrTextTooLong says that a text does not fit into the boot sector.
var ErrTextTooLong = errors.New("text is too long for a boot sector")

// BootSector returns a sector whose program prints text, which is to end a
// line if lines are wanted.
func BootSector(text string) ([]byte, error) {
	if room := sectorSize - 2 - len(program) - 1; len(text) > room {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrTextTooLong, len(text), room)
	}
	sector := make([]byte, sectorSize)
	copy(sector[copy(sector, program):], text)
	sector[sectorSize-2], sector[sectorSize-1] = 0x55, 0xaa
	return sector, nil
}

// Disk returns a raw disk that starts with such a sector.
func Disk(text string) ([]byte, error) {
	sector, err := BootSector(text)
	if err != nil {
		return nil, err
	}
	disk := make([]byte, DiskSize)
	copy(disk, sector)
	return disk, nil
}
