// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"io"
	"strings"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
)

// readAll reads a connection until it ends and tells how.
func readAll(conn io.Reader) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	}()
	return ended
}

func (b *bed) endsWith(what string, ended <-chan error) {
	b.Helper()
	select {
	case err := <-ended:
		if err != nil {
			b.Errorf("%s: read ended with %v, want EOF", what, err)
		}
	case <-time.After(b.Timeout):
		b.Errorf("%s: still open", what)
	}
}

func console(b *bed) {
	ref, _ := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual})
	first, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.ok("open console", err)
	firstEnded := readAll(first)
	second, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.ok("open console again", err)
	b.endsWith("the connection that was replaced", firstEnded)
	if b.Guest.Echoes {
		b.echo(second)
	}
	secondEnded := readAll(second)
	b.ok("stop", b.Hypervisor.Stop(b.Context(), ref, grace(0)))
	b.endsWith("the connection of a stopped instance", secondEnded)
	if err := first.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
	if err := second.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
}

// echo types and expects to read it.
func (b *bed) echo(conn io.ReadWriter) {
	b.Helper()
	const typed = "echo-7f3a"
	if _, err := conn.Write([]byte(typed)); err != nil {
		b.Fatalf("write to the console: %v", err)
	}
	found := make(chan error, 1)
	go func() {
		var seen strings.Builder
		buffer := make([]byte, 1024)
		for !strings.Contains(seen.String(), typed) {
			n, err := conn.Read(buffer)
			if err != nil {
				found <- err
				return
			}
			seen.Write(buffer[:n])
		}
		found <- nil
	}()
	select {
	case err := <-found:
		if err != nil {
			b.Fatalf("read from the console: %v", err)
		}
	case <-time.After(b.Timeout):
		b.Fatalf("the console does not echo")
	}
}

func noConsole(b *bed) {
	ref, m := b.started(Spec{RunStrategy: hypervisor.RunStrategyManual, NoSerialConsole: true})
	if m.Hardware.SerialConsole {
		b.Errorf("the machine says that it has a serial console")
	}
	_, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	b.is("open console", err, hypervisor.ErrUnsupported)
}
