// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build kubevirt16

package main

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

// moreDefinitions are those that came after this version.
var moreDefinitions []func() (*extv1.CustomResourceDefinition, error)

// newOperatorDeployment returns the operator's Deployment, with the default
// name of every image.
func newOperatorDeployment(registry, version string) *appsv1.Deployment {
	return components.NewOperatorDeployment(namespace, registry, "", version, "2", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", corev1.PullIfNotPresent)
}
