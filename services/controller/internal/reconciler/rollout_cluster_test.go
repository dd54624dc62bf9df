//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/services/controller/internal/agent"
)

// dedicated makes a machine with a Secret and a BMC of its own agent.
func (s *site) dedicated(name string) *v1beta1.VirtualMachineBMC {
	s.Helper()
	s.create(s.machine(name))
	s.create(s.secret(name+"-secret", map[string]string{"username": "admin", "password": "first"}))
	bmc := s.bmc(name)
	mode(v1beta1.FrontendModeDedicated)(bmc)
	s.create(bmc)
	return bmc
}

// agents are the Deployments of agents, by machine.
func (s *site) agents() map[string]*appsv1.Deployment {
	s.Helper()
	var list appsv1.DeploymentList
	if err := s.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	agents := map[string]*appsv1.Deployment{}
	for i := range list.Items {
		agents[strings.TrimSuffix(list.Items[i].Name, "-virtbmc")] = &list.Items[i]
	}
	return agents
}

// isReady tells whether a Deployment has the pod that it is to have.
func isReady(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 1
}

// makeReady gives a Deployment its pod, as the controller of Deployments does.
func (s *site) makeReady(d *appsv1.Deployment) {
	s.Helper()
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	if err := s.Status().Update(s.Context(), d); err != nil {
		s.Fatal(err)
	}
}

func imageOf(d *appsv1.Deployment) string { return d.Spec.Template.Spec.Containers[0].Image }

// wantImages waits until these machines' agents, and no others, have an image, and
// looks again a while later.
func (s *site) wantImages(tag string, count int, others ...string) []string {
	s.Helper()
	var have []string
	check := func() error {
		have = nil
		for machine, d := range s.agents() {
			if strings.HasSuffix(imageOf(d), ":"+tag) && !slices.Contains(others, machine) {
				have = append(have, machine)
			}
		}
		slices.Sort(have)
		if len(have) != count {
			return fmt.Errorf("%d agents have image %s: %v, want %d", len(have), tag, have, count)
		}
		return nil
	}
	s.eventually("agents with the image", check)
	time.Sleep(500 * time.Millisecond)
	if err := check(); err != nil {
		s.Error(err)
	}
	return have
}

// TestRollout: a new version comes to so many agents at once as may be unavailable,
// and to those that are so anyway. New BMCs, and what users change, do not wait. It
// plays the controller of Deployments, so it is for clusters without one.
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var nodes corev1.NodeList
	if err := s.List(t.Context(), &nodes); err != nil || len(nodes.Items) > 0 {
		t.Skip("this test plays the controller of Deployments, and this cluster's own would write the same status; make test-integration runs it on level api")
	}
	const most = 2
	tagged := func(tag string) func(*agent.Options) {
		return func(o *agent.Options) { o.ImageTag, o.MaxUnavailable = tag, most }
	}
	c := s.controller(s.withAgents(tagged("1")))
	var bmcs []*v1beta1.VirtualMachineBMC
	for n := range 8 {
		bmcs = append(bmcs, s.dedicated(fmt.Sprintf("vm-%d", n)))
	}
	// All are made at once, though none is available.
	s.wantImages("1", len(bmcs))
	for machine, d := range s.agents() {
		if machine != "vm-7" {
			s.makeReady(d)
		}
	}
	c.stop()

	c = s.controller(s.withAgents(tagged("2")))
	begun := s.wantImages("2", most)
	if !slices.Contains(begun, "vm-7") {
		t.Errorf("agents %v have the new image, and not the one that was unavailable", begun)
	}
	s.eventually("metric", func() error {
		got, err := c.gauge("vbmc_controller_agents_outdated", "")
		if err != nil {
			return err
		}
		return equal(got, float64(len(bmcs)-most))
	})

	// A user's change, and a new BMC.
	changed := slices.IndexFunc(bmcs, func(bmc *v1beta1.VirtualMachineBMC) bool {
		return !slices.Contains(begun, bmc.Spec.VirtualMachineRef.Name)
	})
	change(s, bmcs[changed], func(bmc *v1beta1.VirtualMachineBMC) {
		bmc.Spec.Frontend.Dedicated = &v1beta1.DedicatedFrontendSpec{NodeSelector: map[string]string{"zone": "b"}}
	})
	user := bmcs[changed].Spec.VirtualMachineRef.Name
	d := s.deployment(user, func(d *appsv1.Deployment) error { return equal(d.Spec.Template.Spec.NodeSelector["zone"], "b") })
	if got := imageOf(d); !strings.HasSuffix(got, ":2") {
		t.Errorf("what a user has changed comes with image %s", got)
	}
	bmcs = append(bmcs, s.dedicated("vm-new"))
	s.deployment("vm-new", func(d *appsv1.Deployment) error { return nil })
	// Those are unavailable too, so that no other one's turn has come.
	s.wantImages("2", most, user, "vm-new")

	// An agent that is left by its pod does not wait for others.
	broken := slices.IndexFunc(bmcs, func(bmc *v1beta1.VirtualMachineBMC) bool {
		name := bmc.Spec.VirtualMachineRef.Name
		return name != user && name != "vm-new" && !slices.Contains(begun, name)
	})
	lost := bmcs[broken].Spec.VirtualMachineRef.Name
	is := s.agents()[lost]
	is.Status.AvailableReplicas, is.Status.ReadyReplicas = 0, 0
	if err := s.Status().Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	change(s, bmcs[broken], func(bmc *v1beta1.VirtualMachineBMC) { bmc.Labels = map[string]string{"look": "again"} })
	s.wantImages("2", most+1, user, "vm-new")

	// As they become available others follow, never more at once than may be.
	for _, machine := range append(begun, user, "vm-new") {
		s.makeReady(s.agents()[machine])
	}
	s.eventually("all have the new image", func() error {
		unavailable, old := 0, 0
		for _, d := range s.agents() {
			if !isReady(d) {
				unavailable++
			}
			if !strings.HasSuffix(imageOf(d), ":2") {
				old++
			}
		}
		if unavailable > most {
			t.Errorf("%d agents are unavailable at once, of which %d may be", unavailable, most)
		}
		for _, d := range s.agents() {
			if !isReady(d) {
				s.makeReady(d)
				break
			}
		}
		if old+unavailable > 0 {
			return fmt.Errorf("%d have not, %d are unavailable", old, unavailable)
		}
		return nil
	})
}
