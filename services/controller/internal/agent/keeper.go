// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubevirtbmc.dev/api/v1beta1"
)

// Kinds of which a Keeper reads no more than metadata.
var metadataKinds = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	rbacv1.SchemeGroupVersion.WithKind("Role"),
	rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
	corev1.SchemeGroupVersion.WithKind("ConfigMap"),
}

var deployments = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Watched returns an empty object of each kind that a Keeper reads from the cache:
// Deployments, and others by their metadata.
func Watched() (whole client.Object, metadata []client.Object) {
	for _, kind := range metadataKinds {
		metadata = append(metadata, metadataOf(kind))
	}
	return &appsv1.Deployment{}, metadata
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// Trim leaves of a Deployment what a Keeper looks at, for the cache.
func Trim(in any) (any, error) {
	if d, ok := in.(*appsv1.Deployment); ok {
		d.Spec, d.ManagedFields = appsv1.DeploymentSpec{}, nil
		maps.DeleteFunc(d.Annotations, func(key, _ string) bool { return key != annotationDigest && key != annotationGeneration })
	}
	return in, nil
}

// Config of a Keeper. All fields are needed.
type Config struct {
	Options Options
	// Client reads caches of the objects that Watched returns, which hold those with
	// the label of their BMC, and of pods with that label. It writes.
	Client client.Client
	// Live reads what no cache has.
	Live client.Reader
	// FieldManager is who applies.
	FieldManager string
	// Again calls for another look at a BMC.
	Again func(namespace, name string)
}

// Keeper makes agents what they are to be. Its methods may be called from several
// goroutines.
type Keeper struct {
	config Config

	mu      sync.Mutex
	applied map[types.NamespacedName]map[schema.GroupVersionKind]version
	rollout rollout
}

// version is an object as it was applied last.
type version struct {
	digest [sha256.Size]byte
	uid    types.UID
	// seen is what changes when somebody changes the object: its resourceVersion,
	// and its generation where its status changes that too.
	seen string
	// generation is the object's; 0: it has none.
	generation int64
}

// New makes a Keeper.
func New(config Config) *Keeper {
	return &Keeper{
		config: config, applied: map[types.NamespacedName]map[schema.GroupVersionKind]version{},
		rollout: rollout{max: config.Options.MaxUnavailable, begun: map[types.NamespacedName]begun{}},
	}
}

// State is how an agent is.
type State struct {
	// Refused is why an object is not what it is to be, which only people can mend;
	// empty: all are.
	Refused string
	// Waiting is why there is no pod that serves, if the Deployment knows; empty: it
	// does not.
	Waiting string
	// Outdated tells that it is to get a new version when it is its turn.
	Outdated bool
}

// object is one of an agent's.
type object struct {
	kind  schema.GroupVersionKind
	name  string
	apply runtime.ApplyConfiguration
	// digest is the Deployment's, as annotationDigest has it.
	digest string
}

func (o Objects) list() []object {
	return []object{
		{metadataKinds[0], *o.ServiceAccount.Name, o.ServiceAccount, ""},
		{metadataKinds[1], *o.Role.Name, o.Role, ""},
		{metadataKinds[2], *o.RoleBinding.Name, o.RoleBinding, ""},
		{metadataKinds[3], *o.CA.Name, o.CA, ""},
		// Last: its pods need the others.
		{deployments, *o.Deployment.Name, o.Deployment, o.Deployment.Annotations[annotationDigest]},
	}
}

// Keep makes a BMC's agent what it is to be, and removes what it had under another
// machine's name.
func (k *Keeper) Keep(ctx context.Context, b BMC) (State, error) {
	ca, err := k.config.Options.ca()
	if err != nil {
		return State{Refused: fmt.Sprintf("read CA certificates for agents: %v", err)}, nil
	}
	objects := k.config.Options.Objects(b, string(ca))
	if err := objects.mark(b.Generation); err != nil {
		return State{}, fmt.Errorf("mark Deployment of agent: %w", err)
	}
	want := objects.list()
	if _, err := k.remove(ctx, b, want); err != nil {
		return State{}, err
	}
	var state State
	for _, o := range want {
		refused, outdated, err := k.keep(ctx, b, o)
		if err != nil {
			return State{}, fmt.Errorf("apply %s %s of agent: %w", o.kind.Kind, o.name, err)
		}
		state.Outdated = outdated
		if refused != "" {
			state.Refused = fmt.Sprintf("%s %s: %s", o.kind.Kind, o.name, refused)
			break
		}
	}
	is := &appsv1.Deployment{}
	err = k.config.Client.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: ObjectName(b.Machine)}, is)
	if client.IgnoreNotFound(err) != nil {
		return State{}, fmt.Errorf("get Deployment of agent: %w", err)
	}
	if err == nil && ownedBy(is, b.UID) {
		state.Waiting = waiting(is)
		if available(is) {
			return state, k.next(ctx)
		}
	}
	return state, nil
}

// keep makes one object what it is to be. It is refused where only people can mend
// what is in the way, and outdated where it is to change later.
func (k *Keeper) keep(ctx context.Context, b BMC, o object) (refused string, outdated bool, err error) {
	digest, err := digestOf(o.apply)
	if err != nil {
		return "", false, err
	}
	is := newObject(o.kind)
	key := client.ObjectKey{Namespace: b.Namespace, Name: o.name}
	err = k.config.Client.Get(ctx, key, is)
	if apierrors.IsNotFound(err) {
		// One that somebody else has made is not in the cache.
		live := metadataOf(o.kind)
		is = live
		err = k.config.Live.Get(ctx, key, live)
	}
	switch {
	case apierrors.IsNotFound(err):
		is = nil
	case apierrors.IsForbidden(err):
		return shorten(err.Error()), false, nil
	case err != nil:
		return "", false, err
	case !ownedBy(is, b.UID):
		return notOwned(is), false, nil
	}
	if is != nil && k.last(b, o.kind).is(is, digest) {
		return "", false, nil
	}
	d, ok := is.(*appsv1.Deployment)
	if !ok || !upgrades(d, b, o.digest) {
		refused, _, err = k.apply(ctx, b, o, is, digest)
		return refused, false, err
	}
	admitted, err := k.admit(ctx, b.key(), d)
	if err != nil || !admitted {
		return "", !admitted, err
	}
	refused, applied, err := k.apply(ctx, b, o, is, digest)
	k.started(b.key(), applied)
	return refused, false, err
}

// apply applies one object. What it returns of it has no generation where the object
// is to be made anew, and is nil where nothing has changed.
func (k *Keeper) apply(ctx context.Context, b BMC, o object, is client.Object, digest [sha256.Size]byte) (refused string, applied *version, err error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.apply)
	if err != nil {
		return "", nil, err
	}
	content := &unstructured.Unstructured{Object: fields}
	if is != nil {
		content.SetUID(is.GetUID()) // Not one that takes its place meanwhile.
	}
	err = k.config.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(content), client.ForceOwnership, client.FieldOwner(k.config.FieldManager))
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "", nil, nil // It goes with all that is in it.
	case is != nil && immutable(err):
		// As a Deployment of an earlier line with another selector; the deletion calls
		// for the next look.
		uid := is.GetUID()
		return "", &version{}, client.IgnoreNotFound(k.config.Client.Delete(ctx, is, client.Preconditions{UID: &uid}))
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return shorten(err.Error()), nil, nil
	case err != nil:
		return "", nil, err
	}
	v := version{digest: digest, uid: content.GetUID(), seen: seen(content), generation: content.GetGeneration()}
	k.remember(b, o.kind, v)
	return "", &v, nil
}

// Remove removes what a BMC has of an agent. It is not done while the agent's pods
// end: they serve meanwhile, and need their rights.
func (k *Keeper) Remove(ctx context.Context, b BMC) (done bool, err error) {
	k.forget(b.key())
	return k.remove(ctx, b, nil)
}

// Forget drops what is known of a BMC that is gone. Its objects go with it.
func (k *Keeper) Forget(namespace, name string) {
	k.forget(types.NamespacedName{Namespace: namespace, Name: name})
}

func (k *Keeper) forget(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.applied, key)
	k.rollout.forget(key, true)
}

// remove removes a BMC's objects other than those that it is to have: Deployments
// first, and the rest when their pods are gone.
func (k *Keeper) remove(ctx context.Context, b BMC, want []object) (done bool, err error) {
	of := []client.ListOption{client.InNamespace(b.Namespace), client.MatchingLabels{v1beta1.LabelVirtualMachineBMCName: b.Name}}
	wanted := map[string]bool{}
	for _, o := range want {
		wanted[o.kind.Kind+" "+o.name] = true
	}
	var has appsv1.DeploymentList
	if err := k.config.Client.List(ctx, &has, of...); err != nil {
		return false, fmt.Errorf("list Deployments of agents: %w", err)
	}
	for i := range has.Items {
		if d := &has.Items[i]; !wanted[deployments.Kind+" "+d.Name] && ownedBy(d, b.UID) {
			if err := k.delete(ctx, d); err != nil {
				return false, err
			}
		}
	}
	var others []client.Object
	for _, kind := range metadataKinds {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := k.config.Client.List(ctx, &list, of...); err != nil {
			return false, fmt.Errorf("list %ss of agents: %w", kind.Kind, err)
		}
		for i := range list.Items {
			one := &list.Items[i]
			one.SetGroupVersionKind(kind)
			if !wanted[kind.Kind+" "+one.Name] && ownedBy(one, b.UID) {
				others = append(others, one)
			}
		}
	}
	if len(others) == 0 {
		return true, nil
	}
	var pods corev1.PodList
	if err := k.config.Client.List(ctx, &pods, of...); err != nil {
		return false, fmt.Errorf("list pods of agents: %w", err)
	}
	for i := range pods.Items {
		account := pods.Items[i].Spec.ServiceAccountName
		for _, one := range others {
			if account == one.GetName() {
				return false, nil
			}
		}
	}
	for _, one := range others {
		if err := k.delete(ctx, one); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (k *Keeper) delete(ctx context.Context, o client.Object) error {
	uid := o.GetUID()
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	err := k.config.Client.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s %s of agent: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	}
	return nil
}

func (k *Keeper) last(b BMC, kind schema.GroupVersionKind) version {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applied[b.key()][kind]
}

func (k *Keeper) remember(b BMC, kind schema.GroupVersionKind, v version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := b.key()
	if k.applied[key] == nil {
		k.applied[key] = map[schema.GroupVersionKind]version{}
	}
	k.applied[key][kind] = v
}

// is tells whether an object is as it was applied, with what is to be applied now.
func (v version) is(o client.Object, digest [sha256.Size]byte) bool {
	return v.digest == digest && v.uid == o.GetUID() && v.seen == seen(o)
}

// seen is the part of an object's metadata that changes with what is applied.
func seen(o client.Object) string {
	if o.GetGeneration() == 0 {
		return o.GetResourceVersion()
	}
	// A Deployment's status changes its resourceVersion, labels and owners do not
	// change its generation.
	text, err := json.Marshal(map[string]any{"generation": o.GetGeneration(), "labels": o.GetLabels(), "owners": o.GetOwnerReferences()})
	if err != nil {
		return "" // Strings and numbers can be marshaled.
	}
	return string(text)
}

func digestOf(apply runtime.ApplyConfiguration) ([sha256.Size]byte, error) {
	text, err := json.Marshal(apply)
	return sha256.Sum256(text), err
}

func newObject(kind schema.GroupVersionKind) client.Object {
	if kind == deployments {
		return &appsv1.Deployment{}
	}
	return metadataOf(kind)
}

// ownedBy tells whether an object is a BMC's.
func ownedBy(o metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.UID == uid
}

func notOwned(o metav1.Object) string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.Kind == "VirtualMachineBMC" {
		return fmt.Sprintf("it is VirtualMachineBMC %s's", owner.Name)
	}
	return "it is somebody else's and is left alone"
}

// immutable tells whether an object has to be made anew to be what it is to be.
func immutable(err error) bool {
	return apierrors.IsInvalid(err) && (strings.Contains(err.Error(), "field is immutable") || strings.Contains(err.Error(), "cannot change roleRef"))
}

// shorten cuts a text to what a condition should have.
func shorten(text string) string {
	const most = 512
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "?")
}
