// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	kvv1 "kubevirt.io/api/core/v1"
)

func TestMachine_moves_with_what_it_has_in_memory(t *testing.T) {
	vmi := instance(map[string]string{shutdownAfterAnnotation: "1m"})
	m := newMachine(vmi)
	console := m.serial.connect()
	m.input([]byte("hal"))
	m.powerButton()
	m.tick(50 * time.Second)
	var there *machine
	if err := m.move(func(s memory) error { there = resumeMachine(vmi, s); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(console); err != nil {
		t.Errorf("the old console ended with %v, want its end", err)
	}
	m.input([]byte("poweroff\r"))
	m.tick(time.Hour)
	if !m.has(moved) {
		t.Error("the machine lives on where it was")
	}
	console = there.serial.connect()
	there.input([]byte("t\r"))
	if got, want := received(console), "t\r\n"; got != want {
		t.Errorf("received %q, want %q: it has booted again", got, want)
	}
	if there.booted == nil || there.booted.name != "root" {
		t.Errorf("it runs from %v, want root", there.booted)
	}
	there.tick(10 * time.Second)
	if !there.has(poweredOff) {
		t.Error("it has forgotten that it was shutting down")
	}
}

func TestMachine_that_cannot_move_goes_on(t *testing.T) {
	m := newMachine(instance(nil))
	console := m.serial.connect()
	received(console)
	if err := m.move(func(memory) error { return errors.New("no way") }); err == nil {
		t.Error("no error")
	}
	m.input([]byte("x"))
	if got := received(console); got != "x" || !m.has(alive) {
		t.Errorf("received %q, alive %t", got, m.has(alive))
	}
	m.destroy()
	if err := m.move(func(memory) error { t.Error("a dead machine moves"); return nil }); err == nil {
		t.Error("a dead machine has moved")
	}
}

// migration is two virt-handlers, one VMI, and what stands between.
type migration struct {
	*testing.T
	source, target *handler
	vmi            *kvv1.VirtualMachineInstance
}

func newMigration(t *testing.T) *migration {
	t.Helper()
	m := &migration{T: t, vmi: instance(nil)}
	m.vmi.Namespace, m.vmi.Name, m.vmi.UID = "default", "a", "1"
	m.vmi.Labels = map[string]string{kvv1.NodeNameLabel: "one", kvv1.MigrationTargetNodeNameLabel: "two"}
	m.vmi.Status.Phase, m.vmi.Status.NodeName = kvv1.Running, "one"
	m.vmi.Status.ActivePods = map[types.UID]string{"pod-1": "one", "pod-2": "two"}
	m.vmi.Status.MigrationState = &kvv1.VirtualMachineInstanceMigrationState{SourceNode: "one", TargetNode: "two"}
	node := func(name string) *handler {
		return &handler{node: name, lives: map[types.UID]*life{}, instances: cache.NewStore(cache.MetaNamespaceKeyFunc), arriving: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	}
	m.source, m.target = node("one"), node("two")
	m.source.lives[m.vmi.UID] = &life{machine: newMachine(m.vmi)}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+migrationPath+"{uid}", m.target.receive)
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	m.source.peers = server.Client()
	transport := m.source.peers.Transport.(*http.Transport)
	transport.TLSClientConfig.Certificates = server.TLS.Certificates
	t.Setenv("MY_POD_IP", "192.0.2.2")
	transport.TLSClientConfig.ServerName = "example.com" // one of the server's
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "192.0.2.2:8186" {
			t.Errorf("the source connects to %s", address)
		}
		u, err := url.Parse(server.URL)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, u.Host)
	}
	return m
}

// see has both sides see the VMI as it is.
func (m *migration) see() {
	m.Helper()
	for h, label := range map[*handler]string{m.source: "one", m.target: "two"} {
		for store, key := range map[cache.Store]string{h.instances: kvv1.NodeNameLabel, h.arriving: kvv1.MigrationTargetNodeNameLabel} {
			objects := []any{}
			if m.vmi.Labels[key] == label {
				objects = append(objects, m.vmi.DeepCopy())
			}
			if err := store.Replace(objects, ""); err != nil {
				m.Fatal(err)
			}
		}
	}
}

// arrive and depart let one side act; want says that it has something to say.
func (m *migration) arrive(want bool) {
	m.Helper()
	m.see()
	if got := m.target.arrives(m.vmi, m.target.life(m.vmi.UID)); got != want {
		m.Fatalf("the target has something to say: %t, want %t; %+v", got, want, m.vmi.Status.MigrationState)
	}
}

func (m *migration) depart(want bool) {
	m.Helper()
	m.see()
	if got := m.source.departs(m.Context(), m.vmi, m.source.life(m.vmi.UID)); got != want {
		m.Fatalf("the source has something to say: %t, want %t; %+v", got, want, m.vmi.Status.MigrationState)
	}
}

func TestMigration(t *testing.T) {
	m := newMigration(t)
	s := m.vmi.Status.MigrationState
	m.depart(false) // there are no ports to go to
	m.arrive(true)
	if s.TargetNodeAddress != "192.0.2.2" || len(s.TargetDirectMigrationNodePorts) == 0 {
		t.Errorf("the target is at %q, ports %v", s.TargetNodeAddress, s.TargetDirectMigrationNodePorts)
	}
	m.arrive(false)
	m.depart(true)
	if s.StartTimestamp == nil || s.Mode != kvv1.MigrationPreCopy || s.EndTimestamp != nil {
		t.Errorf("after the departure: %+v", s)
	}
	if !m.source.life(m.vmi.UID).has(moved) || m.target.life(m.vmi.UID) == nil {
		t.Fatal("the machine is not where it belongs")
	}
	m.depart(false)
	m.arrive(true)
	if !s.TargetNodeDomainDetected || s.TargetNodeDomainReadyTimestamp != nil || m.vmi.Status.NodeName != "one" {
		t.Errorf("after the arrival: %+v, node %s", s, m.vmi.Status.NodeName)
	}
	m.target.life(m.vmi.UID).arrived = time.Now()
	m.arrive(false)
	m.target.life(m.vmi.UID).arrived = time.Now().Add(-takeOverAfter)
	m.arrive(true)
	if s.TargetNodeDomainReadyTimestamp == nil || s.EndTimestamp == nil || s.Completed || m.vmi.Status.NodeName != "two" || m.vmi.Labels[kvv1.NodeNameLabel] != "two" {
		t.Errorf("after the end: %+v, node %s", s, m.vmi.Status.NodeName)
	}
	m.depart(false)
	m.arrive(true)
	if !s.Completed {
		t.Errorf("not complete: %+v", s)
	}
	m.arrive(true)
	if _, there := m.vmi.Labels[kvv1.MigrationTargetNodeNameLabel]; there {
		t.Error("the label is still there")
	}
	m.arrive(false)
	if l := m.target.life(m.vmi.UID); !l.has(alive) || !slices.Equal(l.pods, []types.UID{"pod-2"}) {
		t.Errorf("alive %t, in pods %v", l.has(alive), l.pods)
	}
}

// An update that another's has overtaken is lost, and has to be made again.
func TestMigration_departure_is_said_until_it_is_known(t *testing.T) {
	m := newMigration(t)
	m.arrive(true)
	before := m.vmi.DeepCopy()
	m.depart(true)
	m.vmi = before
	m.depart(true)
	if m.vmi.Status.MigrationState.StartTimestamp == nil || m.vmi.Status.MigrationState.Failed {
		t.Errorf("after the second time: %+v", m.vmi.Status.MigrationState)
	}
}

// The label goes only when the target has seen that the VMI is its own: what it
// does not see it takes for deleted.
func TestMigration_target_keeps_the_machine_in_sight(t *testing.T) {
	m := newMigration(t)
	m.arrive(true)
	m.depart(true)
	m.target.life(m.vmi.UID).arrived = time.Now().Add(-takeOverAfter)
	for range 3 {
		m.arrive(true)
	}
	m.see()
	if err := m.target.instances.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	if m.target.arrives(m.vmi, m.target.life(m.vmi.UID)) {
		t.Error("the label is taken off although the informer lags behind")
	}
}

func TestMigration_fails_where_nobody_takes_the_machine(t *testing.T) {
	m := newMigration(t)
	m.arrive(true)
	m.see()
	if err := m.target.arriving.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	s := m.vmi.Status.MigrationState
	if !m.source.departs(t.Context(), m.vmi, m.source.life(m.vmi.UID)) {
		t.Fatal("the source has nothing to say")
	}
	if !s.Failed || !strings.Contains(s.FailureReason, "no machine 1 is expected") || s.EndTimestamp == nil || !m.source.life(m.vmi.UID).has(alive) {
		t.Errorf("after the failure: %+v", s)
	}
	m.arrive(true)
	if _, there := m.vmi.Labels[kvv1.MigrationTargetNodeNameLabel]; there || m.vmi.Status.NodeName != "one" {
		t.Errorf("the target has not let go: %v", m.vmi.Labels)
	}
}

func TestDescribeMigratable(t *testing.T) {
	networked := func(i kvv1.InterfaceBindingMethod) func(*kvv1.VirtualMachineInstance) {
		return func(vmi *kvv1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []kvv1.Interface{{Name: "nic", InterfaceBindingMethod: i}}
			vmi.Spec.Networks = []kvv1.Network{{Name: "nic", NetworkSource: kvv1.NetworkSource{Pod: &kvv1.PodNetwork{}}}}
		}
	}
	claimed := func(mode corev1.PersistentVolumeAccessMode) func(*kvv1.VirtualMachineInstance) {
		return func(vmi *kvv1.VirtualMachineInstance) {
			vmi.Spec.Volumes[0].PersistentVolumeClaim = &kvv1.PersistentVolumeClaimVolumeSource{}
			vmi.Status.VolumeStatus = []kvv1.VolumeStatus{{Name: "root", PersistentVolumeClaimInfo: &kvv1.PersistentVolumeClaimInfo{AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}}
		}
	}
	for name, test := range map[string]struct {
		with   func(*kvv1.VirtualMachineInstance)
		reason string
		method kvv1.VirtualMachineInstanceMigrationMethod
	}{
		"masquerade":           {networked(kvv1.InterfaceBindingMethod{Masquerade: &kvv1.InterfaceMasquerade{}}), "", kvv1.BlockMigration},
		"bridge":               {networked(kvv1.InterfaceBindingMethod{Bridge: &kvv1.InterfaceBridge{}}), kvv1.VirtualMachineInstanceReasonInterfaceNotMigratable, kvv1.BlockMigration},
		"a shared claim":       {claimed(corev1.ReadWriteMany), "", kvv1.LiveMigration},
		"a claim of one's own": {claimed(corev1.ReadWriteOnce), kvv1.VirtualMachineInstanceReasonDisksNotMigratable, kvv1.BlockMigration},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := instance(nil)
			test.with(vmi)
			describeMigratable(vmi)
			describeMigratable(vmi)
			var found []kvv1.VirtualMachineInstanceCondition
			for _, c := range vmi.Status.Conditions {
				if c.Type == kvv1.VirtualMachineInstanceIsMigratable {
					found = append(found, c)
				}
			}
			if len(found) != 1 || found[0].Reason != test.reason || (found[0].Status == corev1.ConditionTrue) != (test.reason == "") {
				t.Errorf("conditions %+v, want reason %q", found, test.reason)
			}
			if vmi.Status.MigrationMethod != test.method {
				t.Errorf("method %s, want %s", vmi.Status.MigrationMethod, test.method)
			}
		})
	}
}
