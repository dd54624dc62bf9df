// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
	"kubevirtbmc.dev/services/frontend-ipmi/internal/sol"
)

// What a request and an answer can be at most.
const (
	maxRequest = 200
	maxAnswer  = 200
	maxScript  = 2000
)

// FuzzCommands: a session's commands, each of a byte that says at which level and how
// long, network function, number and data. Whatever comes, there is an answer that
// fits into a packet, failures have no data but where the specification gives them
// some, no session rises above its limit, users act on nothing, and the state of
// the BMC stays one that the next command can read.
func FuzzCommands(f *testing.F) {
	for _, script := range []string{
		"03 06 01", "43 0a 42 49 0a 43 000000000010", // Get SEL Entry under a reservation.
		"d2 0a 44 77770200000000410004090101afffff c2 0a 40",
		"49 06 24 040100010a00 43 06 22 03 06 25", // Watchdog.
		"46 00 08 058004000000 45 00 08 0308 06 00 09 050000",
		"45 00 04 0501 03 00 01", "05 2c 01 dc01 06 2c 06 dc0010 06 2c 09 dc0010",
		"09 0a 23 0000010000ff 03 0a 20 04 0a 10 00 07 0a 11 00000010",
		"07 06 59 00020000 07 0c 02 01170000 04 04 2d 02",
		"c9 06 48 01010000c600 c4 06 3b 04 c7 06 3c 04030201",
	} {
		raw, err := hex.DecodeString(strings.ReplaceAll(script, " ", ""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), maxScript)]
		b := newBench()
		b.target.SOL = sol.NewParameters()
		b.target.Background = func(func(context.Context)) {}
		defer b.target.Close()
		b.happened(t, &statev1.Event{Message: "One."}, &statev1.Event{Code: statev1.EventCode_EVENT_CODE_RESET})
		b.events.log.Events[0].Time = &timestamppb.Timestamp{Seconds: -1}
		s := session(ipmi.PrivilegeOperator)
		for len(script) >= 3 && !s.Closed {
			level := ipmi.PrivilegeUser + ipmi.Privilege(script[0]>>6)%3
			n := min(int(script[0]&0x3F), len(script), maxRequest)
			netFn, number := script[1]&0x3E, script[2]
			data := script[min(3, max(n, 3)):max(n, 3)]
			script = script[max(n, 3):]
			s.Level, s.Max = level, level
			did := len(b.power.actions())
			began := time.Now()
			answer := b.send(t, s, hex.EncodeToString(append([]byte{netFn, number}, data...)))
			if took := time.Since(began); took > time.Second {
				t.Fatalf("%02x %02x %x took %s", netFn, number, data, took)
			}
			code, payload, _ := strings.Cut(answer, " ")
			if len(payload)/2 > maxAnswer {
				t.Fatalf("%02x %02x %x: %d bytes", netFn, number, data, len(payload)/2)
			}
			if code != "00" && payload != "" {
				t.Fatalf("%02x %02x %x: %s with %s", netFn, number, data, code, payload)
			}
			if s.Level > level || s.Max > level {
				t.Fatalf("%02x %02x %x: a session of level %s rose to %s", netFn, number, data, level, s.Level)
			}
			if acted := len(b.power.actions()) > did; acted && level < ipmi.PrivilegeOperator {
				t.Fatalf("%02x %02x %x: a user acted on the machine", netFn, number, data)
			}
		}
		for _, request := range []string{"0a 40", "06 25", "00 01", "00 09 050000"} {
			if got := b.send(t, session(ipmi.PrivilegeOperator), request); got[:2] != "00" {
				t.Fatalf("%s afterwards: %s", request, got)
			}
		}
	})
}
