#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The KubeVirtBMC Authors
#
# Makes $ROOTFS a Debian system with libvirt and QEMU, the ground that
# virt-launcher and virt-handler stand on, and packs it to $ROOTFS_TAR.
set -euo pipefail

"$DEBOOTSTRAP" --variant=minbase --include=ca-certificates bookworm "$ROOTFS"
# Packages must not start services.
printf '#!/bin/sh\nexit 101\n' >"$ROOTFS/usr/sbin/policy-rc.d"
chmod +x "$ROOTFS/usr/sbin/policy-rc.d"
# KubeVirt's number for the user that runs QEMU.
groupadd -R "$ROOTFS" -g 107 qemu
useradd -R "$ROOTFS" -u 107 -g 107 -d /home/qemu -s /bin/bash -m qemu

export DEBIAN_FRONTEND=noninteractive
chroot "$ROOTFS" apt-get update
chroot "$ROOTFS" apt-get install -y -q --no-install-recommends \
	libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients \
	qemu-system-x86 qemu-utils ovmf swtpm swtpm-tools xorriso passt \
	nftables iptables util-linux procps iproute2 libcap2-bin acl
rm -rf "$ROOTFS"/var/lib/apt/lists/* "$ROOTFS"/var/cache/apt/*.bin "$ROOTFS"/var/cache/apt/archives/*.deb \
	"$ROOTFS"/usr/share/doc "$ROOTFS"/usr/share/man "$ROOTFS"/usr/share/locale

# Absolute in Debian, so that a lookup through /proc/PID/root would end in
# virt-handler's own tree.
ln -sfn ../run "$ROOTFS/var/run"
ln -sfn ../run/lock "$ROOTFS/var/lock"
# libvirtd wants these, which come with packages that it only recommends.
groupadd -R "$ROOTFS" -r libvirt
groupadd -R "$ROOTFS" -r libvirt-qemu
useradd -R "$ROOTFS" -r -g libvirt-qemu -d /var/lib/libvirt -s /usr/sbin/nologin libvirt-qemu
# Drivers of the one big daemon that virtqemud, which it plays, does not have.
for driver in interface network nodedev nwfilter storage secret; do
	rm -f "$ROOTFS"/usr/lib/*/libvirt/connection-driver/libvirt_driver_$driver.so
done
mkdir -p "$ROOTFS/var/log/libvirt/qemu"

tar -C "$ROOTFS" --numeric-owner --xattrs --xattrs-include=security.capability -cf "$ROOTFS_TAR" .
