// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package crd tests the CustomResourceDefinition of package api/crds on the API
// server of KUBECONFIG: what it accepts, keeps, refuses, fills in and prints.
// Its tests have the build tag integration.
package crd
