// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// Main runs the program. With the argument "init" it is the first process of
// the namespaces that it otherwise makes. It returns only when something is
// wrong or its standard input closes before it was told what to do, which is
// what happens when the caller dies half-way.
func Main(args []string) error {
	// The death of this thread, not of the process, is what children are told
	// of: keep everything on the first one, which lives to the end.
	runtime.LockOSThread()
	if len(args) > 0 && args[0] == "init" {
		return initialize()
	}
	var l Launch
	if err := readLine(os.Stdin, &l); err != nil {
		return fmt.Errorf("read launch: %w", err)
	}
	for _, g := range l.Cgroups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	if l.Namespaces {
		return launch()
	}
	if _, err := fmt.Println(os.Getpid()); err != nil {
		return err
	}
	var s Spec
	if err := readLine(os.Stdin, &s); err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	return keepRunning(s)
}

// launch starts the first process of new namespaces and waits for its end. The
// kernel ends that process, and with it all others in its namespaces, when
// this one dies. The cgroup namespace has our own cgroups as its root.
func launch() error {
	cmd := exec.Command("/proc/self/exe", "init")
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNET,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := fmt.Println(cmd.Process.Pid); err != nil {
		return err
	}
	os.Stdin.Close()
	return cmd.Wait()
}

// initialize is the life of the first process in new namespaces.
func initialize() error {
	var s Spec
	if err := readLine(os.Stdin, &s); err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	if err := furnish(s); err != nil {
		return err
	}
	return keepRunning(s)
}

// readLine reads one line of JSON and not a byte more, since what follows is
// for another process.
func readLine(r io.Reader, v any) error {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if b[0] == '\n' {
			return json.Unmarshal(line, v)
		}
		line = append(line, b[0])
	}
}
