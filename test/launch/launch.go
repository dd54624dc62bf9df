// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch builds and starts the project's programs for tests that reach
// them from outside, as clients do.
package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTime is how long a program may take to be ready.
const startTime = 60 * time.Second

var builds sync.Map // package path -> func() (string, error)

// Build builds the program in a folder of the repository and returns its path;
// each program is built once for all tests of a process.
func Build(tb testing.TB, folder string) string {
	tb.Helper()
	build, _ := builds.LoadOrStore(folder, sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "kubevirtbmc-test-")
		if err != nil {
			return "", err
		}
		target := filepath.Join(dir, filepath.Base(folder))
		cmd := exec.Command("go", "build", "-o", target, ".")
		cmd.Dir = filepath.Join(Root(), folder)
		cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", folder, err, out)
		}
		return target, nil
	}))
	path, err := build.(func() (string, error))()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// CleanUp removes what Build has made; call it from TestMain.
func CleanUp() {
	builds.Range(func(_, build any) bool {
		if path, err := build.(func() (string, error))(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		return true
	})
}

// Root returns the repository's folder.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			panic("not inside the repository")
		}
		dir = parent
	}
}

// Process is a program that runs for the length of a test.
type Process struct {
	cmd    *exec.Cmd
	stdout *Output
	stderr *Output
	done   chan struct{}
	err    error
}

// Output is what a program has written so far.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns the text so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Start starts a program with arguments and additional environment. It is
// stopped when the test ends; the test fails if it does not stop well.
func Start(tb testing.TB, env []string, path string, args ...string) *Process {
	tb.Helper()
	p := &Process{cmd: exec.Command(path, args...), stdout: &Output{}, stderr: &Output{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.Env = append(withoutOurs(os.Environ()), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	tb.Cleanup(func() {
		if err := p.Stop(); err != nil {
			tb.Errorf("%s did not stop well: %v\n%s", filepath.Base(path), err, p.stderr)
		}
	})
	return p
}

// Stop ends the program as an operator does and returns its error, if any.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return errors.New("still there 20 s after SIGTERM")
	}
}

// Kill ends the program at once, as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
	p.err = nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stdout returns what the program has written to standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the program has written to standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// WaitStdout waits until standard output has a text.
func (p *Process) WaitStdout(tb testing.TB, text string) {
	tb.Helper()
	p.wait(tb, fmt.Sprintf("%q on standard output", text), func() bool { return strings.Contains(p.Stdout(), text) })
}

// WaitReady waits until an address takes TCP connections.
func (p *Process) WaitReady(tb testing.TB, address string) {
	tb.Helper()
	p.wait(tb, "listener on "+address, func() bool {
		ctx, cancel := context.WithTimeout(tb.Context(), time.Second)
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (p *Process) wait(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(startTime); !done(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.done:
			tb.Fatalf("program ended without %s: %v\n%s%s", what, p.err, p.stdout, p.stderr)
		default:
		}
		if time.Now().After(deadline) {
			tb.Fatalf("no %s within %v\n%s%s", what, startTime, p.stdout, p.stderr)
		}
	}
}

// withoutOurs leaves out what would configure the program by accident.
func withoutOurs(env []string) []string {
	var kept []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "KUBEVIRTBMC_") && !strings.HasPrefix(kv, "BMC_") {
			kept = append(kept, kv)
		}
	}
	return kept
}
