// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// restartDelay keeps a daemon that ends at once from eating a core.
const restartDelay = 2 * time.Second

// keepRunning starts the daemons, starts each again when it ends, and reaps
// orphans. All starts happen on the calling thread.
func keepRunning(s Spec) error {
	if s.Path != "" {
		os.Setenv("PATH", s.Path)
	}
	running := map[int]Daemon{}
	due := map[string]time.Time{}
	start := func(d Daemon) error {
		pid, err := startDaemon(d)
		if err != nil {
			return fmt.Errorf("start %s: %w", d.Name, err)
		}
		running[pid] = d
		return nil
	}
	for _, d := range s.Daemons {
		if err := start(d); err != nil {
			return err
		}
	}
	for {
		// Reap all that have ended; orphans of containers come to us as well.
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if d, ok := running[pid]; ok {
				delete(running, pid)
				due[d.Name] = time.Now().Add(restartDelay)
				note(d, fmt.Sprintf("ended with status %d, signal %d", status.ExitStatus(), status.Signal()))
			}
		}
		for _, d := range s.Daemons {
			if t, ok := due[d.Name]; ok && time.Now().After(t) {
				delete(due, d.Name)
				if err := start(d); err != nil {
					return err
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// startDaemon starts d, which dies with us, and returns its number. Its end is
// seen by Wait4 of the caller.
func startDaemon(d Daemon) (int, error) {
	if err := os.MkdirAll(filepath.Dir(d.Log), 0o755); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	path, err := exec.LookPath(d.Args[0])
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(path, d.Args, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
}

// note appends a line of ours to a daemon's log.
func note(d Daemon, text string) {
	if f, err := os.OpenFile(d.Log, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		fmt.Fprintf(f, "== %s %s %s\n", time.Now().Format(time.RFC3339), d.Name, text)
		f.Close()
	}
}
