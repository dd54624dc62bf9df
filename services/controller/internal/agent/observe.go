// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// waiting tells why a Deployment has no pod that serves; empty when it has one.
func waiting(d *appsv1.Deployment) string {
	if d.Status.ReadyReplicas > 0 {
		return ""
	}
	why := ""
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return fmt.Sprintf("Deployment %s makes no pod: %s", d.Name, shorten(c.Message))
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse:
			why = shorten(c.Message)
		}
	}
	if why != "" {
		return fmt.Sprintf("Deployment %s does not get on: %s", d.Name, why)
	}
	return fmt.Sprintf("Deployment %s has no pod that is ready yet", d.Name)
}
