// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command nodestandin plays all programs of KubeVirt's virt-handler and
// virt-launcher images, under the real virt-operator, virt-api and
// virt-controller. It acts by the name that it is called by.
//
// As virt-handler it moves VirtualMachineInstances through their phases and
// answers what virt-api passes on: pause, unpause, reset, softreboot,
// guestosinfo, userlist, filesystemlist and the serial console. The machines
// exist in its memory only; see guest.go for how they behave. As virt-launcher
// it waits for the machine to end, so that the pod ends when it does.
//
// KubeVirt's own rights and admission policies apply to it, and hold it to
// what the true virt-handler may do.
package main

import (
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	switch filepath.Base(os.Args[0]) {
	case "sh":
		// An init container that examines the processor.
	case "cp":
		// An init container that copies a program into a shared directory.
		if err := copyFile(os.Args); err != nil {
			log.Fatal(err)
		}
	case "virt-handler":
		if err := runHandler(); err != nil {
			log.Fatal(err)
		}
	default:
		if slices.Contains(os.Args, "--no-op") {
			return // only asked whether the image is there
		}
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
		<-end
	}
}

// copyFile copies the last argument but one to the last, which may be a
// directory.
func copyFile(args []string) error {
	from, to := args[len(args)-2], args[len(args)-1]
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if s, err := os.Stat(to); err == nil && s.IsDir() {
		to = filepath.Join(to, filepath.Base(from))
	}
	return os.WriteFile(to, b, 0o755)
}
