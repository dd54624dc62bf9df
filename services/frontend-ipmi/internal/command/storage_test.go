// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
)

func TestSDRAndSensorCommands(t *testing.T) {
	t.Parallel()
	runExchanges(t, map[string]exchange{
		"repository info":            {user, "0a 20", "00 510300000000b1106b00b1106b02"},
		"allocation info":            {user, "0a 21", "c1"},
		"reserve":                    {user, "0a 22", "00 0100"},
		"first header":               {user, "0a 23 000000000005", "00 0200" + "0100511216"},
		"power sensor":               {user, "0a 23 0000020000ff", "00 0300" + "020051022020000107010143226f" + "00000000" + "2100" + "c00000" + "01000000" + "00000000" + "c5506f776572"},
		"last record":                {user, "0a 23 0000ffff0005", "00 ffff" + "0300510131"},
		"beyond the last":            {user, "0a 23 000004000005", "cb"},
		"beyond a record's end":      {user, "0a 23 00000100ff01", "c5"},
		"too much":                   {user, "0a 23 0000010000c8", "ca"},
		"reservation that is none":   {user, "0a 23 070001000005", "c5"},
		"cut off":                    {user, "0a 23 0000", "c7"},
		"Delete SDR":                 {admin, "0a 26 00000100", "c1"},
		"Clear SDR Repository":       {admin, "0a 27 0000434c52aa", "c1"},
		"device SDR info, sensors":   {user, "04 20", "00 0201"},
		"device SDR info, records":   {user, "04 20 01", "00 0301"},
		"reading of power, off":      {user, "04 2d 01", "00 00402080"},
		"reading of uptime, off":     {user, "04 2d 02", "00 0060c0"},
		"reading of nothing":         {user, "04 2d 03", "cb"},
		"reading without a number":   {user, "04 2d", "c7"},
		"thresholds of uptime":       {user, "04 27 02", "00 00000000000000"},
		"thresholds of power":        {user, "04 27 01", "cd"},
		"thresholds of nothing":      {user, "04 27 09", "cb"},
		"set thresholds":             {admin, "04 26 0200000000000000", "c1"},
		"event enable":               {user, "04 29 01", "00 40"},
		"event enable of nothing":    {user, "04 29 00", "cb"},
		"type of power":              {user, "04 2f 01", "00 226f"},
		"type of uptime":             {user, "04 2f 02", "00 0b01"},
		"type of nothing":            {user, "04 2f 03", "cb"},
		"FRU info of another device": {user, "0a 10 01", "cb"},
		"FRU read of another device": {user, "0a 11 01000008", "cb"},
		"FRU read beyond the end":    {user, "0a 11 00ff0308", "c9"},
		"FRU header":                 {user, "0a 11 00000008", "00 08" + "01000001050000f9"},
		"FRU read cut off":           {user, "0a 11 0000", "c7"},
		"Write FRU":                  {admin, "0a 12 00000000", "c1"},
	})
}

// A reservation lasts until somebody makes another one.
func TestGetSDR_reservation(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.send(t, session(user), "0a 22")
	if got := b.send(t, session(user), "0a 23 010001000502"); got != "00 02002000" {
		t.Errorf("under the reservation: %q", got)
	}
	if got := b.send(t, session(user), "0a 23 01000100ff01"); got != "c9" {
		t.Errorf("beyond the record's end: %q", got)
	}
	b.send(t, session(user), "0a 22")
	if got := b.send(t, session(user), "0a 23 010001000502"); got != "c5" {
		t.Errorf("under the one that was lost: %q", got)
	}
}

func TestSensorReadings(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }
	for name, tc := range map[string]struct {
		status        *powerv1.PowerStatus
		power, uptime string
	}{
		"on since 16 minutes":   {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, LastResetTime: ago(16 * time.Minute)}, "00 00400180", "00 3240c0"},
		"on since this moment":  {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, LastResetTime: ago(0)}, "00 00400180", "00 0040c0"},
		"on since ten years":    {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON, LastResetTime: ago(87600 * time.Hour)}, "00 00400180", "00 ff40c0"},
		"on, nobody knows when": {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_ON}, "00 00400180", "00 0060c0"},
		"unknown":               {&powerv1.PowerStatus{State: powerv1.PowerState_POWER_STATE_UNKNOWN, LastResetTime: ago(time.Hour)}, "00 00600080", "00 0060c0"},
	} {
		b := newBench()
		b.power.status = tc.status
		if got := b.send(t, session(user), "04 2d 01"); got != tc.power {
			t.Errorf("%s: power = %q, want %q", name, got, tc.power)
		}
		if got := b.send(t, session(user), "04 2d 02"); got != tc.uptime {
			t.Errorf("%s: uptime = %q, want %q", name, got, tc.uptime)
		}
	}
}

// Whatever a machine is called, all areas of its FRU information have their
// checksums and end where they say.
func TestFRU_checksums(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "KubeVirt", "Ünïcode\n", strings.Repeat("long", 60)} {
		b := newBench()
		b.inventory.inventory = &inventoryv1.Inventory{Manufacturer: text, Product: text, SerialNumber: text, MachineName: text, MachineType: text, FirmwareUuid: text}
		info, err := hex.DecodeString(b.send(t, session(user), "0a 10 00")[3:])
		if err != nil {
			t.Fatal(err)
		}
		size := int(info[0]) | int(info[1])<<8
		var content []byte
		for len(content) < size {
			part, err := hex.DecodeString(b.send(t, session(user), "0a 11 00"+hex.EncodeToString([]byte{byte(len(content)), byte(len(content) >> 8), 16}))[3:])
			if err != nil || len(part) < 2 || int(part[0]) != len(part)-1 {
				t.Fatalf("read at %d: %x, %v", len(content), part, err)
			}
			content = append(content, part[1:]...)
		}
		board, product := int(content[3])*8, int(content[4])*8
		for name, area := range map[string][]byte{
			"header": content[:8], "board": content[board : board+8*int(content[board+1])], "product": content[product:],
		} {
			var sum byte
			for _, v := range area {
				sum += v
			}
			if sum != 0 {
				t.Errorf("%q: sum of the %s area is %#x", text, name, sum)
			}
		}
		if len(content[product:]) != 8*int(content[product+1]) || board+8*int(content[board+1]) != product {
			t.Errorf("%q: areas are at %d and %d of %d bytes", text, board, product, size)
		}
	}
}
