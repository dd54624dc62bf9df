// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt puts media into the CD-ROM trays of KubeVirt's machines, with
// volumes that CDI imports.
//
// A medium is a DataVolume that the machine owns: its labels and annotations say
// whose it is, which tray it is for and where its image came from. The machine's
// template names it as the tray's volume. There is no other record, so what a tray
// has is read back from the cluster after a restart, and two replicas see the
// same. A DataVolume that no tray names is a leftover of a crash or of an eject,
// and is deleted.
//
// The volume is named in the template at once, before it is imported, so that a
// machine that is powered on meanwhile waits for its medium: virt-controller
// schedules no instance before the volumes of its template are there, and
// virt-handler starts none before those that can be hot-plugged are (v1.7.0,
// pkg/virt-handler/vm.go, hotplugVolumesReady).
package kubevirt
