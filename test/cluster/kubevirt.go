// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kubevirtbmc.dev/test/cluster/guest"
	"kubevirtbmc.dev/test/cluster/ociarchive"
)

// Names of images. No registry of that name exists: they are loaded into the
// node and never pulled.
const (
	registry   = "kubevirtbmc.test"
	pauseImage = registry + "/pause:1"
	// GuestDiskImage and GuestCDImage are container disks of level real, a disk
	// and a CD that BIOS boots, whose program prints GuestDiskText or GuestCDText on the serial
	// port. At level kubevirt any name will do, since no disk is read.
	GuestDiskImage = registry + "/guest-disk:1"
	GuestCDImage   = registry + "/guest-cd:1"
	// GuestDiskText and GuestCDText are what the guests print.
	GuestDiskText = "GUEST BOOTED FROM DISK\r\n"
	GuestCDText   = "GUEST BOOTED FROM CD\r\n"
)

// LoadImage loads an OCI archive into all nodes, so that pods can use the image
// with pull policy IfNotPresent or Never. It is an error if there is no node.
func (c *Cluster) LoadImage(ctx context.Context, archive io.Reader) error {
	return c.importImage(ctx, archive)
}

// importImage hands an archive to the containerd of each node, all at the same
// time.
func (c *Cluster) importImage(ctx context.Context, archive io.Reader, flags ...string) error {
	if len(c.NodePIDs) == 0 {
		return errors.New("load image: the cluster has no node of ours")
	}
	args := append([]string{"ctr", "-n", "k8s.io", "images", "import"}, append(flags, "-")...)
	ended := make(chan error)
	var inputs []io.Writer
	for _, pid := range c.NodePIDs {
		r, w := io.Pipe()
		inputs = append(inputs, w)
		go func() {
			cmd := inNode(ctx, pid, args...)
			cmd.Stdin = r
			_, err := output(cmd)
			_, _ = io.Copy(io.Discard, r) // what one leaves unread is for the others
			ended <- err
		}()
	}
	_, err := io.Copy(io.MultiWriter(inputs...), archive)
	for _, w := range inputs {
		w.(*io.PipeWriter).CloseWithError(err)
	}
	errs := []error{err}
	for range inputs {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// AddImage makes an image and loads it into all nodes. It has a name by its
// digest as well, as one from a registry has: the pod that a machine migrates to
// asks for the container disks of the one that it comes from by that.
func (c *Cluster) AddImage(ctx context.Context, img ociarchive.Image) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(ociarchive.Write(w, img)) }()
	name, _, _ := strings.Cut(img.Name, ":")
	err := c.importImage(ctx, r, "--digests", "--base-name", name)
	r.CloseWithError(io.ErrClosedPipe) // lets the writer end if ctr did early
	if err != nil {
		return fmt.Errorf("add image %s: %w", img.Name, err)
	}
	return nil
}

// loadImages makes and loads all images of a level.
func (c *Cluster) loadImages(ctx context.Context, o Options, bin binaries) error {
	images, err := images(ctx, o, bin)
	if err != nil {
		return err
	}
	for _, img := range images {
		if err := c.AddImage(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

// images lists the images of a level.
func images(ctx context.Context, o Options, bin binaries) ([]ociarchive.Image, error) {
	kubeVirt := func(name string) string { return registry + "/kubevirt/" + name + ":" + o.KubeVirtVersion }
	program := func(name, path string) ociarchive.File {
		return ociarchive.File{Path: path, Source: bin.path(name)}
	}
	tmp := ociarchive.File{Path: "/tmp", Dir: true, Mode: 0o1777}
	list := []ociarchive.Image{{Name: pauseImage, User: "65535", Entrypoint: []string{"/pause"}, Files: []ociarchive.File{program("pause", "/pause")}}}
	// These run with runAsNonRoot, which wants a number.
	passwd := ociarchive.File{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0::/:/\nkubevirt:x:1001:1001::/:/\n")}
	for _, name := range []string{"virt-operator", "virt-api", "virt-controller"} {
		list = append(list, ociarchive.Image{
			Name: kubeVirt(name), User: "1001", Entrypoint: []string{"/usr/bin/" + name},
			Files: []ociarchive.File{tmp, passwd, program(name, "/usr/bin/"+name)},
		})
	}
	if o.Level == LevelKubeVirt {
		// One program plays all that virt-launcher's image is asked to run; it
		// acts by the name that it is called by.
		launcher := []ociarchive.File{tmp, program("launcherstandin", "/usr/bin/launcherstandin")}
		for _, path := range []string{"/bin/sh", "/usr/bin/cp", "/usr/bin/virt-launcher-monitor", "/usr/bin/virt-tail", "/usr/bin/container-disk"} {
			launcher = append(launcher, ociarchive.File{Path: path, Link: "/usr/bin/launcherstandin"})
		}
		return append(list,
			ociarchive.Image{Name: kubeVirt("virt-handler"), User: "0", Entrypoint: []string{"/usr/bin/virt-handler"}, Files: []ociarchive.File{tmp, program("nodestandin", "/usr/bin/virt-handler")}},
			ociarchive.Image{Name: kubeVirt("virt-launcher"), User: "0", Entrypoint: []string{"/usr/bin/virt-launcher-monitor"}, Files: launcher},
			// Pods that name the guests' images have to find them.
			ociarchive.Image{Name: GuestDiskImage, User: "107", Entrypoint: []string{"/usr/bin/container-disk"}, Files: launcher},
			ociarchive.Image{Name: GuestCDImage, User: "107", Entrypoint: []string{"/usr/bin/container-disk"}, Files: launcher},
		), nil
	}
	source, err := kubeVirtSource(ctx, o.KubeVirtVersion)
	if err != nil {
		return nil, err
	}
	shipped := func(name, path string, mode int64) ociarchive.File {
		return ociarchive.File{Path: path, Source: filepath.Join(source, "cmd/virt-launcher", name), Mode: mode}
	}
	monitor := program("virt-launcher-monitor", "/usr/bin/virt-launcher-monitor")
	monitor.NetBind = true // virt-launcher runs as user 107 with that capability alone
	list = append(list,
		ociarchive.Image{Name: kubeVirt("virt-launcher"), User: "0", Entrypoint: []string{"/usr/bin/virt-launcher"}, Base: bin.path("rootfs.tar"), Files: []ociarchive.File{
			program("virt-launcher", "/usr/bin/virt-launcher"), monitor,
			program("virt-tail", "/usr/bin/virt-tail"), program("container-disk", "/usr/bin/container-disk"),
			{Path: "/usr/sbin/virtqemud", Content: []byte(virtqemud)},
			{Path: "/etc/libvirt/virtlogd.conf", Mode: 0o644},
			shipped("node-labeller/node-labeller.sh", "/usr/bin/node-labeller.sh", 0o755),
			shipped("virtqemud.conf", "/etc/libvirt/virtqemud.conf", 0o644),
			shipped("qemu.conf", "/etc/libvirt/qemu.conf", 0o644),
		}},
		ociarchive.Image{Name: kubeVirt("virt-handler"), User: "0", Entrypoint: []string{"/usr/bin/virt-handler"}, Base: bin.path("rootfs.tar"), Files: []ociarchive.File{
			program("virt-handler", "/usr/bin/virt-handler"), program("virt-chroot", "/usr/bin/virt-chroot"),
		}},
	)
	disk, err := guest.Disk(GuestDiskText)
	if err != nil {
		return nil, err
	}
	cd, err := guest.CD(GuestCDText)
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{GuestDiskImage: disk, GuestCDImage: cd} {
		list = append(list, ociarchive.Image{Name: name, User: "107", Entrypoint: []string{"/usr/bin/container-disk"}, Files: []ociarchive.File{
			program("container-disk", "/usr/bin/container-disk"),
			{Path: "/disk/disk.img", Content: content, Mode: 0o644},
		}})
	}
	return list, nil
}

// virtqemud plays libvirt's daemon for QEMU, which virt-launcher starts, on
// Debian 12, whose libvirt has one daemon for everything.
const virtqemud = `#!/bin/bash
mkdir -p /var/run/libvirt /var/log/libvirt/qemu /var/lib/libvirt/qemu /var/cache/libvirt/qemu 2>/dev/null
ln -sfn libvirt-sock /var/run/libvirt/virtqemud-sock 2>/dev/null
exec /usr/sbin/libvirtd "$@"
`

// installKubeVirt installs KubeVirt by its operator and waits until it says
// that all is deployed. Most of that time are initial delays of its probes.
func (c *Cluster) installKubeVirt(ctx context.Context, o Options, bin binaries, log *progress) error {
	var binding string
	if o.Level == LevelReal {
		// A bridge takes a dummy link, which the kernels of sandboxes often have not.
		binding = "masquerade"
	}
	manifests := func(part string) ([]byte, error) {
		s, err := output(command(ctx, bin.path("manifests"), "-pod-network", binding, "-part", part, "-registry", registry+"/kubevirt", "-version", o.KubeVirtVersion, "-feature-gates", strings.Join(o.FeatureGates, ",")))
		return []byte(s), err
	}
	operator, err := manifests("operator")
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, operator); err != nil {
		return err
	}
	if err := c.waitEstablished(ctx, "crd/kubevirts.kubevirt.io"); err != nil {
		return err
	}
	resource, err := manifests("kubevirt")
	if err != nil {
		return err
	}
	if err := poll(ctx, "KubeVirt's resource to be accepted", time.Minute, 500*time.Millisecond, func(ctx context.Context) error {
		return c.Apply(ctx, resource)
	}); err != nil {
		return err
	}
	log.step("KubeVirt's operator is at work")
	return poll(ctx, "KubeVirt", 8*time.Minute, time.Second, func(ctx context.Context) error {
		phase, err := c.output(ctx, "get", "kubevirt", "-n", "kubevirt", "kubevirt", "-o", "jsonpath={.status.phase}")
		if err != nil {
			return err
		}
		if phase == "Deployed" {
			log.step("KubeVirt %s is deployed", o.KubeVirtVersion)
			return nil
		}
		pods, _ := c.output(ctx, "get", "pods", "-n", "kubevirt", "--no-headers")
		return fmt.Errorf("KubeVirt's phase is %q, its pods are:\n%s", phase, pods)
	})
}

// rootfs returns the path of a tar file with a Debian system that holds
// libvirt and QEMU, the ground that virt-launcher and virt-handler stand on.
func (b *builder) rootfs(ctx context.Context) (string, error) {
	return b.cached(rootfsKey(), "rootfs.tar", func(tmp string) error {
		debootstrap, err := lookPath("debootstrap")
		if err != nil {
			return fmt.Errorf("%w: install the Debian packages of packages.txt", err)
		}
		dir, err := os.MkdirTemp(filepath.Dir(tmp), "rootfs-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		// Namespaces of its own: what it mounts and starts ends with it.
		cmd := command(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "nice", "-n", "19", "bash", "-c", rootfsRecipe)
		cmd.Env = append(os.Environ(), "ROOTFS="+dir, "ROOTFS_TAR="+tmp, "DEBOOTSTRAP="+debootstrap, "PATH="+os.Getenv("PATH")+":"+sbin)
		_, err = output(cmd)
		return err
	})
}
