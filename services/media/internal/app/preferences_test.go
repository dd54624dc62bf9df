// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/media/internal/kubevirt"
)

func TestPreferences(t *testing.T) {
	t.Parallel()
	media := func(v v1beta1.VirtualMediaSpec) *v1beta1.VirtualMachineBMC {
		return &v1beta1.VirtualMachineBMC{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "bmc"},
			Spec:       v1beta1.VirtualMachineBMCSpec{StorageClassName: new("old"), Redfish: &v1beta1.RedfishSpec{VirtualMedia: &v}},
		}
	}
	for name, test := range map[string]struct {
		bmc  *v1beta1.VirtualMachineBMC
		want kubevirt.Preferences
	}{
		"no BMC":        {nil, kubevirt.Preferences{}},
		"none":          {&v1beta1.VirtualMachineBMC{}, kubevirt.Preferences{}},
		"earlier field": {media(v1beta1.VirtualMediaSpec{}), kubevirt.Preferences{Class: "old"}},
		"storage": {
			media(v1beta1.VirtualMediaSpec{Storage: &v1beta1.VirtualMediaStorageSpec{
				StorageClassName: new("new"), VolumeMode: new(v1beta1.VolumeModeBlock),
			}}),
			kubevirt.Preferences{Class: "new", VolumeMode: "Block"},
		},
		"private CA": {
			media(v1beta1.VirtualMediaSpec{TLS: &v1beta1.VirtualMediaTLSSpec{CABundleConfigMapRef: &v1beta1.LocalObjectReference{Name: "ca"}}}),
			kubevirt.Preferences{Class: "old", Trust: kubevirt.Trust{Namespace: "metal", ConfigMap: "ca"}},
		},
		"any certificate": {
			media(v1beta1.VirtualMediaSpec{TLS: &v1beta1.VirtualMediaTLSSpec{InsecureSkipVerify: new(true)}}),
			kubevirt.Preferences{Class: "old", Trust: kubevirt.Trust{InsecureSkipVerify: true}},
		},
	} {
		if diff := cmp.Diff(test.want, preferences(test.bmc)); diff != "" {
			t.Errorf("%s: preferences mismatch (-want +got)\n%s", name, diff)
		}
	}
}
