// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	kvclient "kubevirt.io/client-go/kubevirt/typed/core/v1"
	kvlog "kubevirt.io/client-go/log"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
)

const (
	// client-go's own limits of 5 and 10 are meant for one controller, not for
	// thousands of BMCs; the server has its own fairness.
	defaultQPS   = 200
	defaultBurst = 400

	// requestTimeout bounds each request, watches aside.
	requestTimeout = 15 * time.Second

	resourceVMIs = "virtualmachineinstances"
)

// Config of a hypervisor.
type Config struct {
	// Kubeconfig is a file; empty: the pod's service account.
	Kubeconfig string
	// REST is used in place of Kubeconfig unless it is nil.
	REST *rest.Config
	// Namespaces to serve; empty: all.
	Namespaces []string
	Log        *slog.Logger
}

// Hypervisor is KubeVirt. It implements hypervisor.Hypervisor.
type Hypervisor struct {
	log    *slog.Logger
	config *rest.Config
	client kvclient.KubevirtV1Interface
	caches map[string]*caches
	// expansions has the machines whose instance type or preference is to be
	// read.
	expansions workqueue.TypedRateLimitingInterface[hypervisor.Ref]
	dials      dials
	ready      atomic.Bool
	// trouble is why the caches are not filled.
	trouble atomic.Pointer[string]

	mu          sync.RWMutex
	subscribers follow.Subscribers
	sightings   map[hypervisor.Ref]*sighting
	snapshots   map[hypervisor.Ref]made
}

var _ hypervisor.Hypervisor = (*Hypervisor)(nil)

// New makes a hypervisor. It knows nothing until Run has filled its caches.
func New(config Config) (*Hypervisor, error) {
	restConfig := config.REST
	if restConfig == nil {
		loaded, err := loadConfig(config.Kubeconfig)
		if err != nil {
			return nil, err
		}
		restConfig = loaded
	}
	restConfig = rest.CopyConfig(restConfig)
	restConfig.QPS, restConfig.Burst = defaultQPS, defaultBurst
	restConfig.UserAgent = "kubevirtbmc-power"
	// What the API deprecates in a user's machine is the user's affair.
	restConfig.WarningHandlerWithContext = rest.NoWarnings{}
	silence()
	client, err := kvclient.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make KubeVirt client: %w", err)
	}
	h := &Hypervisor{
		log:        config.Log,
		config:     restConfig,
		client:     client,
		caches:     map[string]*caches{},
		expansions: newExpansions(),
		sightings:  map[hypervisor.Ref]*sighting{},
		snapshots:  map[hypervisor.Ref]made{},
	}
	namespaces := config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		if _, ok := h.caches[namespace]; ok {
			continue
		}
		c, err := h.newCaches(namespace)
		if err != nil {
			return nil, err
		}
		h.caches[namespace] = c
	}
	return h, nil
}

// silence drops the lines that KubeVirt's client writes by itself for some
// requests.
var silence = sync.OnceFunc(func() { kvlog.Log.SetIOWriter(io.Discard) })

// loadConfig reads a kubeconfig file or the pod's service account.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("load in-cluster configuration: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	return config, nil
}

// Run keeps the caches filled until the context ends. A cluster without
// KubeVirt, or without an API server that answers, is waited for.
func (h *Hypervisor) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(h.log.Handler()))
	var watches sync.WaitGroup
	for _, c := range h.caches {
		watches.Go(func() { c.vms.RunWithContext(ctx) })
		watches.Go(func() { c.vmis.RunWithContext(ctx) })
	}
	watches.Go(func() { h.awaitSync(ctx) })
	watches.Go(func() { h.expand(ctx) })
	watches.Wait()
	return nil
}

// awaitSync waits until all caches are filled and tells the subscribers of each
// machine, since nobody could read them before.
func (h *Hypervisor) awaitSync(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !h.synced() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	h.trouble.Store(nil)
	h.ready.Store(true)
	machines, err := h.List()
	if err != nil {
		return
	}
	h.log.Info("KubeVirt's machines are known", slog.Int("machines", len(machines)))
	for _, m := range machines {
		h.notify(m.Ref)
	}
}

func (h *Hypervisor) synced() bool {
	for _, c := range h.caches {
		if !c.synced() {
			return false
		}
	}
	return true
}

// Ready tells whether the caches are filled.
func (h *Hypervisor) Ready() bool { return h.ready.Load() }

// checkReady is hypervisor.ErrUnavailable, with the reason where it is known,
// until the caches are filled.
func (h *Hypervisor) checkReady() error {
	if h.ready.Load() {
		return nil
	}
	if trouble := h.trouble.Load(); trouble != nil {
		return fmt.Errorf("%w: %s", hypervisor.ErrUnavailable, *trouble)
	}
	return fmt.Errorf("%w: reading the cluster's machines", hypervisor.ErrUnavailable)
}

// Subscribe calls changed after each change.
func (h *Hypervisor) Subscribe(changed func(hypervisor.Ref)) (cancel func()) {
	return h.subscribers.Subscribe(changed)
}

func (h *Hypervisor) notify(ref hypervisor.Ref) { h.subscribers.Changed(ref) }

// Get returns a machine.
func (h *Hypervisor) Get(ref hypervisor.Ref) (*hypervisor.Machine, error) {
	if err := h.checkReady(); err != nil {
		return nil, err
	}
	vm, vmi := h.objects(ref)
	if vm == nil {
		return nil, hypervisor.ErrNotFound
	}
	return h.machine(vm, vmi), nil
}

// List returns all machines.
func (h *Hypervisor) List() ([]*hypervisor.Machine, error) {
	if err := h.checkReady(); err != nil {
		return nil, err
	}
	var machines []*hypervisor.Machine
	for _, c := range h.caches {
		for _, vm := range c.listVMs() {
			machines = append(machines, h.machine(vm, c.vmi(vm)))
		}
	}
	return machines, nil
}

// errTimeout says that the caches did not show a change in time.
var errTimeout = errors.New("the watch does not show the change yet")

// await waits until done, looking again at each change of the machine.
func (h *Hypervisor) await(ctx context.Context, ref hypervisor.Ref, limit time.Duration, done func() bool) error {
	changes := make(chan struct{}, 1)
	cancel := h.Subscribe(func(changed hypervisor.Ref) {
		if changed != ref {
			return
		}
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	defer cancel()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for !done() {
		select {
		case <-changes:
		case <-timeout.C:
			return errTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
