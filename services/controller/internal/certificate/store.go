// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
)

// store keeps objects of the controller's namespace. What is not there is nil.
// An object that has no resource version is made, another is replaced if it is
// still as it was read; errors are those of the API.
type store interface {
	secret(ctx context.Context, name string) (*corev1.Secret, error)
	configMap(ctx context.Context, name string) (*corev1.ConfigMap, error)
	// putSecret returns the Secret as it is then.
	putSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	putConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error
}

// cluster is a store in Kubernetes.
type cluster struct {
	core      typedcorev1.CoreV1Interface
	metadata  metadata.Interface
	namespace string
}

func (c *cluster) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := c.core.Secrets(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return secret, err
}

func (c *cluster) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	configMap, err := c.core.ConfigMaps(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return configMap, err
}

func (c *cluster) putSecret(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	if secret.ResourceVersion == "" {
		return c.core.Secrets(c.namespace).Create(ctx, secret, metav1.CreateOptions{})
	}
	return c.core.Secrets(c.namespace).Update(ctx, secret, metav1.UpdateOptions{})
}

func (c *cluster) putConfigMap(ctx context.Context, configMap *corev1.ConfigMap) error {
	var err error
	if configMap.ResourceVersion == "" {
		_, err = c.core.ConfigMaps(c.namespace).Create(ctx, configMap, metav1.CreateOptions{})
	} else {
		_, err = c.core.ConfigMaps(c.namespace).Update(ctx, configMap, metav1.UpdateOptions{})
	}
	return err
}

// watch calls changed whenever one of the objects changes, until the context
// ends. Each is watched by its name, so that rights to others are not needed, and
// for its metadata alone.
func (c *cluster) watch(ctx context.Context, resource string, names []string, changed func()) error {
	for _, name := range names {
		informer := metadatainformer.NewFilteredMetadataInformer(c.metadata, schema.GroupVersionResource{Version: "v1", Resource: resource},
			c.namespace, 0, toolscache.Indexers{}, func(options *metav1.ListOptions) {
				options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
			}).Informer()
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		}); err != nil {
			return fmt.Errorf("watch %s %s: %w", resource, name, err)
		}
		go informer.RunWithContext(ctx)
	}
	return nil
}
