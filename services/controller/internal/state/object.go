// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"kubevirtbmc.dev/services/controller/internal/registry"
)

// ownerKind is the kind of BMCs, which own the objects.
const ownerKind = "VirtualMachineBMC"

// LabelContent is the label of the objects; its value says what they hold.
const LabelContent = "bmc.kubevirt.io/content"

// Values of LabelContent.
const (
	contentState         = "state"
	contentAccounts      = "accounts"
	contentSubscriptions = "subscriptions"
)

const (
	stateSuffix         = "-bmc-state"
	accountsSuffix      = "-bmc-accounts"
	subscriptionsSuffix = "-bmc-subscriptions"
	// maxName is how long the name of an object may be (RFC 1123 subdomain).
	maxName = 253
)

// nameOf returns the name of a BMC's object. That of a BMC with a long name ends
// with a hash.
func nameOf(bmc, suffix string) string {
	if len(bmc)+len(suffix) <= maxName {
		return bmc + suffix
	}
	sum := sha256.Sum256([]byte(bmc))
	hash := "x" + hex.EncodeToString(sum[:8])
	return bmc[:maxName-len(suffix)-len(hash)] + hash + suffix
}

// object is a ConfigMap or a Secret: its contents by key.
type object struct {
	metav1.ObjectMeta
	data map[string][]byte
}

func (o *object) clone() *object {
	return &object{*o.DeepCopy(), maps.Clone(o.data)}
}

// owner returns the UID of the BMC that owns the object; empty when none does.
func (o *object) owner() types.UID {
	for _, owner := range o.OwnerReferences {
		if owner.Kind == ownerKind {
			return owner.UID
		}
	}
	return ""
}

// own makes a BMC the owner of the object.
func (o *object) own(ref registry.Ref, uid types.UID, content string) {
	if o.Labels == nil {
		o.Labels = map[string]string{}
	}
	o.Labels[LabelContent] = content
	o.Labels["app.kubernetes.io/managed-by"] = "kubevirtbmc"
	if o.owner() == "" {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{
			APIVersion: BMCs.GroupVersion().String(), Kind: ownerKind, Name: ref.Name, UID: uid,
		})
	}
}

// kind reads and writes objects of a kind.
type kind interface {
	get(ctx context.Context, namespace, name string) (*object, error)
	create(ctx context.Context, o *object) (*object, error)
	update(ctx context.Context, o *object) (*object, error)
	delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error
}

type configMaps struct {
	client typedcorev1.ConfigMapsGetter
}

func (c configMaps) get(ctx context.Context, namespace, name string) (*object, error) {
	return fromConfigMap(c.client.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}))
}

func (c configMaps) create(ctx context.Context, o *object) (*object, error) {
	return fromConfigMap(c.client.ConfigMaps(o.Namespace).Create(ctx, o.configMap(), metav1.CreateOptions{}))
}

func (c configMaps) update(ctx context.Context, o *object) (*object, error) {
	return fromConfigMap(c.client.ConfigMaps(o.Namespace).Update(ctx, o.configMap(), metav1.UpdateOptions{}))
}

func (c configMaps) delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return c.client.ConfigMaps(namespace).Delete(ctx, name, options)
}

func fromConfigMap(m *corev1.ConfigMap, err error) (*object, error) {
	if err != nil {
		return nil, err
	}
	o := &object{m.ObjectMeta, make(map[string][]byte, len(m.Data)+len(m.BinaryData))}
	for key, text := range m.Data {
		o.data[key] = []byte(text)
	}
	maps.Copy(o.data, m.BinaryData)
	return o, nil
}

func (o *object) configMap() *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: o.ObjectMeta, Data: map[string]string{}}
	for key, content := range o.data {
		if utf8.Valid(content) {
			m.Data[key] = string(content)
			continue
		}
		if m.BinaryData == nil {
			m.BinaryData = map[string][]byte{}
		}
		m.BinaryData[key] = content
	}
	return m
}

// secretType says that the Secrets are no others' business.
const secretType corev1.SecretType = "bmc.kubevirt.io/accounts" //nolint:gosec // It is a type's name.

type secrets struct {
	client typedcorev1.SecretsGetter
}

func (c secrets) get(ctx context.Context, namespace, name string) (*object, error) {
	return fromSecret(c.client.Secrets(namespace).Get(ctx, name, metav1.GetOptions{}))
}

func (c secrets) create(ctx context.Context, o *object) (*object, error) {
	return fromSecret(c.client.Secrets(o.Namespace).Create(ctx, o.secret(), metav1.CreateOptions{}))
}

func (c secrets) update(ctx context.Context, o *object) (*object, error) {
	return fromSecret(c.client.Secrets(o.Namespace).Update(ctx, o.secret(), metav1.UpdateOptions{}))
}

func (c secrets) delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return c.client.Secrets(namespace).Delete(ctx, name, options)
}

func fromSecret(m *corev1.Secret, err error) (*object, error) {
	if err != nil {
		return nil, err
	}
	return &object{m.ObjectMeta, m.Data}, nil
}

func (o *object) secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: o.ObjectMeta, Type: secretType, Data: o.data}
}
