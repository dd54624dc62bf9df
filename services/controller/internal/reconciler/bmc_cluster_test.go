//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// TestBMC: a machine with Secret and BMC can be logged in to, in whichever order
// they come.
func TestBMC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	bmc := s.bmc("vm")
	s.create(bmc)
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonVirtualMachineNotFound)
	s.wantCondition(bmc, v1beta1.ConditionHypervisorAvailable, metav1.ConditionTrue, v1beta1.ReasonKubeVirtFound)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonVirtualMachineNotFound)
	s.wantGone(s.service("vm-virtbmc"))
	s.create(s.machine("vm"))
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonSecretNotFound)
	s.wantCondition(bmc, v1beta1.ConditionServiceReady, metav1.ConditionTrue, v1beta1.ReasonServiceReady)
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "much too long for IPMI"}))
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonSecretInvalid)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonSecretInvalid)
	change(s, s.secret("vm-secret", nil), func(secret *corev1.Secret) { secret.Data["password"] = []byte("first") })
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonFrontendAbsent)
	f := s.frontend("frontend-0", "10.0.0.10")
	s.wantReady(bmc)
	s.wantEvent(bmc, "Normal", v1beta1.ReasonServing)
	udp, tcp := *bmc.Status.Frontend.IPMI.Port, *bmc.Status.Frontend.Redfish.HTTPSPort
	s.wantRoute("vm-virtbmc-ipmi", "10.0.0.10", fmt.Sprintf("ipmi UDP %d", udp))
	s.wantRoute("vm-virtbmc-redfish", "10.0.0.10", fmt.Sprintf("redfish-https TCP %d", tcp))
	told := f.get(ipmi, "vm-bmc")
	if got := told.GetIpmi().GetUdp(); got.GetPort() != uint32(udp) || got.GetClientPort() != 623 {
		t.Errorf("IPMI is served at %v, want port %d for 623", got, udp)
	}
	if got := told.GetIpmi().GetClientAddress(); got == "" || got != bmc.Status.ClusterIP {
		t.Errorf("IPMI is served for address %q, want that of the Service, %q", got, bmc.Status.ClusterIP)
	}
	if got := f.get(redfish, "vm-bmc").GetRedfish(); got.GetHttps().GetPort() != uint32(tcp) || got.GetHttps().GetClientPort() != 443 || got.GetHttp() != nil {
		t.Errorf("Redfish is served at %v, want port %d for 443", got, tcp)
	}
	if told.GetUuid() != string(bmc.UID) || told.GetAccounts()[0].GetPassword() != "first" {
		t.Errorf("the frontend is told of UUID %s, %d accounts", told.GetUuid(), len(told.GetAccounts()))
	}

	before := f.told()
	change(s, s.secret("vm-secret", nil), func(secret *corev1.Secret) { secret.Data["password"] = []byte("second") })
	s.eventually("the new password", func() error {
		for _, protocol := range []registryv1.Protocol{ipmi, redfish} {
			if got := f.get(protocol, "vm-bmc").GetAccounts()[0].GetPassword(); got != "second" {
				return fmt.Errorf("%v has %q", protocol, got)
			}
		}
		return nil
	})
	if told := f.told() - before; told != 2 {
		t.Errorf("a new password is told %d times, want once to each frontend", told)
	}
	s.wantReady(bmc)

	s.remove(s.machine("vm"))
	s.wantCondition(bmc, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonVirtualMachineNotFound)
	s.wantCondition(bmc, v1beta1.ConditionServiceReady, metav1.ConditionFalse, v1beta1.ReasonServiceNotReady)
	s.wantGone(s.service("vm-virtbmc"))
	s.wantGone(s.slice("vm-virtbmc-ipmi"))
	s.wantGone(s.slice("vm-virtbmc-redfish"))
	s.eventually("the frontend stops", func() error {
		if got := f.has(ipmi); len(got) > 0 {
			return fmt.Errorf("serves %v", got)
		}
		return nil
	})
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) { bmc.Labels = map[string]string{"orphan": "editable"} })
	s.create(s.machine("vm"))
	s.wantReady(bmc)
	if *bmc.Status.Frontend.IPMI.Port != udp || *bmc.Status.Frontend.Redfish.HTTPSPort != tcp {
		t.Errorf("the ports are %v, %v, want %d and %d as before", bmc.Status.Frontend.IPMI, bmc.Status.Frontend.Redfish, udp, tcp)
	}
	if len(bmc.Finalizers) > 0 {
		t.Errorf("the BMC has finalizers %v", bmc.Finalizers)
	}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "vm-virtbmc"}, s.service("")); err != nil {
		t.Error(err)
	}
	s.remove(bmc)
	s.eventually("the frontend stops", func() error {
		if got := append(f.has(ipmi), f.has(redfish)...); len(got) > 0 {
			return fmt.Errorf("serves %v", got)
		}
		return nil
	})
}

// TestOneBMC_of_a_machine: of two BMCs of one machine the older has it, and the
// other gets it when that is gone.
func TestOneBMC_of_a_machine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.controller()
	f := s.frontend("frontend-0", "10.0.0.10")
	older := s.complete("vm")
	s.wantReady(older)
	younger := s.bmc("vm")
	younger.Name = "another-bmc"
	// Within a second the name would decide.
	s.eventually("a second later", func() error {
		if !metav1.Now().Truncate(time.Second).After(older.CreationTimestamp.Time) {
			return errors.New("it is the same second")
		}
		return nil
	})
	s.create(younger)
	s.wantCondition(younger, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonVirtualMachineTaken)
	s.wantEvent(younger, "Warning", v1beta1.ReasonVirtualMachineTaken)
	if younger.Status.ClusterIP != "" || younger.Status.Frontend.IPMI != nil {
		t.Errorf("the younger has address %q and %v", younger.Status.ClusterIP, younger.Status.Frontend)
	}
	s.wantReady(older)
	if got := f.has(ipmi); !slices.Equal(got, []string{"vm-bmc"}) {
		t.Errorf("the frontend serves %v", got)
	}
	s.remove(older)
	s.collect(older)
	s.wantReady(younger)
	if got := f.has(ipmi); !slices.Equal(got, []string{"another-bmc"}) {
		t.Errorf("the frontend serves %v", got)
	}
}
