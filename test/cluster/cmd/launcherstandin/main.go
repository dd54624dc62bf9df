// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command launcherstandin plays all programs of KubeVirt's virt-launcher image
// at level kubevirt, acting by the name that it is called by. The machines
// themselves are played by kubevirt/cmd/nodestandin. It is apart from that one
// since KubeVirt gives some of these containers 40 MiB and less.
package main

import (
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "sh":
		// An init container that examines the processor.
	case "cp":
		// An init container that copies a program into a shared directory.
		if err := copyFile(os.Args); err != nil {
			log.Fatal(err)
		}
	default:
		if slices.Contains(os.Args, "--no-op") {
			return // only asked whether the image is there
		}
		wait(filepath.Base(os.Args[0]) == "virt-launcher-monitor")
	}
}

// terminatingFile tells nodestandin, which sees our files, that the pod is
// being deleted.
const terminatingFile = "/tmp/terminating"

// wait waits to be ended. Like virt-launcher, the main process answers a
// deletion of its pod by having the guest shut down, and stays until that is
// over: nodestandin then sends SIGUSR1.
func wait(main bool) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
	for s := range signals {
		if s != syscall.SIGTERM || !main {
			return
		}
		if err := os.WriteFile(terminatingFile, nil, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// copyFile copies the last argument but one to the last, which may be a
// directory.
func copyFile(args []string) error {
	if len(args) < 3 {
		return errors.New("cp: want two names")
	}
	name, to := args[len(args)-2], args[len(args)-1]
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	if s, err := os.Stat(to); err == nil && s.IsDir() {
		to = filepath.Join(to, filepath.Base(name))
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
