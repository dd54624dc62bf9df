// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvv1 "kubevirt.io/api/core/v1"

	"kubevirtbmc.dev/pkg/hypervisor"
)

var (
	ref = hypervisor.Ref{Namespace: "lab", Name: "vm"}
	on  = kvv1.RunStrategyAlways
	off = kvv1.RunStrategyHalted
)

func pointer[T any](v T) *T { return &v }

// testVM is a machine with two disks and an interface.
func testVM(strategy kvv1.VirtualMachineRunStrategy) *kvv1.VirtualMachine {
	return &kvv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: "vm-uid", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Spec: kvv1.VirtualMachineSpec{
			RunStrategy: &strategy,
			Template: &kvv1.VirtualMachineInstanceTemplateSpec{Spec: kvv1.VirtualMachineInstanceSpec{
				Domain: kvv1.DomainSpec{Devices: kvv1.Devices{
					Disks: []kvv1.Disk{
						{Name: "root", BootOrder: pointer[uint](1), DiskDevice: kvv1.DiskDevice{Disk: &kvv1.DiskTarget{Bus: "virtio"}}},
						{Name: "cd", DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{Bus: "sata"}}},
					},
					Interfaces: []kvv1.Interface{{Name: "default", BootOrder: pointer[uint](2)}},
				}},
				Volumes: []kvv1.Volume{
					{Name: "root", VolumeSource: kvv1.VolumeSource{ContainerDisk: &kvv1.ContainerDiskSource{Image: "disk:1"}}},
					{Name: "seed", VolumeSource: kvv1.VolumeSource{CloudInitNoCloud: &kvv1.CloudInitNoCloudSource{UserData: "password: hidden"}}},
				},
			}},
		},
	}
}

func testVMI(uid types.UID, phase kvv1.VirtualMachineInstancePhase) *kvv1.VirtualMachineInstance {
	return &kvv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ref.Namespace, Name: ref.Name, UID: uid,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: ref.Name, UID: "vm-uid", Controller: pointer(true)}},
		},
		Spec:   testVM(off).Spec.Template.Spec,
		Status: kvv1.VirtualMachineInstanceStatus{Phase: phase},
	}
}

// start runs a hypervisor against a server.
func start(t *testing.T, api *fakeAPI) *Hypervisor {
	t.Helper()
	h, err := New(Config{REST: api.config, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return h
}

func started(t *testing.T, api *fakeAPI) *Hypervisor {
	t.Helper()
	h := start(t, api)
	within(t, "ready", h.Ready)
	return h
}

func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %s in time", what)
		}
	}
}

func TestHypervisor_waits_for_KubeVirt(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.setMissing(true)
	h := start(t, api)
	var told atomic.Bool
	h.Subscribe(func(changed hypervisor.Ref) { told.Store(told.Load() || changed == ref) })
	within(t, "in trouble", func() bool { return h.trouble.Load() != nil })
	_, err := h.Get(ref)
	if !errors.Is(err, hypervisor.ErrUnavailable) || !strings.Contains(err.Error(), textNoResource) {
		t.Errorf("Get without KubeVirt: %v, want that it is unavailable and why", err)
	}
	if _, err := h.List(); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("List without KubeVirt: %v", err)
	}
	if err := h.Start(t.Context(), ref); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("Start without KubeVirt: %v", err)
	}
	api.put(testVM(off))
	api.setMissing(false)
	within(t, "ready", h.Ready)
	if _, err := h.Get(ref); err != nil {
		t.Errorf("Get: %v", err)
	}
	within(t, "told of the machine", told.Load)
}

func TestHypervisor_follows_both_objects(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(on))
	h := started(t, api)
	last := make(chan *hypervisor.Machine, 100)
	cancel := h.Subscribe(func(changed hypervisor.Ref) {
		m, _ := h.Get(changed)
		last <- m
	})
	api.put(testVMI("one", kvv1.Running))
	for m := range last {
		if m.Instance != nil && m.Instance.UID == "one" && m.Instance.Phase == hypervisor.PhaseRunning {
			break
		}
	}
	m, _ := h.Get(ref)
	again, _ := h.Get(ref)
	if m != again {
		t.Error("an unchanged machine was made anew")
	}
	stranger := testVMI("two", kvv1.Running)
	stranger.OwnerReferences[0].UID = "a machine that was here before"
	api.put(stranger)
	for m := range last {
		if m.Instance == nil {
			break
		}
	}
	cancel()
	api.remove(resourceVMs, ref.Namespace, ref.Name)
	within(t, "without the machine", func() bool {
		_, err := h.Get(ref)
		return errors.Is(err, hypervisor.ErrNotFound)
	})
	if all, err := h.List(); err != nil || len(all) != 0 {
		t.Errorf("List: %v, %v", all, err)
	}
}

func TestHypervisor_writes_are_in_the_cache_when_they_return(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.lag = 50 * time.Millisecond
	api.put(testVM(off))
	h := started(t, api)
	ctx := t.Context()
	get := func() *hypervisor.Machine {
		t.Helper()
		m, err := h.Get(ref)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, step := range [][2]string{{"", "one"}, {"one", "two"}, {"two", ""}, {"", "three"}} {
		value := func(s string) []byte {
			if s == "" {
				return nil
			}
			return []byte(s)
		}
		if err := h.SetState(ctx, ref, value(step[0]), value(step[1])); err != nil {
			t.Fatalf("set state from %q to %q: %v", step[0], step[1], err)
		}
		if got := get().State; string(got) != step[1] || (got == nil) != (step[1] == "") {
			t.Errorf("state is %q after %q was written", got, step[1])
		}
	}
	if err := h.SetState(ctx, ref, []byte("two"), nil); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set state from an old one: %v", err)
	}

	version := get().ResourceVersion
	if err := h.SetBoot(ctx, ref, version, map[string]int{"root": 2, "cd": 1, "default": 0}, hypervisor.FirmwareUEFI); err != nil {
		t.Fatalf("set boot: %v", err)
	}
	m := get()
	if diff := cmp.Diff(map[string]int{"root": 2, "cd": 1}, hypervisor.BootOrder(m.Devices)); diff != "" {
		t.Errorf("boot order mismatch (-want +got):\n%s", diff)
	}
	if m.Firmware.Mode != hypervisor.FirmwareUEFI || m.Firmware.SecureBoot {
		t.Errorf("firmware is %+v", m.Firmware)
	}
	if err := h.SetBoot(ctx, ref, version, map[string]int{"root": 1}, ""); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set boot on an old version: %v", err)
	}
	if err := h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyManual, hypervisor.RunStrategyAlways); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set run strategy from another: %v", err)
	}
	if err := h.SetRunStrategy(ctx, ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyAlways); err != nil {
		t.Fatalf("set run strategy: %v", err)
	}
	if got := get().RunStrategy; got != hypervisor.RunStrategyAlways {
		t.Errorf("run strategy is %s", got)
	}
}

func TestHypervisor_writers_that_overtake_are_noticed(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(off))
	h := started(t, api)
	api.mu.Lock()
	api.lag = 300 * time.Millisecond
	api.mu.Unlock()
	changed := testVM(on)
	changed.Annotations = map[string]string{stateAnnotation: "theirs"}
	api.put(changed)
	// The cache is old for a while: the server has to notice.
	if err := h.SetRunStrategy(t.Context(), ref, hypervisor.RunStrategyHalted, hypervisor.RunStrategyManual); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set run strategy: %v", err)
	}
	if err := h.SetState(t.Context(), ref, nil, []byte("ours")); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set state: %v", err)
	}
	m, err := h.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.State) != "theirs" {
		t.Errorf("who was overtaken still reads %q", m.State)
	}
	api.put(changed)
	if err := h.SetBoot(t.Context(), ref, m.ResourceVersion, map[string]int{"cd": 3}, ""); !errors.Is(err, hypervisor.ErrStale) {
		t.Errorf("set boot: %v", err)
	}
}

// TestHypervisor_first_annotation: KubeVirt annotates a new machine while its
// first state is written.
func TestHypervisor_first_annotation(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(off))
	h := started(t, api)
	api.mu.Lock()
	api.lag = 300 * time.Millisecond
	api.mu.Unlock()
	annotated := testVM(off)
	annotated.Annotations = map[string]string{"kubevirt.io/latest-observed-api-version": "v1"}
	api.put(annotated)
	if err := h.SetState(t.Context(), ref, nil, []byte("one")); err != nil {
		t.Fatalf("set state: %v", err)
	}
	if m, err := h.Get(ref); err != nil || string(m.State) != "one" {
		t.Errorf("state is %q, %v", m.State, err)
	}
	vm, err := h.read(t.Context(), ref)
	if err != nil || len(vm.Annotations) != 2 {
		t.Errorf("annotations are %v, %v", vm.Annotations, err)
	}
}

func TestHypervisor_requests_are_in_the_cache_when_they_return(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.lag = 100 * time.Millisecond
	api.put(testVM(on))
	api.put(testVMI("one", kvv1.Running))
	h := started(t, api)
	api.subresource = func(resource, _, verb string, body []byte) (int, *metav1.Status) {
		switch resource + "/" + verb {
		case "virtualmachines/stop":
			if string(body) != `{"gracePeriod":2}` {
				t.Errorf("body is %s", body)
			}
			api.put(testVM(off))
			dying := testVMI("one", kvv1.Running)
			dying.Spec.TerminationGracePeriodSeconds = pointer[int64](2)
			api.put(dying)
		case "virtualmachineinstances/pause":
			paused := testVMI("one", kvv1.Running)
			paused.Status.Conditions = []kvv1.VirtualMachineInstanceCondition{{Type: kvv1.VirtualMachineInstancePaused, Status: "True"}}
			time.AfterFunc(100*time.Millisecond, func() { api.put(paused) })
			return http.StatusOK, nil
		}
		return http.StatusAccepted, nil
	}
	if err := h.Pause(t.Context(), ref); err != nil {
		t.Fatalf("pause: %v", err)
	}
	if m, err := h.Get(ref); err != nil || !m.Instance.Paused {
		t.Errorf("the machine is not paused: %v", err)
	}
	if err := h.Stop(t.Context(), ref, pointer(1100*time.Millisecond)); err != nil {
		t.Fatalf("stop: %v", err)
	}
	m, err := h.Get(ref)
	if err != nil || m.RunStrategy != hypervisor.RunStrategyHalted || m.Instance.GracePeriod != 2*time.Second {
		t.Errorf("the machine does not show the stop: %+v, %v", m, err)
	}
	if err := h.DeleteInstance(t.Context(), ref, "two"); !errors.Is(err, hypervisor.ErrNoInstance) {
		t.Errorf("delete another instance: %v", err)
	}
	if err := h.DeleteInstance(t.Context(), ref, "one"); err != nil {
		t.Fatalf("delete: %v", err)
	}
	if m, err := h.Get(ref); err != nil || !m.Instance.Deleting {
		t.Errorf("the instance is not being deleted: %v", err)
	}
}

func TestHypervisor_starts_a_machine_without_instance(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.lag = 50 * time.Millisecond
	api.put(testVM(off))
	h := started(t, api)
	api.subresource = func(string, string, string, []byte) (int, *metav1.Status) {
		api.put(testVM(on))
		return http.StatusAccepted, nil
	}
	if err := h.Start(t.Context(), ref); err != nil {
		t.Fatalf("start: %v", err)
	}
	if m, err := h.Get(ref); err != nil || m.RunStrategy != hypervisor.RunStrategyAlways || m.Instance != nil {
		t.Errorf("the machine does not show the start: %+v, %v", m, err)
	}
	if err := h.Start(t.Context(), hypervisor.Ref{Namespace: "lab", Name: "none"}); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("start of no machine: %v", err)
	}
	if err := h.DeleteInstance(t.Context(), ref, "one"); !errors.Is(err, hypervisor.ErrNoInstance) {
		t.Errorf("delete of no instance: %v", err)
	}
	if _, err := h.OpenConsole(t.Context(), ref); !errors.Is(err, hypervisor.ErrNoInstance) {
		t.Errorf("console of no instance: %v", err)
	}
}

func TestHypervisor_keeps_no_user_data(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	vm := testVM(off)
	vm.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "password: hidden"}
	api.put(vm)
	h := started(t, api)
	cached, _ := h.objects(ref)
	if cached.ManagedFields != nil {
		t.Error("managed fields are kept")
	}
	if cached.Annotations == nil || len(cached.Annotations) != 0 {
		t.Errorf("annotations are %v", cached.Annotations)
	}
	for _, v := range cached.Spec.Template.Spec.Volumes {
		if v.CloudInitNoCloud != nil {
			t.Error("user data is kept")
		}
	}
	twice, err := trim(cached)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cached, twice); diff != "" {
		t.Errorf("a second trim changes more (-once +twice):\n%s", diff)
	}
}

// An instance whose last events come after those of its machine, as with an
// orphaning deletion.
func TestHypervisor_forgets_machines_that_are_gone(t *testing.T) {
	api := newFakeAPI(t)
	api.put(testVM(on))
	vmi := testVMI("vmi-1", kvv1.Running)
	vmi.Status.Interfaces = []kvv1.VirtualMachineInstanceNetworkInterface{{Name: "default", MAC: "02:00:00:00:00:01"}}
	api.put(vmi)
	h := started(t, api)
	within(t, "both objects", func() bool { m, err := h.Get(ref); return err == nil && m.Instance != nil })
	api.remove("virtualmachines", ref.Namespace, ref.Name)
	within(t, "the machine's end", func() bool { _, err := h.Get(ref); return err != nil })
	api.remove("virtualmachineinstances", ref.Namespace, ref.Name)
	within(t, "the instance's end", func() bool { return len(h.of(ref.Namespace).vmis.GetIndexer().List()) == 0 })
	time.Sleep(100 * time.Millisecond) // The event comes after the cache has it.
	h.mu.RLock()
	n := len(h.sightings)
	h.mu.RUnlock()
	if n != 0 {
		t.Errorf("%d machines are remembered that are gone", n)
	}
	again := testVM(off)
	again.UID = "another-uid"
	api.put(again)
	within(t, "the new machine", func() bool { _, err := h.Get(ref); return err == nil })
	m, err := h.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, nic := range m.Hardware.Interfaces {
		if nic.MAC != "" {
			t.Errorf("a new machine has the MAC address %s of an earlier one", nic.MAC)
		}
	}
}

func TestHypervisor_reads_cost_no_request(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(on))
	api.put(testVMI("one", kvv1.Running))
	h := started(t, api)
	api.mu.Lock()
	before := len(api.requests)
	api.mu.Unlock()
	for range 100 {
		if _, err := h.Get(ref); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Trays(ref); err != nil {
			t.Fatal(err)
		}
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, r := range slices.DeleteFunc(slices.Clone(api.requests[before:]), func(r string) bool { return !strings.Contains(r, ref.Name) }) {
		t.Errorf("a read made the request %s", r)
	}
}

func TestHypervisor_media(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	vm := testVM(off)
	vm.Spec.Template.Spec.Domain.Devices.Disks = append(vm.Spec.Template.Spec.Domain.Devices.Disks,
		kvv1.Disk{Name: "tools", DiskDevice: kvv1.DiskDevice{CDRom: &kvv1.CDRomTarget{}}})
	vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes,
		kvv1.Volume{Name: "tools", VolumeSource: kvv1.VolumeSource{ContainerDisk: &kvv1.ContainerDiskSource{Image: "tools:1"}}})
	api.put(vm)
	h := started(t, api)
	got, err := h.Trays(ref)
	if err != nil {
		t.Fatal(err)
	}
	want := []hypervisor.Tray{
		{Device: "cd"},
		{Device: "tools", Medium: &hypervisor.Medium{Phase: hypervisor.MediumInserted, Progress: 100, Foreign: true}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trays mismatch (-want +got):\n%s", diff)
	}
	image := hypervisor.Image{URL: "https://images.example/a.iso"}
	for _, c := range []struct {
		what      string
		err, want error
	}{
		{"insert into a free tray", h.Insert(t.Context(), ref, "cd", image), hypervisor.ErrUnsupported},
		{"insert into a filled tray", h.Insert(t.Context(), ref, "tools", image), hypervisor.ErrForeignMedium},
		{"insert into no tray", h.Insert(t.Context(), ref, "root", image), hypervisor.ErrNoTray},
		{"eject from a free tray", h.Eject(t.Context(), ref, "cd"), nil},
		{"eject from a filled tray", h.Eject(t.Context(), ref, "tools"), hypervisor.ErrForeignMedium},
		{"eject of no machine", h.Eject(t.Context(), hypervisor.Ref{Namespace: "lab", Name: "none"}, "cd"), hypervisor.ErrNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
		}
	}
}

func TestHypervisor_cancelled_requests(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(off))
	h := started(t, api)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Start(ctx, ref); !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
	if err := h.SetState(ctx, ref, nil, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("set state: %v", err)
	}
}

// TestHypervisor_accepted_requests_are_not_failed: what KubeVirt has accepted is
// only unseen when the watch is late, so that nobody sends it again.
func TestHypervisor_accepted_requests_are_not_failed(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]func(h *Hypervisor, ctx context.Context) error{
		"reset":  func(h *Hypervisor, ctx context.Context) error { return h.Reset(ctx, ref) },
		"delete": func(h *Hypervisor, ctx context.Context) error { return h.DeleteInstance(ctx, ref, "one") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newFakeAPI(t)
			api.put(testVM(on))
			api.put(testVMI("one", kvv1.Running))
			h := started(t, api)
			api.mu.Lock()
			api.lag = 2 * time.Second
			api.mu.Unlock()
			api.subresource = func(_, _, _ string, _ []byte) (int, *metav1.Status) {
				api.put(testVMI("one", kvv1.Running))
				return http.StatusAccepted, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := request(h, ctx); !errors.Is(err, hypervisor.ErrUnseen) {
				t.Errorf("got error %v, want %v", err, hypervisor.ErrUnseen)
			}
		})
	}
}

// TestHypervisor_reader_that_is_late: who still has a machine that has gone leaves
// nothing of it behind.
func TestHypervisor_reader_that_is_late(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(testVM(on))
	h := started(t, api)
	if _, err := h.Get(ref); err != nil {
		t.Fatal(err)
	}
	vm, _ := h.objects(ref)
	kept := func() int {
		h.mu.RLock()
		defer h.mu.RUnlock()
		return len(h.snapshots)
	}
	api.remove("virtualmachines", ref.Namespace, ref.Name)
	within(t, "the machine forgotten", func() bool { return kept() == 0 })
	h.machine(vm, nil)
	if n := kept(); n != 0 {
		t.Errorf("%d machines are remembered that are gone", n)
	}
}
