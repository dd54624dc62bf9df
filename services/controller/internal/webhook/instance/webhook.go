// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	evanphx "github.com/evanphx/json-patch/v5"
	"github.com/prometheus/client_golang/prometheus"
	"gomodules.xyz/jsonpatch/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kvv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/bmcresource"
	"kubevirtbmc.dev/pkg/bootoverride"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/logkey"
)

// Path is where the API server finds the webhook.
const Path = "/mutate-kubevirt-io-v1-virtualmachineinstance"

// readTimeout bounds all that a request reads of the cluster: machines start
// without an answer from here after two seconds.
const readTimeout = 800 * time.Millisecond

// Results of a request, as values of the metric's label.
const (
	resultNothing    = "nothing_armed"
	resultApplied    = "applied"
	resultImpossible = "impossible"
	resultFailed     = "failed"
)

// BMCs knows whose BMC is whose. bmcresource.Store is one.
type BMCs interface {
	// Ready tells whether all BMCs are known.
	Ready() bool
	// Of returns the BMC that has a machine; nil when none has.
	Of(machine hypervisor.Ref) *v1beta1.VirtualMachineBMC
}

// Config of a webhook. All of it is needed.
type Config struct {
	// BMCs says which BMC to read.
	BMCs BMCs
	// Live reads VirtualMachineBMCs and VirtualMachines from the API server, never
	// from a cache: a client arms an override and switches the machine on within
	// milliseconds.
	Live client.Reader
	// RebootPolicy tells whether KubeVirt has domain.rebootPolicy.
	RebootPolicy func() bool
	Log          *slog.Logger
	Metrics      prometheus.Registerer
}

// Webhook changes instances as armed overrides want it. It implements
// admission.Handler.
type Webhook struct {
	config  Config
	results *prometheus.CounterVec
}

// New makes a webhook.
func New(config Config) (*Webhook, error) {
	w := &Webhook{config: config, results: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vbmc_controller_instance_admissions_total",
		Help: "Instances of machines that the admission webhook was asked about, dry runs aside, by what became of an armed boot override.",
	}, []string{"result"})}
	for _, result := range []string{resultNothing, resultApplied, resultImpossible, resultFailed} {
		w.results.WithLabelValues(result)
	}
	if err := config.Metrics.Register(w.results); err != nil {
		return nil, fmt.Errorf("make instance webhook: %w", err)
	}
	return w, nil
}

// Handle answers a request for the creation of an instance. It never refuses one.
func (w *Webhook) Handle(ctx context.Context, request admission.Request) admission.Response {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	log := w.config.Log.With(slog.String(logkey.Namespace, request.Namespace))
	var vmi kvv1.VirtualMachineInstance
	if err := utiljson.Unmarshal(request.Object.Raw, &vmi); err != nil {
		return w.unchanged(ctx, log, request, fmt.Errorf("parse instance: %w", err))
	}
	vmi.Namespace = request.Namespace // An object in a request may leave it out.
	owner := metav1.GetControllerOf(&vmi)
	if owner == nil || owner.Kind != kvv1.VirtualMachineGroupVersionKind.Kind || owner.APIVersion != kvv1.VirtualMachineGroupVersionKind.GroupVersion().String() {
		return admission.Allowed("")
	}
	log = log.With(slog.String(logkey.VM, owner.Name))
	armed, err := w.armed(ctx, hypervisor.Ref{Namespace: request.Namespace, Name: owner.Name}, string(owner.UID))
	if err != nil {
		return w.unchanged(ctx, log, request, err)
	}
	if armed == nil {
		patch := Strip(&vmi)
		if err := applies(patch, request.Object.Raw); err != nil {
			return w.unchanged(ctx, log, request, err)
		}
		w.count(request, resultNothing)
		return patched(patch)
	}
	terminate, err := w.terminates(ctx, request.Namespace, owner)
	if err != nil {
		return w.unchanged(ctx, log, request, err)
	}
	patch, err := Patch(&vmi, armed, terminate)
	if err == nil {
		err = applies(patch, request.Object.Raw)
	}
	if err != nil {
		return w.unchanged(ctx, log, request, err)
	}
	w.count(request, resultApplied)
	if !dry(request) {
		log.InfoContext(ctx, "an instance boots with its override", "override", armed.ID, "device", string(armed.Device), "mode", string(armed.Mode))
	}
	return patched(patch)
}

// armed returns the override that is armed for a machine; nil when none is.
func (w *Webhook) armed(ctx context.Context, machine hypervisor.Ref, uid string) (*bootoverride.Armed, error) {
	bmc, err := w.read(ctx, machine)
	if err != nil || bmc == nil {
		return nil, err
	}
	return bootoverride.FromState(bmcresource.State(bmc, uid))
}

// read returns the BMC of a machine as the API server has it; nil when there is
// none.
func (w *Webhook) read(ctx context.Context, machine hypervisor.Ref) (*v1beta1.VirtualMachineBMC, error) {
	if !w.config.BMCs.Ready() {
		return w.find(ctx, machine)
	}
	cached := w.config.BMCs.Of(machine)
	if cached == nil {
		return nil, nil
	}
	var bmc v1beta1.VirtualMachineBMC
	if err := w.config.Live.Get(ctx, client.ObjectKeyFromObject(cached), &bmc); err != nil {
		return nil, fmt.Errorf("read BMC %s: %w", cached.Name, err)
	}
	if !of(&bmc, machine) {
		return nil, nil
	}
	return &bmc, nil
}

// find looks for the BMC of a machine among all of the namespace.
func (w *Webhook) find(ctx context.Context, machine hypervisor.Ref) (*v1beta1.VirtualMachineBMC, error) {
	var all v1beta1.VirtualMachineBMCList
	if err := w.config.Live.List(ctx, &all, client.InNamespace(machine.Namespace)); err != nil {
		return nil, fmt.Errorf("list BMCs: %w", err)
	}
	var found *v1beta1.VirtualMachineBMC
	for n := range all.Items {
		if bmc := &all.Items[n]; of(bmc, machine) && (found == nil || bmcresource.Precedes(bmc, found)) {
			found = bmc
		}
	}
	return found, nil
}

// of tells whether a BMC names a machine.
func of(bmc *v1beta1.VirtualMachineBMC, machine hypervisor.Ref) bool {
	return bmc.Namespace == machine.Namespace && bmc.Spec.VirtualMachineRef != nil && bmc.Spec.VirtualMachineRef.Name == machine.Name
}

// terminates tells whether the instance is to end when its guest reboots. That is
// so where KubeVirt makes another one then: under the run strategy Always. Under
// the others the machine would stay off.
func (w *Webhook) terminates(ctx context.Context, namespace string, owner *metav1.OwnerReference) (bool, error) {
	if !w.config.RebootPolicy() {
		return false, nil
	}
	var vm kvv1.VirtualMachine
	if err := w.config.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &vm); err != nil {
		return false, fmt.Errorf("read VirtualMachine: %w", err)
	}
	if vm.UID != owner.UID {
		return false, errors.New("the instance's owner is not the machine of that name")
	}
	return always(&vm), nil
}

// always tells whether a machine's run strategy is Always, which spec.running
// says too.
func always(vm *kvv1.VirtualMachine) bool {
	if vm.Spec.RunStrategy != nil {
		return *vm.Spec.RunStrategy == kvv1.RunStrategyAlways
	}
	return vm.Spec.Running != nil && *vm.Spec.Running
}

// unchanged allows an instance as it is although an override may be armed.
func (w *Webhook) unchanged(ctx context.Context, log *slog.Logger, request admission.Request, err error) admission.Response {
	result := resultFailed
	if _, ok := errors.AsType[*ImpossibleError](err); ok {
		result = resultImpossible
	}
	w.count(request, result)
	if !dry(request) {
		log.WarnContext(ctx, "an instance starts without its boot override", logkey.Error, err.Error())
	}
	return admission.Allowed("").WithWarnings("the boot override of its BMC does not count: " + err.Error())
}

func (w *Webhook) count(request admission.Request, result string) {
	if !dry(request) {
		w.results.WithLabelValues(result).Inc()
	}
}

// applies is an error where a patch can't be applied to what was sent: the API
// server would refuse the instance then, whatever the webhook's failure policy.
func applies(patch []jsonpatch.Operation, raw []byte) error {
	if len(patch) == 0 {
		return nil
	}
	document, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	operations, err := evanphx.DecodePatch(document)
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	if _, err := operations.Apply(raw); err != nil {
		return fmt.Errorf("patch instance: %w", err)
	}
	return nil
}

func dry(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

func patched(patch []jsonpatch.Operation) admission.Response {
	return admission.Patched("", patch...)
}
