// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command manifests prints what it takes to install KubeVirt, made by
// KubeVirt's own generators, one JSON object a line: no YAML of KubeVirt's is kept in this repository.
//
//	-part crds      the custom resource definitions that the operator installs,
//	                and that of the KubeVirt resource
//	-part operator  namespace, KubeVirt definition, rights and the operator
//	-part kubevirt  the KubeVirt resource
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kvv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

// namespace is where KubeVirt is installed.
const namespace = "kubevirt"

func main() {
	part := flag.String("part", "", "crds, operator or kubevirt")
	registry := flag.String("registry", "", "prefix of the names of KubeVirt's images")
	version := flag.String("version", "", "tag of KubeVirt's images")
	gates := flag.String("feature-gates", "", "feature gates to switch on, separated by commas")
	binding := flag.String("pod-network", "", "how machines that name no network are bound to the pod's, bridge or masquerade; empty: KubeVirt's default")
	flag.Parse()
	if err := run(*part, *registry, *version, *gates, *binding); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

// run prints one part, or nothing if it fails.
func run(part, registry, version, gates, binding string) error {
	var objects []any
	var err error
	switch part {
	case "crds":
		objects, err = definitions()
	case "operator":
		objects, err = operator(registry, version)
	case "kubevirt":
		objects = []any{resource(gates, binding)}
	default:
		err = fmt.Errorf("unknown part %q", part)
	}
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, o := range objects {
		if err := writeObject(&out, o); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(out.Bytes())
	return err
}

// writeObject writes an object as a line of JSON, without a status, which is
// not for us to say.
func writeObject(out *bytes.Buffer, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	delete(fields, "status")
	return json.NewEncoder(out).Encode(fields)
}

// definitions returns all of KubeVirt's custom resource definitions.
func definitions() ([]any, error) {
	generators := []func() (*extv1.CustomResourceDefinition, error){
		components.NewKubeVirtCrd,
		components.NewVirtualMachineInstanceCrd, components.NewPresetCrd, components.NewReplicaSetCrd,
		components.NewVirtualMachineCrd, components.NewVirtualMachineInstanceMigrationCrd,
		components.NewVirtualMachineSnapshotCrd, components.NewVirtualMachineSnapshotContentCrd,
		components.NewVirtualMachineRestoreCrd, components.NewVirtualMachineInstancetypeCrd,
		components.NewVirtualMachineClusterInstancetypeCrd, components.NewVirtualMachinePoolCrd,
		components.NewMigrationPolicyCrd, components.NewVirtualMachinePreferenceCrd,
		components.NewVirtualMachineClusterPreferenceCrd, components.NewVirtualMachineExportCrd,
		components.NewVirtualMachineCloneCrd,
	}
	var objects []any
	for _, g := range append(generators, moreDefinitions...) {
		crd, err := g()
		if err != nil {
			return nil, err
		}
		objects = append(objects, crd)
	}
	return objects, nil
}

// operator returns what the operator consists of, in the order to apply it.
func operator(registry, version string) ([]any, error) {
	crd, err := components.NewKubeVirtCrd()
	if err != nil {
		return nil, err
	}
	objects := []any{
		corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"kubevirt.io": "", "pod-security.kubernetes.io/enforce": "privileged"}},
		},
		crd,
		components.NewKubeVirtPriorityClassCR(),
	}
	objects = append(objects, rbac.GetAllOperator(namespace)...)
	d := newOperatorDeployment(registry, version)
	one := int32(1)
	d.Spec.Replicas = &one
	return append(objects, d), nil
}

// resource returns the KubeVirt resource: one replica of everything, and
// emulation, since no hardware virtualization is there.
func resource(gates, binding string) kvv1.KubeVirt {
	one := uint8(1)
	list := []string{}
	if gates != "" {
		list = strings.Split(gates, ",")
	}
	return kvv1.KubeVirt{
		TypeMeta:   metav1.TypeMeta{APIVersion: kvv1.GroupVersion.String(), Kind: "KubeVirt"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"},
		Spec: kvv1.KubeVirtSpec{
			ImagePullPolicy: corev1.PullIfNotPresent,
			Infra:           &kvv1.ComponentConfig{Replicas: &one},
			Configuration: kvv1.KubeVirtConfiguration{
				ImagePullPolicy:        corev1.PullIfNotPresent,
				DeveloperConfiguration: &kvv1.DeveloperConfiguration{UseEmulation: true, FeatureGates: list},
				NetworkConfiguration:   &kvv1.NetworkConfiguration{NetworkInterface: binding},
			},
		},
	}
}
