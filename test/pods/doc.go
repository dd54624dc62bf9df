// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package pods tests the product as pods: two replicas of each service under the
// ServiceAccounts and roles that they have in production, reached by ipmitool and
// curl through the BMCs' Services, while pods die, end and are replaced. Its tests
// have the build tag integration. They use the cluster that KUBECONFIG names, of
// level kubevirt (package cluster), or bring one up.
package pods
