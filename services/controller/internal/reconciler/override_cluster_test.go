//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/reconciler"
)

// remember writes what the services keep of a machine.
func (s *site) remember(bmc *v1beta1.VirtualMachineBMC, machineUID, state string) {
	s.Helper()
	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Annotations = map[string]string{v1beta1.AnnotationState: state, "bmc.kubevirt.io/state-machine-uid": machineUID}
	})
}

func (s *site) wantOverride(bmc *v1beta1.VirtualMachineBMC, want *v1beta1.BootOverrideStatus) {
	s.Helper()
	s.eventually("status.bootOverride", func() error {
		if err := s.Get(s.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		if diff := cmp.Diff(want, bmc.Status.BootOverride); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// webhooks are admission webhooks that have the problems that they are told.
type webhooks struct {
	problem  atomic.Value
	problems chan string
}

func (w *webhooks) Problem() (string, bool) { return w.problem.Load().(string), true }

func (w *webhooks) Lead(ctx context.Context, changed func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case problem := <-w.problems:
			w.problem.Store(problem)
			changed()
		}
	}
}

// TestBootOverride: the status shows what the services remember of the machine
// that there is, and whether overrides take effect.
func TestBootOverride(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	bmc := s.bmc("vm")
	webhooks := &webhooks{problems: make(chan string)}
	webhooks.problem.Store("no certificate")
	s.controller(func(config *reconciler.Config) {
		config.Defaults.BootOverride = v1beta1.BootOverrideStrategyAdmission
		config.Webhooks = webhooks
	})
	s.frontend("frontend-0", "10.0.0.10")
	machine := s.machine("vm")
	s.create(machine)
	s.create(s.secret("vm-secret", map[string]string{"username": "admin", "password": "first"}))
	s.create(bmc)
	s.wantReady(bmc)
	s.wantCondition(bmc, v1beta1.ConditionBootOverrideAvailable, metav1.ConditionFalse, v1beta1.ReasonWebhookUnavailable)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonWebhookUnavailable)
	webhooks.problems <- ""
	s.wantCondition(bmc, v1beta1.ConditionBootOverrideAvailable, metav1.ConditionTrue, v1beta1.ReasonAdmission)

	uid := machine.GetUID()
	const armed = `{"boot":{"id":"one","target":"PXE","persistence":"Once","mode":"UEFI","stage":"Armed","strategy":"Admission","instanceUID":"i"}}`
	one := &v1beta1.BootOverrideStatus{
		Mode: v1beta1.BootOverrideModeOneshot, VMUID: uid, VMIUID: "i", ID: "one", Strategy: v1beta1.BootOverrideStrategyAdmission,
		Target: v1beta1.BootTargetPXE, Firmware: v1beta1.BootFirmwareUEFI,
	}
	s.remember(bmc, string(uid), armed)
	s.wantOverride(bmc, one)
	s.remember(bmc, string(uid), `{"boot":{"id":"two","target":"HDD","persistence":"Continuous","mode":"UEFI","stage":"Armed","ownMode":"BIOS",`+
		`"own":{"root":2,"iso":0,"interface/root":1},"kinds":{"root":"disk","iso":"cdrom","interface/root":"interface"}}}`)
	s.wantOverride(bmc, &v1beta1.BootOverrideStatus{
		Mode: v1beta1.BootOverrideModePersistent, VMUID: uid, ID: "two", Strategy: v1beta1.BootOverrideStrategyTemplate,
		Target: v1beta1.BootTargetHDD, Firmware: v1beta1.BootFirmwareUEFI, OriginalFirmware: v1beta1.BootFirmwareLegacy,
		BootOrders: map[string]int64{"disk:root": 2, "cdrom:iso": 0, "interface:root": 1},
	})
	s.remember(bmc, string(uid), `{"boot":{"id":"three","target":"None","persistence":"Disabled","stage":"Idle"},"bypassed":{"id":"lost","time":"2026-12-02T09:00:00Z"}}`)
	s.wantOverride(bmc, nil)
	s.wantCondition(bmc, v1beta1.ConditionBootOverrideAvailable, metav1.ConditionFalse, v1beta1.ReasonWebhookBypassed)
	s.wantEvent(bmc, "Warning", v1beta1.ReasonWebhookBypassed)
	s.wantReady(bmc)

	// One of a machine that is not this one counts for nothing, nor does one that
	// can't be read.
	s.remember(bmc, "another", armed)
	s.wantCondition(bmc, v1beta1.ConditionBootOverrideAvailable, metav1.ConditionTrue, v1beta1.ReasonAdmission)
	s.wantOverride(bmc, nil)
	s.remember(bmc, string(uid), armed)
	s.wantOverride(bmc, one)
	s.remember(bmc, string(uid), `{"boot":`)
	s.wantOverride(bmc, nil)

	// Written by hand, it arms nothing and does not stay.
	s.remember(bmc, string(uid), armed)
	s.eventually("an override by hand", func() error {
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(bmc), bmc); err != nil {
			return err
		}
		bmc.Status.BootOverride = &v1beta1.BootOverrideStatus{Mode: v1beta1.BootOverrideModePersistent, BootOrders: map[string]int64{"disk:root": 1}}
		return s.Status().Update(t.Context(), bmc)
	})
	s.wantOverride(bmc, one)

	// The machine is made anew.
	s.remove(machine)
	s.wantGone(machine)
	again := s.machine("vm")
	s.create(again)
	s.wantOverride(bmc, nil)
	s.wantReady(bmc)

	change(s, bmc, func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.BootOverride = &v1beta1.BootOverrideSpec{Strategy: v1beta1.BootOverrideStrategyTemplate}
	})
	webhooks.problems <- "expired"
	s.wantCondition(bmc, v1beta1.ConditionBootOverrideAvailable, metav1.ConditionTrue, v1beta1.ReasonTemplate)
}
