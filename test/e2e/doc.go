// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the product on a cluster whose VMs run, with real clients,
// and asks KubeVirt itself at each step whether it agrees. Its tests have the
// build tag e2e. They use the cluster that KUBECONFIG names, or bring one of
// level real up (see package cluster); LEVEL=kubevirt makes do with guests that
// are pretended. KUBEVIRTBMC is the program to test, which is built if it is
// not set.
package e2e
