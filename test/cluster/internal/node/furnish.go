// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// furnish turns fresh namespaces into a node: its own view of processes,
// network devices and cgroups, and directories in which it can write without
// the host seeing any of it.
func furnish(s Spec) error {
	if err := syscall.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// Nothing that is mounted from here on may reach the host.
	if err := mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := mountCgroups(s.Controllers); err != nil {
		return err
	}
	for _, dir := range s.Overlaid {
		name := strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")
		upper, work := filepath.Join(s.Root, "upper", name), filepath.Join(s.Root, "work", name)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if err := mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range s.Private {
		source := filepath.Join(s.Root, "private", strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-"))
		if err := errors.Join(os.MkdirAll(source, 0o755), os.MkdirAll(dir, 0o755)); err != nil {
			return err
		}
		if err := mount(source, dir, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// virt-handler mounts into its own container and needs the node to see it.
	if err := mount("none", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return err
	}
	for name, value := range s.Sysctls {
		// Which of them exist depends on the kernel's modules.
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	for path, content := range s.Files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		// Remove first: the host's file may be a link to somewhere.
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mountCgroups gives the node its own view of the controllers. What it sees as
// the root is our own cgroup, so nothing outside can be touched.
func mountCgroups(controllers []string) error {
	const root = "/sys/fs/cgroup"
	if err := mount("cgroup_root", root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, c := range controllers {
		dir, options := filepath.Join(root, c), c
		if c == "systemd" {
			options = "none,name=systemd"
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}
