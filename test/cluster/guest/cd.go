// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package guest

import "encoding/binary"

// Sectors of a CD, of 2048 bytes each. The volume descriptors start at 16
// (ECMA-119, 6.7.1); the second is the boot record, which points to the catalog
// (El Torito 1.0, figure 7).
const (
	cdSectorSize = 2048

	primarySector    = 16
	bootRecordSector = 17
	terminatorSector = 18
	catalogSector    = 19
	imageSector      = 20
	cdSectors        = 64
)

// CD returns a CD image that BIOS boots without emulation: its program is that
// of BootSector.
func CD(text string) ([]byte, error) {
	boot, err := BootSector(text)
	if err != nil {
		return nil, err
	}
	cd := make([]byte, cdSectors*cdSectorSize)
	sector := func(n int) []byte { return cd[n*cdSectorSize : (n+1)*cdSectorSize] }
	descriptor := func(n int, kind byte) []byte {
		s := sector(n)
		s[0] = kind
		copy(s[1:], "CD001\x01")
		return s
	}
	const bootRecord, primary, terminator = 0, 1, 255
	copy(descriptor(primarySector, primary)[40:72], "GUEST                           ")
	record := descriptor(bootRecordSector, bootRecord)
	copy(record[7:], "EL TORITO SPECIFICATION")
	binary.LittleEndian.PutUint32(record[0x47:], catalogSector)
	descriptor(terminatorSector, terminator)

	catalog := sector(catalogSector)
	validation, entry := catalog[:32], catalog[32:64]
	validation[0] = 1 // Header; the platform, 0, is x86 with a BIOS.
	validation[30], validation[31] = 0x55, 0xaa
	var sum uint16
	for n := 0; n < len(validation); n += 2 {
		sum += binary.LittleEndian.Uint16(validation[n:])
	}
	binary.LittleEndian.PutUint16(validation[28:], -sum) // All words add up to 0.
	entry[0] = 0x88                                      // Bootable; the medium, 0, is not emulated.
	binary.LittleEndian.PutUint16(entry[6:], 1)          // Sectors of 512 bytes to load to 0x7c00.
	binary.LittleEndian.PutUint32(entry[8:], imageSector)
	copy(sector(imageSector), boot)
	return cd, nil
}
