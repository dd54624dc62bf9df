// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	kvv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubecli"
)

const (
	// tickEvery is how finely time passes for guests.
	tickEvery = 100 * time.Millisecond
	// heartbeatEvery is how often the node is marked as alive; virt-controller
	// gives up on it after five minutes.
	heartbeatEvery = 30 * time.Second
	// resendEvery is how often virt-handler presses the power button again,
	// since a guest that boots misses it.
	resendEvery = 5 * time.Second
	// lookEvery is how often the processes of pods are looked at.
	lookEvery = time.Second
	// defaultGrace is the time to shut down that a VMI which names none gets.
	defaultGrace = 30 * time.Second
)

// handler is the stand-in for virt-handler.
type handler struct {
	client kubecli.KubevirtClient
	node   string
	// instances holds the VMIs on this node, by namespace/name; arriving those
	// that are to migrate here.
	instances, arriving cache.Store
	peers               *http.Client

	mu sync.Mutex
	// lives holds what runs, by the VMI's UID.
	lives map[types.UID]*life
	calls []string
}

// life is a machine with what virt-handler knows of it.
type life struct {
	*machine
	pods []types.UID
	// ips are the pod's addresses, empty until they are known.
	ips []string
	// shutdownSince is when the power button was first pressed for a VMI that
	// is being deleted, pressed when it last was.
	shutdownSince, pressed time.Time
	// seen says that the pod's main process was there once, terminating that
	// the pod is being deleted.
	seen, terminating bool
	// departed is when the machine left for, or came from, another node.
	departed metav1.Time
	// arrived is when it came.
	arrived time.Time
	// stored is the resource version that our last update made; a VMI that the
	// cache holds in an older one is not acted upon.
	stored string
}

// runHandler runs until something is wrong.
func runHandler() error {
	client, err := kubecli.GetKubevirtClient()
	if err != nil {
		return err
	}
	ctx := context.Background()
	h := &handler{client: client, node: os.Getenv("NODE_NAME"), lives: map[types.UID]*life{}}
	if h.peers, err = newPeerClient(ctx, client); err != nil {
		return err
	}
	if err := offerDevices(ctx); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var here, coming cache.Controller
	h.instances, here = h.follow(ctx, kvv1.NodeNameLabel, poke)
	h.arriving, coming = h.follow(ctx, kvv1.MigrationTargetNodeNameLabel, poke)
	failed := make(chan error, 2)
	h.serve(failed)
	go here.Run(ctx.Done())
	go coming.Run(ctx.Done())
	go func() {
		for ; ; time.Sleep(heartbeatEvery) {
			if err := h.heartbeat(ctx); err != nil {
				log.Print("heartbeat: ", err)
			}
		}
	}()
	var looked time.Time
	for tick := time.NewTicker(tickEvery); ; {
		select {
		case err := <-failed:
			return err
		case <-changed:
		case <-tick.C:
			h.tick()
			if time.Since(looked) >= lookEvery {
				looked = time.Now()
				h.look()
			}
		}
		if here.HasSynced() && coming.HasSynced() {
			h.reconcile(ctx)
		}
	}
}

// follow keeps a store of the VMIs in which a label names this node.
func (h *handler) follow(ctx context.Context, label string, poke func()) (cache.Store, cache.Controller) {
	selector := label + "=" + h.node
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListFunc: func(o metav1.ListOptions) (runtime.Object, error) {
				o.LabelSelector = selector
				return h.client.VirtualMachineInstance("").List(ctx, o)
			},
			WatchFunc: func(o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = selector
				return h.client.VirtualMachineInstance("").Watch(ctx, o)
			},
		},
		ObjectType: &kvv1.VirtualMachineInstance{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { poke() },
			UpdateFunc: func(any, any) { poke() },
			DeleteFunc: func(any) { poke() },
		},
	})
}

// cpuModel is the processor of all nodes.
const cpuModel = "Stand-in"

// heartbeat marks the node as one that machines can be scheduled and, since all
// have the same processor, migrated to. Labels of KubeVirt's own are all that its
// admission policy lets virt-handler change.
func (h *handler) heartbeat(ctx context.Context) error {
	node := map[string]any{"metadata": map[string]any{
		"labels": map[string]string{
			kvv1.NodeSchedulable:                           "true",
			"machine-type.node.kubevirt.io/q35":            "true",
			kvv1.HostModelCPULabel + cpuModel:              "true",
			kvv1.SupportedHostModelMigrationCPU + cpuModel: "true",
		},
		"annotations": map[string]string{kvv1.VirtHandlerHeartbeat: time.Now().UTC().Format(time.RFC3339)},
	}}
	patch, err := json.Marshal(node)
	if err != nil {
		return err
	}
	_, err = h.client.CoreV1().Nodes().Patch(ctx, h.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// tick lets time pass in all machines.
func (h *handler) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lives {
		l.tick(tickEvery)
	}
}

// look finds out which pods are being deleted, and which have died and taken
// their machine with them.
func (h *handler) look() {
	main := podProcesses(mainProcess)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lives {
		running := false
		for _, pod := range l.pods {
			for _, pid := range main[pod] {
				running = true
				if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/%s", pid, terminatingFile)); err == nil {
					l.terminating = true
				}
			}
		}
		if l.seen && !running {
			l.kill()
		}
		l.seen = l.seen || running
		if len(l.ips) == 0 {
			l.ips = l.addresses(main)
		}
	}
}

// reconcile brings machines and VMIs together.
func (h *handler) reconcile(ctx context.Context) {
	uids := map[types.UID]bool{}
	for _, store := range []cache.Store{h.instances, h.arriving} {
		for _, o := range store.List() {
			vmi := o.(*kvv1.VirtualMachineInstance)
			if !uids[vmi.UID] {
				uids[vmi.UID] = true
				h.sync(ctx, vmi.DeepCopy())
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, l := range h.lives {
		if !uids[uid] { // deleted by force, or gone to another node
			l.destroy()
			endPods(l.pods)
			delete(h.lives, uid)
		}
	}
}

// sync does what is due for one VMI.
func (h *handler) sync(ctx context.Context, vmi *kvv1.VirtualMachineInstance) {
	l := h.life(vmi.UID)
	if l != nil && older(vmi.ResourceVersion, l.stored) {
		return
	}
	if l != nil {
		h.mu.Lock()
		l.pods = h.podsOf(vmi)
		h.mu.Unlock()
	}
	switch {
	case vmi.IsFinal():
		if l != nil || vmi.Labels[kvv1.MigrationTargetNodeNameLabel] == h.node {
			h.end(vmi, l)
		}
		return
	case h.departs(ctx, vmi, l), h.arrives(vmi, l):
	case vmi.Status.NodeName != h.node:
		return // it is on its way here
	case l == nil && vmi.DeletionTimestamp != nil:
		// Stopped before it ran.
		setPhase(vmi, kvv1.Failed)
	case l == nil && (vmi.Status.Phase == kvv1.Scheduled || vmi.Status.Phase == kvv1.Running):
		// Running without a machine: this program was started anew.
		l = &life{machine: newMachine(vmi), pods: h.podsOf(vmi)}
		if s := vmi.Spec.StartStrategy; s != nil && *s == kvv1.StartStrategyPaused {
			l.setPaused(true)
		}
		h.mu.Lock()
		h.lives[vmi.UID] = l
		h.mu.Unlock()
		l.ips = l.addresses(podProcesses(mainProcess))
		describe(vmi)
		describeDevices(vmi, l)
		if vmi.Status.Phase == kvv1.Scheduled {
			setPhase(vmi, kvv1.Running)
		}
	case l == nil:
		return
	default:
		if !h.advance(vmi, l) {
			return
		}
	}
	updated, err := h.client.VirtualMachineInstance(vmi.Namespace).Update(ctx, vmi, metav1.UpdateOptions{})
	if err != nil {
		// The next tick tries again, with a newer version where it was a conflict.
		log.Printf("update %s/%s: %v", vmi.Namespace, vmi.Name, err)
		return
	}
	if l != nil {
		l.stored = updated.ResourceVersion
	}
	log.Printf("%s/%s %s: %s", vmi.Namespace, vmi.Name, vmi.UID, updated.Status.Phase)
}

// podsOf lists those of the VMI's pods that are on this node.
func (h *handler) podsOf(vmi *kvv1.VirtualMachineInstance) []types.UID {
	var pods []types.UID
	for uid, node := range vmi.Status.ActivePods {
		if node == h.node {
			pods = append(pods, uid)
		}
	}
	return pods
}

// end ends what is left here of a machine.
func (h *handler) end(vmi *kvv1.VirtualMachineInstance, l *life) {
	if l != nil {
		l.destroy()
	}
	endPods(h.podsOf(vmi))
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lives, vmi.UID)
}

// advance moves a machine on and reports whether the VMI has to be updated.
func (h *handler) advance(vmi *kvv1.VirtualMachineInstance, l *life) bool {
	if vmi.DeletionTimestamp != nil || l.terminating {
		shutDown(vmi, l, time.Now())
	}
	end, paused := l.state()
	switch end {
	case moved:
		return false
	case alive:
		changed := setCondition(vmi, kvv1.VirtualMachineInstancePaused, paused, "PausedByUser")
		return describeDevices(vmi, l) || changed
	case poweredOff:
		setPhase(vmi, kvv1.Succeeded)
	case crashed:
		setPhase(vmi, kvv1.Failed)
	case destroyed:
		// With a power button and time to press it, having to destroy the
		// machine counts as a failure.
		if grace(vmi) > 0 && !acpiDisabled(vmi) {
			setPhase(vmi, kvv1.Failed)
		} else {
			setPhase(vmi, kvv1.Succeeded)
		}
	}
	setCondition(vmi, kvv1.VirtualMachineInstancePaused, false, "")
	setCondition(vmi, kvv1.VirtualMachineInstanceAgentConnected, false, "")
	return true
}

// grace is how long the guest may take to shut down. A stop with a grace
// period of its own has changed it, also while the guest already shuts down.
func grace(vmi *kvv1.VirtualMachineInstance) time.Duration {
	if s := vmi.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return defaultGrace
}

// shutDown presses the power button of a machine that is to go, or switches it
// off when its time is over.
func shutDown(vmi *kvv1.VirtualMachineInstance, l *life, now time.Time) {
	if l.shutdownSince.IsZero() {
		l.shutdownSince = now
	}
	if now.Sub(l.shutdownSince) >= grace(vmi) {
		l.destroy()
		return
	}
	if now.Sub(l.pressed) >= resendEvery {
		l.pressed = now
		l.powerButton()
	}
}

// addresses are those of the machine's pod, whose main process is among main.
func (l *life) addresses(main map[types.UID][]int) []string {
	for _, pod := range l.pods {
		for _, pid := range main[pod] {
			if list := addresses(pid); len(list) > 0 {
				return list
			}
		}
	}
	return nil
}

// describeDevices brings the status of interfaces and volumes up to date, as
// virt-handler does each time, and reports whether that changed anything.
func describeDevices(vmi *kvv1.VirtualMachineInstance, l *life) bool {
	before := vmi.Status.DeepCopy()
	if err := describeNetwork(vmi, l.ips); err != nil {
		log.Printf("interfaces of %s/%s: %v", vmi.Namespace, vmi.Name, err)
	}
	describeVolumes(vmi)
	return !equality.Semantic.DeepEqual(before.Interfaces, vmi.Status.Interfaces) || !equality.Semantic.DeepEqual(before.VolumeStatus, vmi.Status.VolumeStatus)
}

// describe fills what virt-handler knows about a machine that starts.
func describe(vmi *kvv1.VirtualMachineInstance) {
	setCondition(vmi, kvv1.VirtualMachineInstanceReady, true, "")
	vmi.Status.SelinuxContext = "none" // says that the nodes have none
	describeMigratable(vmi)
	if vmi.Annotations[agentAnnotation] == "true" {
		setCondition(vmi, kvv1.VirtualMachineInstanceAgentConnected, true, "")
		vmi.Status.GuestOSInfo = guestInfo(vmi).OS
	}
	if vmi.Status.Machine == nil && vmi.Spec.Domain.Machine != nil {
		vmi.Status.Machine = &kvv1.Machine{Type: vmi.Spec.Domain.Machine.Type}
	}
	if c := vmi.Spec.Domain.CPU; c != nil && vmi.Status.CurrentCPUTopology == nil {
		vmi.Status.CurrentCPUTopology = &kvv1.CPUTopology{Cores: max(c.Cores, 1), Sockets: max(c.Sockets, 1), Threads: max(c.Threads, 1)}
	}
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil && vmi.Status.Memory == nil {
		vmi.Status.Memory = &kvv1.MemoryStatus{GuestAtBoot: m.Guest, GuestCurrent: m.Guest, GuestRequested: m.Guest}
	}
}

// guestInfo is what the guest agent tells.
func guestInfo(vmi *kvv1.VirtualMachineInstance) kvv1.VirtualMachineInstanceGuestAgentInfo {
	return kvv1.VirtualMachineInstanceGuestAgentInfo{
		GAVersion: "1.0.0",
		Hostname:  vmi.Name,
		OS: kvv1.VirtualMachineInstanceGuestOSInfo{
			Name: "Stand-in Linux", ID: "standin", PrettyName: "Stand-in Linux 1", Version: "1", VersionID: "1",
			KernelRelease: "1.0.0", KernelVersion: "#1", Machine: "x86_64",
		},
		Timezone: "UTC, 0",
	}
}

// setPhase moves a VMI to a phase.
func setPhase(vmi *kvv1.VirtualMachineInstance, p kvv1.VirtualMachineInstancePhase) {
	vmi.Status.Phase = p
	vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps, kvv1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: metav1.Now()})
}

// setCondition makes a condition true, or takes it away, and reports whether
// that changed anything.
func setCondition(vmi *kvv1.VirtualMachineInstance, t kvv1.VirtualMachineInstanceConditionType, on bool, reason string) bool {
	at := slices.IndexFunc(vmi.Status.Conditions, func(c kvv1.VirtualMachineInstanceCondition) bool { return c.Type == t })
	if !on {
		if at < 0 {
			return false
		}
		vmi.Status.Conditions = slices.Delete(vmi.Status.Conditions, at, at+1)
		return true
	}
	now := metav1.Now()
	c := kvv1.VirtualMachineInstanceCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, LastProbeTime: now, LastTransitionTime: now}
	if at < 0 {
		vmi.Status.Conditions = append(vmi.Status.Conditions, c)
		return true
	}
	if vmi.Status.Conditions[at].Status == corev1.ConditionTrue {
		return false
	}
	vmi.Status.Conditions[at] = c
	return true
}

// older reports whether resource version a is older than b. Both come from the
// same kind of object, so etcd's revisions can be compared.
func older(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

func (h *handler) life(uid types.UID) *life {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lives[uid]
}

// What is visible of a virt-launcher pod; see cmd/launcherstandin.
const (
	mainProcess     = "virt-launcher-monitor"
	terminatingFile = "tmp/terminating"
)

// endPods ends the pods, as virt-launcher ends with QEMU.
func endPods(pods []types.UID) {
	processes := podProcesses(mainProcess, "virt-tail", "container-disk")
	for _, pod := range pods {
		for _, pid := range processes[pod] {
			if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
				log.Printf("end process %d: %v", pid, err)
			}
		}
	}
}

// podUID finds the pod in the name of a container's cgroup.
var podUID = regexp.MustCompile(`/pod([0-9a-f-]{36})/`)

// podProcesses lists the processes that run one of the programs, by pod.
// virt-handler sees all processes of the node.
func podProcesses(programs ...string) map[types.UID][]int {
	found := map[types.UID][]int{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/cmdline")
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(string(b), "\x00")
		if !slices.Contains(programs, filepath.Base(name)) {
			continue
		}
		cgroups, _ := os.ReadFile(d + "/cgroup")
		pod := podUID.FindSubmatch(cgroups)
		pid, err := strconv.Atoi(filepath.Base(d))
		if pod == nil || err != nil {
			continue
		}
		found[types.UID(pod[1])] = append(found[types.UID(pod[1])], pid)
	}
	return found
}
