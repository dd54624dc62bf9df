// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package testport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

func TestFree_givesNoPortTwice(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				port := Free(t)
				mu.Lock()
				if seen[port] {
					t.Errorf("port %d was given twice", port)
				}
				seen[port] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestFreeRow_isFreeForBothProtocols(t *testing.T) {
	t.Parallel()
	const n = blockSize + 50
	from := FreeRow(t, n)
	for port := from; port < from+n; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		u, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = u.Close() })
	}
}

// Processes beside each other, more than there are processors, share no port.
func TestFree_amongProcesses(t *testing.T) {
	const processes, each = 12, 200
	if os.Getenv("TESTPORT_CHILD") != "" {
		for range each {
			_, _ = fmt.Fprintln(os.Stdout, "port", Free(t))
		}
		// The parent closes standard input when it has all processes' ports.
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	t.Parallel()
	owner := map[string]int{}
	for i := range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFree_amongProcesses$")
		cmd.Env = append(os.Environ(), "TESTPORT_CHILD=1")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = stdin.Close()
			_ = cmd.Wait()
		})
		lines := bufio.NewScanner(stdout)
		for range each {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), "port ") {
				t.Fatalf("process %d: %q", i, lines.Text())
			}
			if other, ok := owner[lines.Text()]; ok {
				t.Errorf("processes %d and %d both have %s", other, i, lines.Text())
			}
			owner[lines.Text()] = i
		}
	}
}

func TestHostFor(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"https://127.0.0.1:6443", "https://127.0.0.1/prefix"} {
		if got := HostFor(t, server); got != "127.0.0.1" {
			t.Errorf("HostFor(%s) = %s", server, got)
		}
	}
}
