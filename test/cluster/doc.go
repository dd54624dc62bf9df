// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Package cluster brings up a real Kubernetes with a real KubeVirt on one
// Linux machine, built from pinned Go modules and Debian packages alone: no
// container engine, no registry and no hardware virtualization are needed.
//
// There are three levels, each of which holds all of the one before:
//
//	api       etcd and kube-apiserver on loopback, with KubeVirt's real CRDs.
//	kubevirt  two nodes in namespaces of their own: control plane, containerd,
//	          kubelet and kube-proxy, with the real virt-operator, virt-api and
//	          virt-controller. What runs on a node (virt-handler, virt-launcher)
//	          is a stand-in, kubevirt/cmd/nodestandin.
//	real      the real virt-handler and virt-launcher; VMs run in QEMU without
//	          hardware virtualization.
//
// [Up] starts a cluster and [Down] removes it; whatever happens in between, a
// crash of Up included, Down leaves nothing behind, because every process is
// a descendant of one that is recorded before it is let go, and mounts,
// network devices and routes exist only as long as those processes do.
//
// Tests call [Open], which uses the cluster that KUBECONFIG names, if it has
// KubeVirt, and otherwise brings one up.
package cluster
