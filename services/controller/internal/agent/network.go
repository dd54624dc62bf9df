// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// NetworkProblem is why the pod of a BMC in a namespace is not attached to networks,
// the value of the annotation k8s.v1.cni.cncf.io/networks; empty: it is. Attachments
// are those of the namespace, whose users could attach pods of their own, and those
// that are allowed to all as namespace/name, or namespace/* for all of a namespace.
//
// The value is a list with commas, of name, namespace/name, or either with
// @interface; or JSON, a list of objects with name and namespace (Kubernetes Network
// Custom Resource Definition De-facto Standard, version 1.3, section 4.1).
func NetworkProblem(networks, namespace string, allowed []string) string {
	attachments, err := attachmentsOf(networks, namespace)
	if err != nil {
		return err.Error()
	}
	for _, a := range attachments {
		if a.Namespace != namespace && !slices.Contains(allowed, a.Namespace+"/"+a.Name) && !slices.Contains(allowed, a.Namespace+"/*") {
			return fmt.Sprintf("network attachment %s/%s is of another namespace and not among those that the controller allows (--agent-networks)", a.Namespace, a.Name)
		}
	}
	return ""
}

// attachment names a NetworkAttachmentDefinition.
type attachment struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func attachmentsOf(networks, namespace string) ([]attachment, error) {
	var list []attachment
	if networks = strings.TrimSpace(networks); strings.HasPrefix(networks, "[") {
		if err := json.Unmarshal([]byte(networks), &list); err != nil {
			return nil, fmt.Errorf("networks are no list of attachments: %w", err)
		}
	} else {
		for part := range strings.SplitSeq(networks, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), "@")
			a := attachment{Name: name}
			if of, in, ok := strings.Cut(name, "/"); ok {
				a = attachment{Name: in, Namespace: of}
			}
			list = append(list, a)
		}
	}
	for i := range list {
		if list[i].Namespace == "" {
			list[i].Namespace = namespace
		}
	}
	return list, nil
}
