// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

// Kinds of others' APIs, which may not be there.
var (
	virtualMachine = schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}
	// cmCertificate is cert-manager's, which is looked for where it makes the
	// certificates.
	cmCertificate = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}
	dataVolume    = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "DataVolume"}
)

// apis knows which of others' APIs are served, and, where KubeVirt's is, which
// VirtualMachines there are. It asks the API server every so often, since a watch
// of the definitions would take a right in the whole cluster, and the answer
// needs none.
type apis struct {
	discovery discovery.DiscoveryInterface
	// machines makes a cache for as long as KubeVirt's API is served.
	machines func() (cache.Cache, error)
	interval time.Duration
	log      *slog.Logger
	served   *prometheus.GaugeVec
	// needCertManager looks for cert-manager's API too.
	needCertManager bool
	// changed is told when an API came or went.
	changed func()
	// machineChanged is told when a VirtualMachine came or went.
	machineChanged func(namespace, name string)

	mu         sync.RWMutex
	hypervisor cache.Cache // nil: KubeVirt's API is not served
	media      bool
	issuer     bool               // cert-manager's API is served
	stop       context.CancelFunc // ends hypervisor

	known     chan struct{} // closed when the API server has answered
	knownOnce sync.Once
}

func newAPIs(metrics prometheus.Registerer) (*apis, error) {
	a := &apis{
		served: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vbmc_controller_api_served", Help: "Whether an API that the controller works with is served, by API group.",
		}, []string{"group"}),
		known: make(chan struct{}),
	}
	if err := metrics.Register(a.served); err != nil {
		return nil, err
	}
	return a, nil
}

// Start implements manager.Runnable.
func (a *apis) Start(ctx context.Context) error {
	ticker := time.NewTicker(a.interval)
	defer ticker.Stop()
	for {
		if err := a.look(ctx); err != nil {
			// What was known goes on to count.
			a.log.WarnContext(ctx, "can't find out which APIs are served", logkey.Error, err.Error())
		} else {
			a.knownOnce.Do(func() { close(a.known) })
		}
		select {
		case <-ctx.Done():
			// What is known counts to the end: a reconciler that is still at work must
			// not take all machines for gone, and tell the frontends so. The cache ends
			// with the context.
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: caches are filled
// before they are needed.
func (a *apis) NeedLeaderElection() bool { return false }

// look asks the API server, and begins or ends to watch VirtualMachines.
func (a *apis) look(ctx context.Context) error {
	hypervisor, err := a.serves(virtualMachine)
	if err != nil {
		return err
	}
	media, err := a.serves(dataVolume)
	if err != nil {
		return err
	}
	issuer := false
	if a.needCertManager {
		if issuer, err = a.serves(cmCertificate); err != nil {
			return err
		}
	}
	a.mu.Lock()
	watching := a.hypervisor != nil
	changed := a.media != media || watching != hypervisor || a.issuer != issuer
	a.media, a.issuer = media, issuer
	a.mu.Unlock()
	switch {
	case hypervisor && !watching:
		if err := a.watch(ctx); err != nil {
			return fmt.Errorf("watch VirtualMachines: %w", err)
		}
	case !hypervisor && watching:
		a.setHypervisor(nil, nil)
	}
	for _, api := range []struct {
		kind   schema.GroupVersionKind
		is     bool
		needed bool
	}{{virtualMachine, hypervisor, true}, {dataVolume, media, true}, {cmCertificate, issuer, a.needCertManager}} {
		if !api.needed {
			continue
		}
		value := 0.0
		if api.is {
			value = 1
		}
		a.served.WithLabelValues(api.kind.Group).Set(value)
	}
	if changed {
		a.log.InfoContext(ctx, "APIs of others", virtualMachine.Group, hypervisor, dataVolume.Group, media)
		a.changed()
	}
	return nil
}

// serves tells whether the API server serves a kind.
func (a *apis) serves(kind schema.GroupVersionKind) (bool, error) {
	list, err := a.discovery.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover %s: %w", kind.GroupVersion(), err)
	}
	for _, resource := range list.APIResources {
		if resource.Kind == kind.Kind {
			return true, nil
		}
	}
	return false, nil
}

// watch fills a cache of VirtualMachines.
func (a *apis) watch(ctx context.Context) error {
	machines, err := a.machines()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		if err := machines.Start(ctx); err != nil {
			a.log.ErrorContext(ctx, "cache of VirtualMachines failed", logkey.Error, err.Error())
		}
	}()
	filling, done := context.WithTimeout(ctx, fillTime)
	defer done()
	informer, err := machines.GetInformer(filling, metadataOf(virtualMachine))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: a.tell, DeleteFunc: a.tell,
			UpdateFunc: func(before, after any) {
				// One that is made anew between two looks of the watch is an update.
				was, wasOne := before.(metav1.Object)
				is, isOne := after.(metav1.Object)
				if wasOne && isOne && (was.GetUID() != is.GetUID() || !maps.Equal(was.GetLabels(), is.GetLabels())) {
					a.tell(after)
				}
			},
		})
	}
	if err != nil {
		stop()
		return err
	}
	a.setHypervisor(machines, stop)
	return nil
}

// fillTime is how long a cache may take to be filled.
const fillTime = time.Minute

func (a *apis) tell(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if machine, ok := object.(metav1.Object); ok {
		a.machineChanged(machine.GetNamespace(), machine.GetName())
	}
}

func (a *apis) setHypervisor(machines cache.Cache, stop context.CancelFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stop != nil {
		a.stop()
	}
	a.hypervisor, a.stop = machines, stop
}

// state tells which APIs are served.
func (a *apis) state() (hypervisor, media bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.hypervisor != nil, a.media
}

// hasCertManager tells whether cert-manager's API is served, where it is needed.
func (a *apis) hasCertManager() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.issuer
}

// machine returns the UID of a VirtualMachine; empty: it is not there, or can't be,
// since KubeVirt's API is not served. Both are of one look.
func (a *apis) machine(ctx context.Context, namespace, name string) (uid types.UID, served bool, err error) {
	machine, served, err := a.find(ctx, namespace, name)
	if machine == nil {
		return "", served, err
	}
	return machine.UID, served, nil
}

// get returns a VirtualMachine; nil: it is not there.
func (a *apis) get(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	machine, _, err := a.find(ctx, namespace, name)
	return machine, err
}

func (a *apis) find(ctx context.Context, namespace, name string) (machine *metav1.PartialObjectMetadata, served bool, err error) {
	a.mu.RLock()
	machines := a.hypervisor
	a.mu.RUnlock()
	if machines == nil || name == "" {
		return nil, machines != nil, nil
	}
	machine = metadataOf(virtualMachine)
	if err := machines.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, machine); err != nil {
		return nil, true, client.IgnoreNotFound(err)
	}
	return machine, true, nil
}

// list returns the VirtualMachines of a namespace, or of all.
func (a *apis) list(ctx context.Context, namespace string) []registry.Ref {
	a.mu.RLock()
	machines := a.hypervisor
	a.mu.RUnlock()
	if machines == nil {
		return nil
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(virtualMachine.GroupVersion().WithKind(virtualMachine.Kind + "List"))
	if err := machines.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		a.log.ErrorContext(ctx, "can't list VirtualMachines", logkey.Error, err.Error())
		return nil
	}
	refs := make([]registry.Ref, len(list.Items))
	for i := range list.Items {
		refs[i] = registry.Ref{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}
	}
	return refs
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}
