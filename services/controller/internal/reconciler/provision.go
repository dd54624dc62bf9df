// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/controller/internal/registry"
)

const (
	provisionWorkers = 4
	// provisionTime is how old a machine is before it is given a BMC: one that is
	// made along with it comes first.
	provisionTime = 10 * time.Second
	// provisionUser is the user name of generated credentials.
	provisionUser = "admin"
	// provisionPassword is the length of generated passwords, in characters of 5
	// random bits: what IPMI v1.5 carries too.
	provisionPassword = 16
	// provisionSecret follows the BMC's name in the name of its Secret.
	provisionSecret = "-bmc-credentials"
)

// Provision selects the VirtualMachines that are given a VirtualMachineBMC, where
// they have none, with credentials of its own: those that both selectors match. A
// selector that is nil matches all; where both are, no machine is given one.
type Provision struct {
	// Machines selects by the labels of VirtualMachines.
	Machines labels.Selector
	// Namespaces selects by the labels of their namespaces.
	Namespaces labels.Selector
}

func (p *Provision) on() bool { return p.Machines != nil || p.Namespaces != nil }

// provisioner gives VirtualMachines BMCs. What it made is the machine's, and goes
// with it; it is not taken away when the machine is selected no longer.
type provisioner struct {
	Provision
	client client.Client
	live   client.Reader
	apis   *apis
	start  *start
	events events.EventRecorder
	log    *slog.Logger
	// rights are asked whether BMCs may be made, in the namespace that scope returns.
	rights *rights
	scope  func(namespace string) string
	// labeled are the namespaces, with their labels; nil: those don't matter.
	labeled *optional
	// warned has the UIDs of machines that can't ever be given a BMC and were told so,
	// by their names.
	warned sync.Map
}

// setupProvisioning makes the controller that gives machines BMCs.
func (s *Source) setupProvisioning(ctx context.Context) error {
	if !s.config.Provision.on() {
		return nil
	}
	ofMachine := func(_ context.Context, object client.Object) []reconcile.Request {
		bmc, ok := object.(*v1beta1.VirtualMachineBMC)
		if !ok || bmc.MachineName() == "" {
			return nil
		}
		return []reconcile.Request{requestFor(registry.Ref{Namespace: bmc.Namespace, Name: bmc.MachineName()})}
	}
	machines := source.Func(func(ctx context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if err := s.machines.Start(ctx, to); err != nil {
			return err
		}
		s.addMachines(ctx)
		return nil
	})
	b := builder.ControllerManagedBy(s.manager).Named("provisioning").
		WithOptions(controller.Options{MaxConcurrentReconciles: provisionWorkers}).
		Watches(&v1beta1.VirtualMachineBMC{}, handler.EnqueueRequestsFromMapFunc(ofMachine)).
		WatchesRawSource(machines)
	if s.config.Provision.Namespaces != nil {
		namespaces := map[client.Object]cache.ByObject{namespaceMetadata(): {Transform: labelsOnly}}
		var err error
		s.labeled, err = s.optional(ctx, &roleProvisioningCluster, nil, namespaces, func(namespace client.Object) {
			if len(s.config.Namespaces) > 0 && !slices.Contains(s.config.Namespaces, namespace.GetName()) {
				return
			}
			for _, machine := range s.apis.list(ctx, namespace.GetName()) {
				s.machines.add(machine)
			}
		})
		if err != nil {
			return err
		}
		s.labeled.changed = func() { s.addMachines(ctx) }
	}
	return b.Complete(&provisioner{
		Provision: s.config.Provision, client: s.manager.GetClient(), live: s.manager.GetAPIReader(), apis: s.apis, start: s.start,
		events: s.manager.GetEventRecorder(EventSource), log: s.config.Log,
		rights: s.rights, scope: s.scope, labeled: s.labeled,
	})
}

// addMachines has all machines looked at.
func (s *Source) addMachines(ctx context.Context) {
	if !s.config.Provision.on() {
		return
	}
	for _, machine := range s.apis.list(ctx, metav1.NamespaceAll) {
		s.machines.add(machine)
	}
}

// Reconcile implements reconcile.Reconciler, for a VirtualMachine.
func (p *provisioner) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := p.start.wait(ctx); err != nil {
		return reconcile.Result{}, err
	}
	machine, err := p.apis.get(ctx, request.Namespace, request.Name)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("find VirtualMachine %s: %w", request.Name, err)
	}
	if machine == nil || machine.DeletionTimestamp != nil {
		p.warned.Delete(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if selected, err := p.selects(ctx, machine); err != nil || !selected {
		return reconcile.Result{}, err
	}
	var has v1beta1.VirtualMachineBMCList
	if err := p.client.List(ctx, &has, client.InNamespace(machine.Namespace), client.MatchingFields{indexMachine: machine.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list BMCs of VirtualMachine %s: %w", machine.Name, err)
	}
	if len(has.Items) > 0 {
		return reconcile.Result{}, nil
	}
	if problem := unprovisionable(machine.Name); problem != "" {
		if before, _ := p.warned.Swap(request.NamespacedName, machine.UID); before != machine.UID {
			p.warn(machine, problem)
		}
		return reconcile.Result{}, nil // A machine keeps its name.
	}
	if age := time.Since(machine.CreationTimestamp.Time); age < provisionTime {
		return reconcile.Result{RequeueAfter: min(provisionTime-age, provisionTime)}, nil
	}
	problem, err := p.provision(ctx, machine)
	if problem != "" {
		p.warn(machine, problem)
		return reconcile.Result{RequeueAfter: retryTime}, err
	}
	return reconcile.Result{}, err
}

func (p *provisioner) warn(machine *metav1.PartialObjectMetadata, problem string) {
	p.events.Eventf(machine, nil, corev1.EventTypeWarning, "NotProvisioned", "Provision", "%s", problem)
}

// unprovisionable is why no machine of that name can have a BMC; empty: it can.
func unprovisionable(machine string) string {
	name := machine + serviceSuffix
	if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
		return fmt.Sprintf("the BMC's Service can't be named %s: %s", name, strings.Join(problems, "; "))
	}
	return ""
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	return metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
}

func (p *provisioner) selects(ctx context.Context, machine *metav1.PartialObjectMetadata) (bool, error) {
	if p.Machines != nil && !p.Machines.Matches(labels.Set(machine.Labels)) {
		return false, nil
	}
	if p.Namespaces == nil {
		return true, nil
	}
	namespaces, _ := p.labeled.reader(metav1.NamespaceAll)
	if namespaces == nil {
		return false, nil // Until there is the role.
	}
	namespace := namespaceMetadata()
	if err := namespaces.Get(ctx, client.ObjectKey{Name: machine.Namespace}, namespace); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return namespace.DeletionTimestamp == nil && p.Namespaces.Matches(labels.Set(namespace.Labels)), nil
}

// provision makes a Secret and a BMC. The problem is what is in the way.
func (p *provisioner) provision(ctx context.Context, machine *metav1.PartialObjectMetadata) (problem string, err error) {
	// Before there is a Secret that nobody needs.
	if problem, err := p.rights.lack(ctx, &roleProvisioning, p.scope(machine.Namespace)); err != nil || problem != "" {
		return problem, err
	}
	object := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: machine.Namespace, Name: name, Labels: map[string]string{v1beta1.LabelProvisioned: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: virtualMachine.GroupVersion().String(), Kind: virtualMachine.Kind, Name: machine.Name, UID: machine.UID,
			}},
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: object(machine.Name + provisionSecret), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{
			v1beta1.SecretKeyUsername: []byte(provisionUser), v1beta1.SecretKeyPassword: []byte(rand.Text()[:provisionPassword]),
		},
	}
	bmc := &v1beta1.VirtualMachineBMC{
		ObjectMeta: object(machine.Name),
		Spec: v1beta1.VirtualMachineBMCSpec{
			VirtualMachineRef: &v1beta1.LocalObjectReference{Name: machine.Name},
			AuthSecretRef:     &v1beta1.LocalObjectReference{Name: secret.Name},
		},
	}
	for _, o := range []struct {
		kind string
		want client.Object
		is   client.Object
	}{
		{"Secret", secret, metadataOf(corev1.SchemeGroupVersion.WithKind("Secret"))},
		{"VirtualMachineBMC", bmc, metadataOf(v1beta1.GroupVersion.WithKind("VirtualMachineBMC"))},
	} {
		err := p.client.Create(ctx, o.want, client.FieldOwner(fieldManager))
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return "", nil
		case apierrors.IsAlreadyExists(err):
			// Of an earlier try, or of a cache that is behind.
			if err := p.live.Get(ctx, client.ObjectKeyFromObject(o.want), o.is); err != nil {
				return "", fmt.Errorf("get %s %s: %w", o.kind, o.want.GetName(), err)
			}
			if !belongs(o.is, machine.UID) {
				return fmt.Sprintf("%s %s is there, and is not of this VirtualMachine", o.kind, o.want.GetName()), nil
			}
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
			return fmt.Sprintf("%s %s: %s", o.kind, o.want.GetName(), shorten(err.Error())), nil
		case err != nil:
			return "", fmt.Errorf("create %s %s: %w", o.kind, o.want.GetName(), err)
		case o.want == client.Object(bmc):
			p.events.Eventf(bmc, nil, corev1.EventTypeNormal, "Provisioned", "Provision",
				"VirtualMachine %s has been given this BMC, with credentials in Secret %s", machine.Name, secret.Name)
			p.log.InfoContext(ctx, "made a BMC", logkey.Namespace, machine.Namespace, logkey.VM, machine.Name)
		}
	}
	return "", nil
}

// belongs tells whether one of an object's owners is that one.
func belongs(object client.Object, uid types.UID) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.UID == uid {
			return true
		}
	}
	return false
}
