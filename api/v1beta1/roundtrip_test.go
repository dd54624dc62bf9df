// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package v1beta1_test

import (
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"kubevirtbmc.dev/api/v1beta1"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func newFiller(t *testing.T, scheme *runtime.Scheme) *randfill.Filler {
	t.Helper()
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	return fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), serializer.NewCodecFactory(scheme))
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	scheme := newScheme(t)
	roundtrip.RoundTripExternalTypesWithoutProtobuf(t, scheme, serializer.NewCodecFactory(scheme), newFiller(t, scheme), nil)
}

func TestDeepCopy_sharesNothingWithTheOriginal(t *testing.T) {
	t.Parallel()
	filler := newFiller(t, newScheme(t))
	for range 200 {
		list := &v1beta1.VirtualMachineBMCList{}
		filler.Fill(list)
		want, cp := list.DeepCopy(), list.DeepCopy()
		if !equality.Semantic.DeepEqual(list, cp) {
			t.Fatalf("DeepCopy mismatch (-original +copy):\n%s", cmp.Diff(list, cp))
		}
		fuzzer.ValueFuzz(cp)
		if !equality.Semantic.DeepEqual(list, want) {
			t.Fatalf("the original changed with its copy (-want +got):\n%s", cmp.Diff(want, list))
		}
	}
}

func TestAddToScheme_knowsBothKinds(t *testing.T) {
	t.Parallel()
	scheme := newScheme(t)
	for _, kind := range []string{"VirtualMachineBMC", "VirtualMachineBMCList"} {
		gvk := schema.GroupVersionKind{Group: "bmc.kubevirt.io", Version: "v1beta1", Kind: kind}
		if !scheme.Recognizes(gvk) {
			t.Errorf("the scheme does not know %v", gvk)
		}
	}
	if got, want := v1beta1.Resource("virtualmachinebmcs").String(), "virtualmachinebmcs.bmc.kubevirt.io"; got != want {
		t.Errorf("Resource = %q, want %q", got, want)
	}
}
