// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// BenchmarkIdleBMC reports what a BMC costs that nobody talks to: bytes of heap
// and stack, resident memory, and goroutines.
func BenchmarkIdleBMC(b *testing.B) {
	s := newServer(b, &fakeBackend{}, nil)
	heap, stack := memory()
	resident, goroutines := residentBytes(), runtime.NumGoroutine()
	for i := range b.N {
		applyBMC(b, s, fmt.Sprintf("vm-%d", i))
	}
	b.StopTimer()
	heapAfter, stackAfter := memory()
	n := float64(b.N)
	b.ReportMetric((float64(heapAfter)-float64(heap))/n, "heap-B/BMC")
	b.ReportMetric((float64(stackAfter)-float64(stack))/n, "stack-B/BMC")
	b.ReportMetric(float64(residentBytes()-resident)/n, "RSS-B/BMC")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/BMC")
}

func memory() (heap, stack uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.StackInuse
}

// residentBytes is the resident set; 0 where /proc does not tell.
func residentBytes() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, _ := strconv.Atoi(strings.Fields(rest)[0])
			return kilobytes << 10
		}
	}
	return 0
}

// BenchmarkSession is what ipmitool does for one power status, over loopback:
// handshake, privilege, status, close. The console's work is in it.
func BenchmarkSession(b *testing.B) {
	s := newServer(b, &fakeBackend{}, nil)
	address := applyBMC(b, s, "vm-a")
	conn, err := net.Dial("udp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	buffer := make([]byte, 1024)
	for b.Loop() {
		c := newConsole(b, func(d []byte) []byte {
			if _, err := conn.Write(d); err != nil {
				b.Fatal(err)
			}
			n, err := conn.Read(buffer)
			if err != nil {
				b.Fatal(err)
			}
			return buffer[:n]
		})
		c.mustLogin()
		c.command(ipmi.NetFnChassis, 0x01)
		id := c.handshake.BMCID
		c.command(ipmi.NetFnApp, 0x3C, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
}

// BenchmarkCommand is the packet path of one command that needs no service,
// without sockets.
func BenchmarkCommand(b *testing.B) {
	e, _ := newTestEndpoint(b, &fakeBackend{}, nil)
	c := onEndpoint(b, e, source)
	c.mustLogin()
	b.ReportAllocs()
	for b.Loop() {
		c.command(ipmi.NetFnApp, 0x01)
	}
}
