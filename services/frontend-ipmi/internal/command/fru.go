// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/backend"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// fru has the FRU commands of IPMI v2.0 section 34.
type fru struct {
	inventory backend.Inventory
}

// registerFRU adds the FRU commands. Write FRU Data (12h) is not served: what is
// in it comes from the machine.
func registerFRU(m *Mux, inventory backend.Inventory) {
	c := fru{inventory: inventory}
	m.Handle(ipmi.NetFnStorage, 0x10, Command{
		Name: "get_fru_inventory_area_info", Privilege: ipmi.PrivilegeUser, Backend: true,
		MinLength: 1, MaxLength: 1, Handle: c.info,
	})
	m.Handle(ipmi.NetFnStorage, 0x11, Command{
		Name: "read_fru_data", Privilege: ipmi.PrivilegeUser, Backend: true,
		MinLength: 4, MaxLength: 4, Handle: c.read,
	})
}

// info answers Get FRU Inventory Area Info (IPMI v2.0 section 34.1).
func (c fru) info(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	const byBytes = 0
	area, code := c.area(ctx, r)
	if code != ipmi.OK {
		return code, nil
	}
	return ipmi.OK, append(binary.LittleEndian.AppendUint16(nil, uint16(len(area))), byBytes) //nolint:gosec // Below 1 KiB.
}

// read answers Read FRU Data (IPMI v2.0 section 34.2).
func (c fru) read(ctx context.Context, r *Request) (ipmi.CompletionCode, []byte) {
	area, code := c.area(ctx, r)
	if code != ipmi.OK {
		return code, nil
	}
	part, code := window(area, int(binary.LittleEndian.Uint16(r.Data[1:])), min(int(r.Data[3]), maxRead))
	if code != ipmi.OK {
		return code, nil
	}
	return ipmi.OK, append([]byte{byte(len(part))}, part...) //nolint:gosec // At most maxRead.
}

// area returns the content of FRU device 0, the only one.
func (c fru) area(ctx context.Context, r *Request) ([]byte, ipmi.CompletionCode) {
	if r.Data[0] != 0 {
		return nil, ipmi.RecordNotPresent
	}
	inventory, err := c.inventory.Get(ctx, r.Target.Reference)
	if err != nil {
		return nil, backend.CompletionCode(err)
	}
	return fruContent(inventory), ipmi.OK
}

// fruContent makes the FRU information of a machine (Platform Management FRU
// Information Storage Definition v1.0, sections 8, 11 and 12): board and product
// areas.
func fruContent(inventory *inventoryv1.Inventory) []byte {
	const (
		formatVersion = 0x01
		english       = 0x00
		headerSize    = 8
		unit          = 8
	)
	// Without a date of manufacture, which a machine has none of.
	board := fruArea([]byte{formatVersion, 0, english, 0, 0, 0},
		inventory.GetManufacturer(), inventory.GetProduct(), inventory.GetSerialNumber(), "", "")
	product := fruArea([]byte{formatVersion, 0, english},
		inventory.GetManufacturer(), inventory.GetMachineName(), "", inventory.GetMachineType(), inventory.GetFirmwareUuid(), "", "")
	header := []byte{formatVersion, 0, 0, headerSize / unit, byte((headerSize + len(board)) / unit), 0, 0} //nolint:gosec // Below 1 KiB.
	header = append(header, -sumOf(header))
	return append(append(header, board...), product...)
}

// fruArea makes an area of its head and fields, padded to a multiple of 8 bytes,
// with its length and checksum.
func fruArea(area []byte, fields ...string) []byte {
	const (
		unit       = 8
		ascii      = 0xC0
		maxField   = 63
		endOfField = 0xC1
	)
	for _, field := range fields {
		field = printable(field, maxField)
		if len(field) == 1 {
			field += " " // A type/length of C1h would end the fields.
		}
		typeLength := byte(len(field)) //nolint:gosec // At most maxField.
		if typeLength > 0 {
			typeLength |= ascii
		}
		area = append(append(area, typeLength), field...)
	}
	area = append(area, endOfField)
	for len(area)%unit != unit-1 {
		area = append(area, 0)
	}
	area[1] = byte((len(area) + 1) / unit) //nolint:gosec // Below 1 KiB.
	return append(area, -sumOf(area))
}

// printable is a text in ASCII, cut to a length in bytes.
func printable(text string, most int) string {
	var b []byte
	for _, r := range text {
		if len(b) == most {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return string(b)
}

func sumOf(b []byte) byte {
	var sum byte
	for _, v := range b {
		sum += v
	}
	return sum
}
